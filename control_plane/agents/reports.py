"""Report lines of trials and agents, read as what they mean to a trial. Lines are hostile: each
is checked here.

The kinds of lines are in docs/trial-directory.md and docs/agent-protocol.md.
"""

import math
import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from control_plane.actors.messages import (
    AllocationExited,
    CheckpointRef,
    CheckpointReported,
    ContainerStateReported,
    EarlyExitReported,
    LengthReported,
    TrialMessage,
    ValidationReported,
)
from control_plane.searchers.method import ExitReason

TEXT_MAX = 4_000
_PATH = re.compile(r"[A-Za-z0-9_.-]+(/[A-Za-z0-9_.-]+)*")
_UUID = re.compile(r"[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}")
_SHA256 = re.compile(r"[0-9a-f]{64}")


@dataclass(frozen=True, slots=True)
class Report:
    """A line of an allocation's writer; `offset` is the byte after its newline."""

    trial_id: int
    epoch: int
    writer: str
    offset: int
    line: Mapping[str, Any]


def message_of(report: Report, metric: str) -> TrialMessage | None:
    """The message a line carries to its trial, or None: it carries none or is malformed.

    `metric` is the searcher's metric: a validation without it says nothing to the search.
    """
    by_agent = report.writer == "agent"
    reader = (_AGENT if by_agent else _TRIAL).get(str(report.line.get("kind")))
    if reader is None:
        return None
    try:
        return reader(report, metric)
    except (KeyError, TypeError, ValueError):
        return None


def _validation(report: Report, metric: str) -> TrialMessage | None:
    if report.line["group"] != "validation" or metric not in report.line["metrics"]:
        return None
    steps = _count(report.line["steps_completed"])
    return ValidationReported(report.epoch, steps, _metric(report.line["metrics"][metric]))


def _completed(report: Report, metric: str) -> TrialMessage:
    length = _count(report.line["length"])
    return LengthReported(report.epoch, length, _metric(report.line["metric"]))


def _checkpoint(report: Report, metric: str) -> TrialMessage:
    line = report.line
    path = _matched(_PATH, line["path"])
    if ".." in path.split("/") or f"/{report.trial_id}/" not in path:
        raise ValueError(path)
    metadata = line.get("metadata") or {}
    reference = CheckpointRef(
        uuid=_matched(_UUID, line["uuid"]),
        trial_id=report.trial_id,
        steps_completed=_count(line["steps_completed"]),
        path=path,
        manifest_sha256=_matched(_SHA256, line["manifest_sha256"]),
    )
    size, files = _count(line["size_bytes"]), _count(line["files"])
    return CheckpointReported(report.epoch, reference, size, files, dict(metadata))


def _early_exit(report: Report, metric: str) -> TrialMessage:
    return EarlyExitReported(report.epoch, ExitReason(report.line["reason"]))


def _container(report: Report, metric: str) -> TrialMessage:
    return ContainerStateReported(report.epoch, str(report.line["state"])[:32])


def _exited(report: Report, metric: str) -> TrialMessage:
    line = report.line
    code = line.get("code")
    return AllocationExited(
        epoch=report.epoch,
        reason=str(line["reason"])[:64],
        code=code if isinstance(code, int) else None,
        directive_revision=_count(line.get("directive_revision") or 0),
        message=str(line.get("message") or "")[:TEXT_MAX],
    )


_TRIAL = {
    "metrics": _validation,
    "completed": _completed,
    "checkpoint": _checkpoint,
    "early_exit": _early_exit,
}
_AGENT = {"container": _container, "exited": _exited}


def _count(value: object) -> int:
    if isinstance(value, bool) or not isinstance(value, int) or not 0 <= value < 1 << 53:
        raise ValueError(value)
    return value


def _metric(value: object) -> float | None:
    """A metric; None for NaN and the infinities, which come as their names."""
    return None if value in ("NaN", "Infinity", "-Infinity") else _number(value)


def _number(value: object) -> float:
    if isinstance(value, bool) or not isinstance(value, int | float) or not math.isfinite(value):
        raise ValueError(value)
    return float(value)


def _matched(pattern: re.Pattern[str], value: object) -> str:
    if not isinstance(value, str) or not pattern.fullmatch(value):
        raise ValueError(value)
    return value
