"""Report lines of trials and agents, read as what they mean to a trial. Lines are hostile: each
is checked here.

The kinds of lines are in docs/trial-directory.md and docs/agent-protocol.md.
"""

import math
import re
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any, NamedTuple, TypeGuard

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

# The time metric that needs no reporting.
BATCHES = "batches"
TEXT_MAX = 4_000
NOTICE_CHARACTERS_MAX = 200
NAMES_CHARACTERS_MAX = 400
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


class Measures(NamedTuple):
    """The searcher's metric and, where trials are measured by time, its time metric, else ""; and
    which of the allocation's nodes the agent is.
    """

    metric: str
    time_metric: str = ""
    node_rank: int = 0
    nodes: int = 1


def message_of(report: Report, measures: Measures) -> TrialMessage | None:
    """The message a line carries to its trial, or None: it carries none or is malformed.

    A validation without the searcher's metric says nothing to the search, unless that needs all of
    them.
    """
    by_agent = report.writer == "agent"
    kind = report.line.get("kind")
    reader = (_AGENT if by_agent else _TRIAL).get(kind) if isinstance(kind, str) else None
    if reader is None:
        return None
    try:
        return reader(report, measures)
    except (KeyError, TypeError, ValueError, OverflowError):
        return None


def begun_checkpoint(line: Mapping[str, Any]) -> str | None:
    """The UUID of the checkpoint whose upload a line announces, None for any other line."""
    uuid = line.get("uuid")
    if line.get("kind") != "checkpoint_intent" or not isinstance(uuid, str):
        return None
    return uuid if _UUID.fullmatch(uuid) else None


def _validation(report: Report, measures: Measures) -> TrialMessage | None:
    if report.line["group"] != "validation":
        return None
    metrics: Mapping[str, object] = report.line["metrics"]
    steps = _count(report.line["steps_completed"])
    if measures.time_metric:
        timed = _timed(report.epoch, steps, metrics, measures)
        return replace(timed, nodes=measures.nodes)
    if measures.metric not in metrics:
        return None
    metric = _metric(metrics[measures.metric])
    return ValidationReported(report.epoch, steps, metric, nodes=measures.nodes)


def _timed(
    epoch: int, steps: int, metrics: Mapping[str, object], measures: Measures
) -> ValidationReported:
    """A validation of a search that needs both metrics of every one of them."""
    values: list[float | None] = []
    for name in (measures.metric, measures.time_metric):
        # Every report says how many batches it comes after.
        value = metrics.get(name, steps if name == BATCHES else None)
        try:
            values.append(_metric(value))
        except ValueError:
            lack = _lack(name, metrics, "time_metric" if values else "metric", steps)
            return ValidationReported(epoch, steps, None, lack=lack)
    metric, time = values
    if time is None:
        lack = _lack(measures.time_metric, metrics, "time_metric", steps)
        return ValidationReported(epoch, steps, metric, lack=lack)
    return ValidationReported(epoch, steps, metric, time)


def _lack(name: str, metrics: Mapping[str, object], field: str, steps: int) -> str:
    place = f"the validation at batch {steps}"
    if name in metrics:
        found = f"{metrics[name]!r:.80}"
        return f"{place} reports {found} as searcher.{field} {name!r}: it must be one number"
    names = ", ".join(sorted(map(str, metrics)))[:NAMES_CHARACTERS_MAX] or "none"
    return f"{place} lacks searcher.{field} {name!r}; it has: {names}"


def _completed(report: Report, measures: Measures) -> TrialMessage:
    length, metric = _count(report.line["length"]), report.line["metric"]
    if metric is None:
        lack = _text(report.line["message"], TEXT_MAX) or "the searcher's metric is missing"
        return LengthReported(report.epoch, length, None, lack)
    return LengthReported(report.epoch, length, _metric(metric))


def _checkpoint(report: Report, measures: Measures) -> TrialMessage:
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


def _early_exit(report: Report, measures: Measures) -> TrialMessage:
    reason = ExitReason(report.line["reason"])
    if not (reason.invalid_hparams or reason is ExitReason.USER_REQUESTED_STOP):
        raise ValueError(reason)
    return EarlyExitReported(report.epoch, reason)


def _container(report: Report, measures: Measures) -> TrialMessage:
    state = str(report.line["state"])[:32]
    return ContainerStateReported(report.epoch, state, measures.node_rank, measures.nodes)


def _exited(report: Report, measures: Measures) -> TrialMessage:
    """An exit is heard whatever a trial has put into it: one that is not would hold its slots."""
    line = report.line
    code, revision = line.get("code"), line.get("directive_revision")
    return AllocationExited(
        epoch=report.epoch,
        reason=_text(line.get("reason"), 64) or "errored",
        code=code if _is_whole(code) else None,
        directive_revision=revision if _is_whole(revision) and revision >= 0 else 0,
        message=_text(line.get("message"), TEXT_MAX),
        node_rank=measures.node_rank,
        nodes=measures.nodes,
        notice=_text(line.get("notice"), NOTICE_CHARACTERS_MAX),
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
