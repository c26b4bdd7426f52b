"""Report lines of trials and agents, converted into messages to trials. Lines may be hostile, so
each is checked here.

The kinds of lines are in docs/trial-directory.md and docs/agent-protocol.md.
"""

import math
import re
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any, NamedTuple, TypeGuard

from pydantic_core import to_json

from control_plane.actors.messages.trial import (
    NOTICE_OUTCOMES,
    AllocationExited,
    CheckpointDamageReported,
    CheckpointReported,
    ContainerStateReported,
    EarlyExitReported,
    LengthReached,
    ProgressReported,
    TrialMessage,
    ValidationReported,
)
from control_plane.actors.records import CheckpointRef
from control_plane.searchers.method import ExitReason
from detcloud.shared.search_values import VALUE_BYTES_MAX

# The time metric that a trial need not report: it is the number of steps.
BATCHES = "batches"
TEXT_MAX = 4_000
DAMAGE_CHARACTERS_MAX = 500
# The writer of rank 0, which alone says that the trial's checkpoint is damaged.
CHIEF = "0"
NOTICE_CHARACTERS_MAX = 200
NAMES_CHARACTERS_MAX = 400
# Longer metadata are only in the checkpoint's own files.
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


class ReportContext(NamedTuple):
    """The context of an allocation's reports: the searcher's metric, its time metric ("" unless
    trials are measured by time), and the agent's rank among the allocation's nodes. The search
    `uses_progress` that trials report where no number of batches tells it. `fallbacks`: the
    checkpoints that the trial may go on from in place of the one that its reports say is damaged.
    """

    metric: str
    time_metric: str = ""
    node_rank: int = 0
    nodes: int = 1
    uses_progress: bool = False
    fallbacks: tuple[str, ...] = ()


def to_message(report: Report, context: ReportContext) -> TrialMessage | None:
    """Convert a report line into a message to its trial; None if it has none or is malformed.

    A validation without the searcher's metric is no message, unless the search also has a time
    metric and so needs both of every validation.
    """
    by_agent = report.writer == "agent"
    kind = report.line.get("kind")
    to_line_message = (
        (_AGENT_LINES if by_agent else _TRIAL_LINES).get(kind) if isinstance(kind, str) else None
    )
    if to_line_message is None:
        return None
    try:
        return to_line_message(report, context)
    except (KeyError, TypeError, ValueError, OverflowError):
        return None


def announced_checkpoint(line: Mapping[str, Any]) -> str | None:
    """The UUID of the checkpoint whose upload a line announces, None for any other line."""
    uuid = line.get("uuid")
    if line.get("kind") != "checkpoint_intent" or not isinstance(uuid, str):
        return None
    return uuid if _UUID.fullmatch(uuid) else None


def damaged_checkpoint(report: Report) -> str | None:
    """The UUID of the checkpoint that the chief reports to be damaged, None for any other line."""
    uuid = report.line.get("uuid")
    is_damage = report.writer == CHIEF and report.line.get("kind") == "checkpoint_damage"
    return uuid if is_damage and isinstance(uuid, str) and _UUID.fullmatch(uuid) else None


def trial_metadata(line: Mapping[str, Any]) -> Mapping[str, object] | None:
    """The metadata of its trial that a line reports, None for any other line and for too many."""
    if line.get("kind") != "trial_metadata" or not isinstance(line.get("metadata"), Mapping):
        return None
    metadata: Mapping[str, object] = line["metadata"]
    return metadata if _parse_metadata(metadata) or not metadata else None


def _to_validation(report: Report, context: ReportContext) -> TrialMessage | None:
    if report.line["group"] != "validation":
        return None
    metrics: Mapping[str, object] = report.line["metrics"]
    steps = _parse_count(report.line["steps_completed"])
    if context.time_metric:
        timed = _to_timed_validation(report.epoch, steps, metrics, context)
        return replace(timed, nodes=context.nodes)
    if context.metric not in metrics:
        return None
    metric = _parse_metric(metrics[context.metric])
    return ValidationReported(report.epoch, steps, metric, nodes=context.nodes)


def _to_timed_validation(
    epoch: int, steps: int, metrics: Mapping[str, object], context: ReportContext
) -> ValidationReported:
    """The message of a validation in a search that needs both metrics of every validation."""
    values: list[float | None] = []
    for name in (context.metric, context.time_metric):
        # Every report has its number of batches, as its steps.
        value = metrics.get(name, steps if name == BATCHES else None)
        try:
            values.append(_parse_metric(value))
        except ValueError:
            reason = _missing_metric_reason(
                name, metrics, "time_metric" if values else "metric", steps
            )
            return ValidationReported(epoch, steps, None, lack=reason)
    metric, time = values
    if time is None:
        reason = _missing_metric_reason(context.time_metric, metrics, "time_metric", steps)
        return ValidationReported(epoch, steps, metric, lack=reason)
    return ValidationReported(epoch, steps, metric, time)


def _missing_metric_reason(name: str, metrics: Mapping[str, object], field: str, steps: int) -> str:
    place = f"the validation at batch {steps}"
    # A metric may have a name of any length.
    shown = repr(name[:NAMES_CHARACTERS_MAX])
    if name in metrics:
        value = f"{metrics[name]!r:.80}"
        return f"{place} reports {value} as searcher.{field} {shown}: it must be one number"
    names = ", ".join(sorted(map(str, metrics)))[:NAMES_CHARACTERS_MAX] or "none"
    return f"{place} lacks searcher.{field} {shown}; it has: {names}"


