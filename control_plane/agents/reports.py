"""Report lines of trials and agents, read as what they mean to a trial. Lines are hostile: each
is checked here.

The kinds of lines are in docs/trial-directory.md and docs/agent-protocol.md.
"""

import math
import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, TypeGuard

from pydantic_core import to_json

from control_plane.actors.records import CheckpointRef
from control_plane.actors.trial_messages import (
    AllocationExited,
    CheckpointReported,
    ContainerStateReported,
    EarlyExitReported,
    LengthReported,
    TrialMessage,
    ValidationReported,
)
from control_plane.searchers.method import ExitReason

TEXT_MAX = 4_000
# Metadata beyond this stay in the checkpoint's own files.
METADATA_BYTES_MAX = 16 * 1024
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
    kind = report.line.get("kind")
    reader = (_AGENT if by_agent else _TRIAL).get(kind) if isinstance(kind, str) else None
    if reader is None:
        return None
    try:
        return reader(report, metric)
    except (KeyError, TypeError, ValueError, OverflowError):
        return None


def begun_checkpoint(line: Mapping[str, Any]) -> str | None:
    """The UUID of the checkpoint whose upload a line announces, None for any other line."""
    uuid = line.get("uuid")
    if line.get("kind") != "checkpoint_intent" or not isinstance(uuid, str):
        return None
    return uuid if _UUID.fullmatch(uuid) else None


def _validation(report: Report, metric: str) -> TrialMessage | None:
    if report.line["group"] != "validation" or metric not in report.line["metrics"]:
        return None
    steps = _count(report.line["steps_completed"])
    return ValidationReported(report.epoch, steps, _metric(report.line["metrics"][metric]))


def _completed(report: Report, searcher_metric: str) -> TrialMessage:
    length, metric = _count(report.line["length"]), report.line["metric"]
    if metric is None:
        lack = _text(report.line["message"], TEXT_MAX) or "the searcher's metric is missing"
        return LengthReported(report.epoch, length, None, lack)
    return LengthReported(report.epoch, length, _metric(metric))


def _checkpoint(report: Report, metric: str) -> TrialMessage:
    line = report.line
    uuid = _matched(_UUID, line["uuid"])
    # EXPERIMENT/TRIAL/EPOCH/UUID: a trial names only what it wrote itself.
    own = re.compile(rf"[1-9][0-9]*/{report.trial_id}/{report.epoch}/{uuid}")
    reference = CheckpointRef(
        uuid=uuid,
        trial_id=report.trial_id,
        steps_completed=_count(line["steps_completed"]),
        path=_matched(own, line["path"]),
        manifest_sha256=_matched(_SHA256, line["manifest_sha256"]),
    )
    size, files = _count(line["size_bytes"]), _count(line["files"])
    metadata = _metadata(line.get("metadata"))
    return CheckpointReported(report.epoch, reference, size, files, metadata)


def _metadata(value: object) -> Mapping[str, object]:
    if not isinstance(value, Mapping):
        return {}
    try:
        return value if len(to_json(value)) <= METADATA_BYTES_MAX else {}
    except ValueError:
        return {}


def _early_exit(report: Report, metric: str) -> TrialMessage:
    reason = ExitReason(report.line["reason"])
    if not (reason.invalid_hparams or reason is ExitReason.USER_REQUESTED_STOP):
        raise ValueError(reason)
    return EarlyExitReported(report.epoch, reason)


def _container(report: Report, metric: str) -> TrialMessage:
    return ContainerStateReported(report.epoch, str(report.line["state"])[:32])


def _exited(report: Report, metric: str) -> TrialMessage:
    """An exit is heard whatever a trial has put into it: one that is not would hold its slots."""
    line = report.line
    code, revision = line.get("code"), line.get("directive_revision")
    return AllocationExited(
        epoch=report.epoch,
        reason=_text(line.get("reason"), 64) or "errored",
        code=code if _is_whole(code) else None,
        directive_revision=revision if _is_whole(revision) and revision >= 0 else 0,
        message=_text(line.get("message"), TEXT_MAX),
    )


_TRIAL = {
    "metrics": _validation,
    "completed": _completed,
    "checkpoint": _checkpoint,
    "early_exit": _early_exit,
}
_AGENT = {"container": _container, "exited": _exited}


def _is_whole(value: object) -> TypeGuard[int]:
    return isinstance(value, int) and not isinstance(value, bool) and abs(value) < 1 << 53


def _text(value: object, characters_max: int) -> str:
    return value[:characters_max] if isinstance(value, str) else ""


def _count(value: object) -> int:
    if not _is_whole(value) or value < 0:
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
