"""Schedules of experiments: the stored rows and the answers of the API."""

from collections.abc import Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import NamedTuple

from control_plane.config.problems import ConfigInvalid
from control_plane.config.template import masked_template
from control_plane.errors import Code, RequestError
from control_plane.queries.answer import Answer
from control_plane.rows import user_rows
from control_plane.rows.json_codec import JsonCodec
from control_plane.state.table import Key, StateTable
from detcloud.shared.masking import MASK

SCHEDULES = user_rows.SCHEDULE.partition


class RunOutcome(StrEnum):
    """The outcome of a time of a schedule."""

    SUBMITTED = "submitted"
    """An experiment was submitted."""
    SKIPPED = "skipped"
    """The schedule's last experiment had not ended."""
    REFUSED = "refused"
    """The cluster refused the submission."""
    MISSED = "missed"
    """The cluster did not process the time for LATE_MS_MAX (usecases/scheduled_runs.py)."""


class ScheduledRun(NamedTuple):
    """A run of a schedule. A newer release may append fields with defaults."""

    time_ms: int
    """The time in epoch ms: a time of the schedule, or the time of the request to run now."""
    outcome: str
    """A value of RunOutcome."""
    experiment_id: int | None = None
    """The submitted experiment. None for other outcomes."""
    text: str = ""
    """The reason, for users. For a submitted experiment a warning of the submission, or ""."""


def _parse_runs(values: Sequence[Sequence[object]]) -> tuple[ScheduledRun, ...]:
    known = len(ScheduledRun._fields)
    return tuple(ScheduledRun(*value[:known]) for value in values)  # type: ignore[arg-type]


@dataclass(frozen=True)
class ScheduleRecord:
    """The stored row of a schedule."""

    id: int
    name: str
    """The beginning of the experiments' name or description, at the creation of the schedule."""
    user: str
    """The user who created the schedule. The user owns the schedule and the experiments."""
    cron: str
    time_zone: str
    overlap: str
    """`skip` or `allow`, as in the configuration."""
    catch_up: bool
    created_ms: int
    next_ms: int | None
    """The next time in epoch ms. None: the schedule is paused."""
    last_experiment_id: int | None = None
    """The last experiment that the schedule submitted, or None."""
    runs: tuple[ScheduledRun, ...] = ()
    """The last RUNS_KEPT runs, the newest first."""


@dataclass(frozen=True)
class ScheduledSubmission:
    """The stored submission of a schedule."""

    config: str
    """The text of the configuration, secrets included."""
    model_code: str
    """The SHA-256 of the uploaded model code."""
    template: str | None = None
    """The name of a template. Each run reads the template again."""
    overrides: tuple[str, ...] = ()
    """Values that override the configuration, as `path=value`."""


class ScheduledRunView(Answer):
    """A run of a schedule."""

    time_ms: int
    outcome: str
    experiment_id: int | None
    text: str


class Schedule(Answer):
    """A schedule with the last runs, the newest first. `next_ms` is null if it is paused."""

    id: int
    name: str
    user: str
    cron: str
    time_zone: str
    overlap: str
    catch_up: bool
    paused: bool
    created_ms: int
    next_ms: int | None
    last_experiment_id: int | None
    runs: list[ScheduledRunView]


class ScheduleWithConfig(Schedule):
    """A schedule with the submitted configuration, secrets masked. `overridden` has the paths of
    overrides.
    """

    config: str
    template: str | None
    overridden: list[str]
    code_sha256: str


SCHEDULE_CODEC = JsonCodec(
    user_rows.SCHEDULE, ScheduleRecord, {"runs": _parse_runs}, ensure_ascii=False
)
SUBMISSION_CODEC = JsonCodec(
    user_rows.SCHEDULED_SUBMISSION, ScheduledSubmission, {"overrides": tuple}, ensure_ascii=False
)


def schedule_key(schedule_id: int) -> Key:
    """Return the key of a schedule's row."""
    return Key(SCHEDULES, f"{schedule_id:012d}")


def submission_key(schedule_id: int) -> Key:
    """Return the key of the row with a schedule's submission."""
    return Key(user_rows.SCHEDULED_SUBMISSION.partition, f"{schedule_id:012d}")


def time_key(schedule_id: int) -> Key:
    """Return the key of a schedule's entry in the due index."""
    return Key(user_rows.SCHEDULE_TIME.partition_of(str(schedule_id)), user_rows.SCHEDULE_TIME.sort)


def missing_schedule_error(schedule_id: int) -> RequestError:
    """Return RequestError not_found for a schedule that does not exist; raise nothing."""
    return RequestError(Code.NOT_FOUND, f"there is no schedule {schedule_id}")


def schedule_answer(record: ScheduleRecord) -> Schedule:
    """Return a schedule as an answer. Nothing is read."""
    return Schedule(
        id=record.id,
        name=record.name,
        user=record.user,
        cron=record.cron,
        time_zone=record.time_zone,
        overlap=record.overlap,
        catch_up=record.catch_up,
        paused=record.next_ms is None,
        created_ms=record.created_ms,
        next_ms=record.next_ms,
        last_experiment_id=record.last_experiment_id,
        runs=[ScheduledRunView(**run._asdict()) for run in record.runs],
    )


def describe_schedule(table: StateTable, schedule_id: int) -> ScheduleWithConfig:
    """Return a schedule with the submission. Secrets of the configuration are masked.

    Raises:
        RequestError: not_found, if the schedule does not exist.
    """
    rows = table.get_many([schedule_key(schedule_id), submission_key(schedule_id)])
    row, submission_row = rows
    if row is None or submission_row is None:
        raise missing_schedule_error(schedule_id)
    submission = SUBMISSION_CODEC.decode(submission_row.body)
    return ScheduleWithConfig(
        **schedule_answer(SCHEDULE_CODEC.decode(row.body)).model_dump(),
        config=_masked_config(submission.config),
        template=submission.template,
        overridden=[override.partition("=")[0] for override in submission.overrides],
        code_sha256=submission.model_code,
    )


def _masked_config(text: str) -> str:
    """Return a configuration with masked secrets. Return a mask for a text that is not readable."""
    try:
        return masked_template(text)
    except ConfigInvalid:
        return MASK