def _to_progress(report: Report, context: ReportContext) -> TrialMessage | None:
    share = _parse_number(report.line["value"])
    if not context.uses_progress or not 0 <= share <= 1:
        return None
    return ProgressReported(report.epoch, share)


def _to_length_reached(report: Report, context: ReportContext) -> TrialMessage:
    length, metric = _parse_count(report.line["length"]), report.line["metric"]
    if metric is None and "value" in report.line:
        return _to_value_reported(report.epoch, length, report.line["value"], context)
    if metric is None:
        reason = _parse_text(report.line["message"], TEXT_MAX) or "the searcher's metric is missing"
        return LengthReached(report.epoch, length, None, reason)
    return LengthReached(report.epoch, length, _parse_metric(metric))


def _to_value_reported(
    epoch: int, length: int, value: object, context: ReportContext
) -> LengthReached:
    """The message of a length whose value is not one number; the searcher's metric in it counts."""
    text = to_json(value).decode()
    if len(text) > VALUE_BYTES_MAX:
        raise ValueError(text[:NAMES_CHARACTERS_MAX])
    metric = value.get(context.metric) if isinstance(value, Mapping) else None
    try:
        return LengthReached(epoch, length, _parse_metric(metric), value=text)
    except ValueError:
        return LengthReached(epoch, length, None, value=text)


def _to_checkpoint(report: Report, context: ReportContext) -> TrialMessage:
    line = report.line
    uuid = _parse_pattern(_UUID, line["uuid"])
    # EXPERIMENT/TRIAL/EPOCH/UUID: a trial names only what it wrote itself.
    own_path = re.compile(rf"[1-9][0-9]*/{report.trial_id}/{report.epoch}/{uuid}")
    reference = CheckpointRef(
        uuid=uuid,
        trial_id=report.trial_id,
        steps_completed=_parse_count(line["steps_completed"]),
        path=_parse_pattern(own_path, line["path"]),
        manifest_sha256=_parse_pattern(_SHA256, line["manifest_sha256"]),
    )
    size, files = _parse_count(line["size_bytes"]), _parse_count(line["files"])
    metadata = _parse_metadata(line.get("metadata"))
    metric = None if line.get("metric") is None else _parse_metric(line["metric"])
    return CheckpointReported(report.epoch, reference, size, files, metadata, metric)


def _parse_metadata(value: object) -> Mapping[str, object]:
    if not isinstance(value, Mapping):
        return {}
    try:
        return value if len(to_json(value)) <= METADATA_BYTES_MAX else {}
    except ValueError:
        return {}


def _to_checkpoint_damage(report: Report, context: ReportContext) -> TrialMessage | None:
    uuid = damaged_checkpoint(report)
    if uuid is None:
        return None
    cause = _parse_text(report.line.get("message"), DAMAGE_CHARACTERS_MAX) or "no cause was given"
    return CheckpointDamageReported(report.epoch, uuid, cause, context.fallbacks)


def _to_early_exit(report: Report, context: ReportContext) -> TrialMessage:
    reason = ExitReason(report.line["reason"])
    if not (reason.is_invalid_hparams or reason is ExitReason.USER_REQUESTED_STOP):
        raise ValueError(reason)
    return EarlyExitReported(report.epoch, reason)


def _to_container_state(report: Report, context: ReportContext) -> TrialMessage:
    state = str(report.line["state"])[:32]
    return ContainerStateReported(report.epoch, state, context.node_rank, context.nodes)


def _to_exit(report: Report, context: ReportContext) -> TrialMessage:
    """Convert an `exit` line into its message, even if the line is malformed: an exit that was
    dropped would leave the trial's slots allocated.
    """
    line = report.line
    code, revision = line.get("code"), line.get("directive_revision")
    outcome = _parse_text(line.get("notice_outcome"), 64)
    return AllocationExited(
        epoch=report.epoch,
        reason=_parse_text(line.get("reason"), 64) or "errored",
        code=code if _is_whole(code) else None,
        directive_revision=revision if _is_whole(revision) and revision >= 0 else 0,
        message=_parse_text(line.get("message"), TEXT_MAX),
        node_rank=context.node_rank,
        nodes=context.nodes,
        notice=_parse_text(line.get("notice"), NOTICE_CHARACTERS_MAX),
        notice_outcome=outcome if outcome in NOTICE_OUTCOMES else "",
    )


_TRIAL_LINES = {
    "metrics": _to_validation,
    "progress": _to_progress,
    "completed": _to_length_reached,
    "checkpoint": _to_checkpoint,
    "checkpoint_damage": _to_checkpoint_damage,
    "early_exit": _to_early_exit,
}
_AGENT_LINES = {"container": _to_container_state, "exited": _to_exit}


def _is_whole(value: object) -> TypeGuard[int]:
    return isinstance(value, int) and not isinstance(value, bool) and abs(value) < 1 << 53


def _parse_text(value: object, characters_max: int) -> str:
    return value[:characters_max] if isinstance(value, str) else ""


def _parse_count(value: object) -> int:
    if not _is_whole(value) or value < 0:
        raise ValueError(value)
    return value


def _parse_metric(value: object) -> float | None:
    """Parse a metric; None for NaN and the infinities, which are reported by name."""
    return None if value in ("NaN", "Infinity", "-Infinity") else _parse_number(value)


def _parse_number(value: object) -> float:
    if isinstance(value, bool) or not isinstance(value, int | float) or not math.isfinite(value):
        raise ValueError(value)
    return float(value)


def _parse_pattern(pattern: re.Pattern[str], value: object) -> str:
    if not isinstance(value, str) or not pattern.fullmatch(value):
        raise ValueError(value)
    return value
