"""Conversion of report lines of trials and agents into messages to trials.

User code writes the lines, so every line may be malformed or hostile and is checked here. The kinds
of lines are described in docs/trial-directory.md and docs/agent-protocol.md.
"""

import re
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass, replace
from typing import Any, NamedTuple

from pydantic_core import to_json

from control_plane.actors.messages.trial import (
    FIRST_STEP,
    IDLE_TIMEOUT,
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
from control_plane.actors.messages.trial_alerts import AlertReported
from control_plane.actors.messages.trial_logs import LOG_ACTIONS, LogPolicyMatched
from control_plane.actors.records import CheckpointRef
from control_plane.actors.replacement import REASON_CHARACTERS_MAX, REPORTED_DURATIONS
from control_plane.agents.gang_checks import to_gang_check, to_gang_meeting
from control_plane.agents.hang_reports import to_hang, to_stacks
from control_plane.agents.report_values import (
    is_whole,
    parse_count,
    parse_fingerprint,
    parse_metric,
    parse_number,
    parse_pattern,
    parse_text,
)
from control_plane.agents.use_reports import to_low_use, to_use
from control_plane.config.log_policies import NAME_CHARACTERS_MAX
from control_plane.searchers.method import ExitReason
from detcloud.shared.line_patterns.syntax import PATTERN_CHARACTERS_MAX
from detcloud.shared.search_values import VALUE_BYTES_MAX

BATCHES = "batches"
"""The time metric that trials need not report: its value is the number of completed steps."""
TEXT_MAX = 4_000
"""The characters of a message that are kept."""
DAMAGE_CHARACTERS_MAX = 500
"""The characters of a damage's cause that are kept."""
CHIEF = "0"
"""The writer of rank 0. Reports of damaged checkpoints count only from the chief."""
_LOAD_FAILURE = "checkpoint_load_failure"
_UNUSABLE_KINDS = ("checkpoint_damage", _LOAD_FAILURE)
"""The kinds of lines after which a trial may resume from an older checkpoint."""
ALERT_LEVELS = ("debug", "info", "warn", "error")
"""The levels of alerts."""
ALERT_CHARACTERS_MAX = 300
"""The characters of an alert's title that are kept."""
NOTICE_CHARACTERS_MAX = 200
"""The characters of an interruption notice that are kept."""
LOG_LINE_CHARACTERS_MAX = 200
"""The characters of a line that matched a log policy that are kept."""
NAMES_CHARACTERS_MAX = 400
"""The characters of metric names and values that an error quotes."""
VALUES_MAX = 16
"""The most metrics of a validation, besides the searcher metric, that lists of experiments show."""
VALUE_NAME_CHARACTERS_MAX = 100
"""The most characters of the name of such a metric."""
METADATA_BYTES_MAX = 16 * 1024
"""The size up to which metadata are stored. Longer metadata of checkpoints stay in their files."""
_UUID = re.compile(r"[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}")
_SHA256 = re.compile(r"[0-9a-f]{64}")


@dataclass(frozen=True, slots=True)
class Report:
    """A line that a writer of an allocation reported."""

    trial_id: int
    epoch: int
    """The epoch of the allocation: the allocation's number within the trial."""
    writer: str
    """The rank of the process, or "agent"."""
    offset: int
    """The offset of the byte after the line's newline."""
    line: Mapping[str, Any]
    """The fields of the line. `kind` names the kind of line."""


class ReportContext(NamedTuple):
    """The facts about an allocation that decide how reports are converted."""

    metric: str
    """The name of the searcher metric."""
    time_metric: str = ""
    """The name of the search's time metric, or "" if trials are not measured by time."""
    node_rank: int = 0
    """The rank of the agent among the allocation's nodes."""
    nodes: int = 1
    """The number of the allocation's nodes."""
    uses_progress: bool = False
    """Whether the search uses reported progress, because lengths in batches are unknown."""
    fallbacks: tuple[str, ...] = ()
    """The UUIDs of checkpoints that can replace the one reported as damaged."""


def to_message(report: Report, context: ReportContext) -> TrialMessage | None:
    """Convert a report line into a message to the trial.

    Return None if the line is malformed, of an unknown kind, or needs no message. Lines of kinds
    that only the agent may write count only from the agent, and the other kinds only from trials. A
    validation without the searcher metric needs no message, unless the search has a time metric:
    then the message names the missing metric.
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
    """Return the UUID of the checkpoint that a line announces before the upload.

    Return None for other lines, and for a text that is not a UUID in lower case.
    """
    uuid = line.get("uuid")
    if line.get("kind") != "checkpoint_intent" or not isinstance(uuid, str):
        return None
    return uuid if _UUID.fullmatch(uuid) else None


def damaged_checkpoint(report: Report) -> str | None:
    """Return the UUID of the checkpoint that the chief reports as damaged or not loadable.

    The chief is the process of rank 0. Return None for other lines, other writers and invalid
    UUIDs.
    """
    uuid = report.line.get("uuid")
    is_damage = report.writer == CHIEF and report.line.get("kind") in _UNUSABLE_KINDS
    return uuid if is_damage and isinstance(uuid, str) and _UUID.fullmatch(uuid) else None


def trial_metadata(line: Mapping[str, Any]) -> Mapping[str, object] | None:
    """Return the trial metadata that a line reports, which may be empty.

    Return None for other lines, for metadata that are no mapping, and for metadata above
    `METADATA_BYTES_MAX`.
    """
    if line.get("kind") != "trial_metadata" or not isinstance(line.get("metadata"), Mapping):
        return None
    metadata: Mapping[str, object] = line["metadata"]
    return metadata if _parse_metadata(metadata) or not metadata else None


def _to_validation(report: Report, context: ReportContext) -> TrialMessage | None:
    """Convert a `metrics` line.

    Return None for training metrics. Without a time metric in the search, also return None if the
    searcher metric is missing. A searcher metric that is not finite is reported as None. With a
    time metric, `_to_timed_validation` converts the metrics. Raises KeyError, TypeError or
    ValueError for a malformed line.
    """
    if report.line["group"] != "validation":
        return None
    metrics: Mapping[str, object] = report.line["metrics"]
    steps = parse_count(report.line["steps_completed"])
    if context.time_metric:
        timed = _to_timed_validation(report.epoch, steps, metrics, context)
        values = {} if timed.metric is None else _other_values(metrics, context.metric)
        return replace(timed, nodes=context.nodes, values=values)
    if context.metric not in metrics:
        return None
    metric = parse_metric(metrics[context.metric])
    values = _other_values(metrics, context.metric)
    return ValidationReported(report.epoch, steps, metric, nodes=context.nodes, values=values)


def _other_values(metrics: Mapping[str, object], searcher_metric: str) -> dict[str, float]:
    """Return the first VALUES_MAX finite numbers by name, without the searcher metric.

    Names longer than VALUE_NAME_CHARACTERS_MAX are left out.
    """
    values: dict[str, float] = {}
    for name in sorted(metrics.keys() - {searcher_metric}):
        if len(values) == VALUES_MAX:
            break
        with suppress(ValueError, OverflowError):
            number = parse_number(metrics[name])
            if len(name) <= VALUE_NAME_CHARACTERS_MAX:
                values[name] = number
    return values


def _to_timed_validation(
    epoch: int, steps: int, metrics: Mapping[str, object], context: ReportContext
) -> ValidationReported:
    """Return the message of a validation in a search with a time metric.

    - If a metric is missing or not a number, the message has the reason and no metric.
    - If the time metric is not finite, the message has the reason and the searcher metric.
    - If only the searcher metric is not finite, the metric is None, and no reason is added.

    An unreported metric named "batches" has the value `steps`. The texts `NaN`, `Infinity` and
    `-Infinity` and too large integers are not finite. The floats NaN and infinity are not numbers.
    """
    values: list[float | None] = []
    for name in (context.metric, context.time_metric):
        # `steps_completed` is the number of batches, so "batches" need not be reported.
        value = metrics.get(name, steps if name == BATCHES else None)
        try:
            values.append(parse_metric(value))
        except ValueError:
            reason = _missing_metric_reason(
                name, metrics, "time_metric" if values else "metric", steps
            )
            return ValidationReported(epoch, steps, None, missing_metric_reason=reason)
    metric, time = values
    if time is None:
        reason = _missing_metric_reason(context.time_metric, metrics, "time_metric", steps)
        return ValidationReported(epoch, steps, metric, missing_metric_reason=reason)
    return ValidationReported(epoch, steps, metric, time)


def _missing_metric_reason(name: str, metrics: Mapping[str, object], field: str, steps: int) -> str:
    """Return a sentence for users about a metric that is missing or not a number.

    The sentence names the batch and the setting. It contains the value of a metric that is not a
    number, or else the names of the reported metrics, cut to a few hundred characters.

    Args:
        name: the name of the metric.
        metrics: the reported metrics.
        field: the setting in `searcher` that names the metric.
        steps: the batch of the validation.
    """
    place = f"the validation at batch {steps}"
    # A metric's name may have any length.
    shown = repr(name[:NAMES_CHARACTERS_MAX])
    if name in metrics:
        value = f"{metrics[name]!r:.80}"
        return f"{place} reports {value} as searcher.{field} {shown}: it must be one number"
    names = ", ".join(sorted(map(str, metrics)))[:NAMES_CHARACTERS_MAX] or "none"
    return f"{place} lacks searcher.{field} {shown}; it has: {names}"


def _to_progress(report: Report, context: ReportContext) -> TrialMessage | None:
    """Convert a `progress` line into a message with the share of the training that is done.

    Return None if the search does not use progress or the value is not from 0 to 1. Raises
    KeyError, ValueError or OverflowError for a value that is not a finite number.
    """
    share = parse_number(report.line["value"])
    if not context.uses_progress or not 0 <= share <= 1:
        return None
    return ProgressReported(report.epoch, share)


def _to_length_reached(report: Report, context: ReportContext) -> TrialMessage:
    """Convert a `completed` line: a metric, another value, or a message about a missing metric.

    A metric that is not finite becomes None. Raises KeyError or ValueError for a malformed line.
    """
    length, metric = parse_count(report.line["length"]), report.line["metric"]
    if metric is None and "value" in report.line:
        return _to_value_reported(report.epoch, length, report.line["value"], context)
    if metric is None:
        reason = parse_text(report.line["message"], TEXT_MAX) or "the searcher's metric is missing"
        return LengthReached(report.epoch, length, None, reason)
    return LengthReached(report.epoch, length, parse_metric(metric))


def _to_value_reported(
    epoch: int, length: int, value: object, context: ReportContext
) -> LengthReached:
    """Return the message of a reached length with a reported value that is not a plain number.

    The message contains the value as JSON. If the value is a mapping with a valid searcher metric,
    the message also contains that metric. Raises ValueError for a value above `VALUE_BYTES_MAX`.
    """
    text = to_json(value).decode()
    if len(text) > VALUE_BYTES_MAX:
        raise ValueError(text[:NAMES_CHARACTERS_MAX])
    metric = value.get(context.metric) if isinstance(value, Mapping) else None
    try:
        return LengthReached(epoch, length, parse_metric(metric), value=text)
    except ValueError:
        return LengthReached(epoch, length, None, value=text)


def _to_checkpoint(report: Report, context: ReportContext) -> TrialMessage:
    """Convert a `checkpoint` line into a message that the allocation wrote a complete checkpoint.

    Metadata that is no mapping or too large becomes empty. Raises KeyError for a missing field,
    except the optional `metadata` and `metric`. Raises ValueError for any other invalid field, and
    for a path other than EXPERIMENT/TRIAL/EPOCH/UUID of the allocation.
    """
    line = report.line
    uuid = parse_pattern(_UUID, line["uuid"])
    # EXPERIMENT/TRIAL/EPOCH/UUID: an allocation may only report checkpoints of its own epoch.
    own_path = re.compile(rf"[1-9][0-9]*/{report.trial_id}/{report.epoch}/{uuid}")
    reference = CheckpointRef(
        uuid=uuid,
        trial_id=report.trial_id,
        steps_completed=parse_count(line["steps_completed"]),
        path=parse_pattern(own_path, line["path"]),
        manifest_sha256=parse_pattern(_SHA256, line["manifest_sha256"]),
    )
    size, files = parse_count(line["size_bytes"]), parse_count(line["files"])
    metadata = _parse_metadata(line.get("metadata"))
    metric = None if line.get("metric") is None else parse_metric(line["metric"])
    return CheckpointReported(report.epoch, reference, size, files, metadata, metric)


def _parse_metadata(value: object) -> Mapping[str, object]:
    """Return the metadata, or {} if the value is no mapping, too large or cannot be encoded as
    JSON.
    """
    if not isinstance(value, Mapping):
        return {}
    try:
        return value if len(to_json(value)) <= METADATA_BYTES_MAX else {}
    except ValueError:
        return {}


def _to_checkpoint_damage(report: Report, context: ReportContext) -> TrialMessage | None:
    """Convert a report of an unusable checkpoint into a message with cause and fallbacks.

    Return None unless the chief wrote the line with a valid UUID.
    """
    uuid = damaged_checkpoint(report)
    if uuid is None:
        return None
    cause = parse_text(report.line.get("message"), DAMAGE_CHARACTERS_MAX) or "no cause was given"
    is_load_failure = report.line["kind"] == _LOAD_FAILURE
    return CheckpointDamageReported(report.epoch, uuid, cause, context.fallbacks, is_load_failure)


def _to_early_exit(report: Report, context: ReportContext) -> TrialMessage:
    """Convert an `early_exit` line: the code refuses the hyperparameters or asks to stop.

    Raises ValueError for reasons that user code cannot request, and KeyError without a reason.
    """
    reason = ExitReason(report.line["reason"])
    if not (reason.is_invalid_hparams or reason is ExitReason.USER_REQUESTED_STOP):
        raise ValueError(reason)
    return EarlyExitReported(report.epoch, reason)


def _to_alert(report: Report, context: ReportContext) -> TrialMessage | None:
    """Convert an `alert` line. Texts are cut to ALERT_CHARACTERS_MAX and TEXT_MAX.

    Return None for an unknown level, and without a text.
    """
    title = parse_text(report.line.get("title"), ALERT_CHARACTERS_MAX)
    text = parse_text(report.line.get("description"), TEXT_MAX)
    level = report.line["level"]
    if level not in ALERT_LEVELS or not (title or text):
        return None
    return AlertReported(report.epoch, title, text, level)


def _to_container_state(report: Report, context: ReportContext) -> TrialMessage:
    """Convert the agent's line about the state of an allocation's container.

    The state is cut to 32 characters, and the failure of an early pull to REASON_CHARACTERS_MAX.
    Raises KeyError without a state.
    """
    state = str(report.line["state"])[:32]
    durations = _parse_durations(report.line)
    failure = parse_text(report.line.get("early_pull_failure"), REASON_CHARACTERS_MAX) or ""
    return ContainerStateReported(
        report.epoch, state, context.node_rank, context.nodes, durations, failure
    )


def _to_first_step(report: Report, context: ReportContext) -> TrialMessage | None:
    """Convert the chief's line about the first step. Return None for another process."""
    if report.writer != CHIEF:
        return None
    durations = _parse_durations(report.line)
    return ContainerStateReported(
        report.epoch, FIRST_STEP, context.node_rank, context.nodes, durations
    )


def _parse_durations(line: Mapping[str, Any]) -> Mapping[str, int]:
    """Return the line's known durations in ms by name. Other names and invalid values are left
    out, because a duration that is not known must not end a run.
    """
    durations = line.get("durations_ms")
    if not isinstance(durations, Mapping):
        return {}
    return {
        str(name): value
        for name in sorted(REPORTED_DURATIONS)
        if is_whole(value := durations.get(name)) and value >= 0
    }


def _to_exit(report: Report, context: ReportContext) -> TrialMessage:
    """Convert the agent's `exited` line into a message, even if the line is malformed.

    Without the message, the trial would keep its slots forever. A missing reason becomes "errored",
    and other invalid fields get their defaults.
    """
    line = report.line
    code, revision = line.get("code"), line.get("directive_revision")
    outcome = parse_text(line.get("notice_outcome"), 64)
    age_ms = line.get("notice_age_ms")
    return AllocationExited(
        epoch=report.epoch,
        reason=parse_text(line.get("reason"), 64) or "errored",
        code=code if is_whole(code) else None,
        directive_revision=revision if is_whole(revision) and revision >= 0 else 0,
        message=parse_text(line.get("message"), TEXT_MAX),
        node_rank=context.node_rank,
        nodes=context.nodes,
        notice=parse_text(line.get("notice"), NOTICE_CHARACTERS_MAX),
        notice_outcome=outcome if outcome in NOTICE_OUTCOMES else "",
        is_permanent=line.get("lasting") is True,
        notice_age_ms=age_ms if is_whole(age_ms) and age_ms >= 0 else 0,
        limit=IDLE_TIMEOUT if line.get("limit") == IDLE_TIMEOUT else "",
        fingerprint=parse_fingerprint(line.get("fingerprint")),
    )


def _to_log_match(report: Report, context: ReportContext) -> TrialMessage:
    """Convert the agent's `log_policy` line. Texts are cut, and unknown actions are left out.

    Raises KeyError without a pattern.
    """
    line = report.line
    actions, rank = line.get("actions"), line.get("rank")
    listed = actions if isinstance(actions, list) else []
    return LogPolicyMatched(
        epoch=report.epoch,
        pattern=parse_text(line["pattern"], PATTERN_CHARACTERS_MAX),
        line=parse_text(line.get("line"), LOG_LINE_CHARACTERS_MAX),
        name=parse_text(line.get("name"), NAME_CHARACTERS_MAX),
        actions=tuple(action for action in LOG_ACTIONS if action in listed),
        signal=parse_text(line.get("signal"), NAME_CHARACTERS_MAX),
        webhook=parse_text(line.get("webhook"), NAME_CHARACTERS_MAX),
        rank=rank if is_whole(rank) and rank >= 0 else 0,
        node_rank=context.node_rank,
    )


def _to_gang_check(report: Report, context: ReportContext) -> TrialMessage | None:
    """Convert a `gang_check` line of the chief. Return None for other writers and other errors."""
    return to_gang_check(report.epoch, report.line) if report.writer == CHIEF else None


def _to_gang_meeting(report: Report, context: ReportContext) -> TrialMessage | None:
    """Convert a `gang_meeting` line of any node. The node's rank is known from the assignment."""
    return to_gang_meeting(report.epoch, context.node_rank, report.line)


_TRIAL_LINES = {
    "metrics": _to_validation,
    "progress": _to_progress,
    "completed": _to_length_reached,
    "checkpoint": _to_checkpoint,
    "checkpoint_damage": _to_checkpoint_damage,
    _LOAD_FAILURE: _to_checkpoint_damage,
    "early_exit": _to_early_exit,
    "alert": _to_alert,
    "first_step": _to_first_step,
    "gang_check": _to_gang_check,
    "gang_meeting": _to_gang_meeting,
}
_AGENT_LINES = {
    "container": _to_container_state,
    "exited": _to_exit,
    "log_policy": _to_log_match,
    "hang": lambda report, _: to_hang(report.epoch, report.line),
    "use": lambda report, context: to_use(report.epoch, context.node_rank, report.line),
    "low_use": lambda report, context: to_low_use(report.epoch, context.node_rank, report.line),
    "stacks": lambda report, _: to_stacks(report.epoch, report.line),
}
