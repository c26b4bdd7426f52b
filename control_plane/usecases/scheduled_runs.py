"""Runs of schedules: the tick submits an experiment at each time, and users at any moment.

A run is a single commit: the experiment, the counter of ids, and the schedule's record with the
next time. The record's revision is a condition of the commit. If several processes run an equal
time, a single commit succeeds. A crash before the commit leaves the time to the next tick.
"""

import logging
from dataclasses import replace
from itertools import islice, takewhile
from typing import NamedTuple

from control_plane.access.principals import Principal, Role
from control_plane.actors.records import JobKind
from control_plane.cron_times import CronTimes
from control_plane.errors import Code, RequestError
from control_plane.queries.schedules import (
    SCHEDULE_CODEC,
    SUBMISSION_CODEC,
    RunOutcome,
    ScheduledRun,
    ScheduleRecord,
    missing_schedule_error,
    schedule_key,
    submission_key,
    time_key,
)
from control_plane.rows.user_rows import SCHEDULE_TIME
from control_plane.services import Services
from control_plane.state.table import Check, Conflict, Delete, Expect, Row, TableError
from control_plane.usecases.schedules import ScheduleExtraWrites, schedule_writes
from control_plane.usecases.submission import Submission, check_submission, submit_experiment

log = logging.getLogger(__name__)

LATE_MS_MAX = 10 * 60_000
"""The delay up to which a time is processed as usual. A time with a longer delay is missed."""
GIVE_UP_MS = 2 * 60_000
"""The time before LATE_MS_MAX at which a submission that keeps failing is given up."""
FAILED_TEXT = "the submission failed inside the cluster; its log has the error"
RUNS_KEPT = 20
"""The number of runs that a schedule's record keeps."""
REASON_CHARACTERS_MAX = 500
"""The most characters of a stored reason."""
MISSED_COUNTED_MAX = 1_000
"""The most missed times that are counted."""
_TRIES_MAX = 10


class DueTimes(NamedTuple):
    """The times of a schedule that have passed since the last run."""

    run_ms: int | None
    """The time to run, in epoch ms. None: all times are missed."""
    missed: int
    """The number of missed times, at most MISSED_COUNTED_MAX."""
    next_ms: int
    """The first time after now."""


def find_due_times(record: ScheduleRecord, now_ms: int) -> DueTimes:
    """Return the time to run, the number of missed times, and the next time of a due schedule.

    The last passed time runs if it is at most LATE_MS_MAX ago, or if the schedule catches up. All
    other passed times are missed. `record.next_ms` is at most `now_ms`.
    """
    assert record.next_ms is not None
    times = CronTimes(record.cron, record.time_zone)
    # The stored time counts, even if a newer version of the time zone has moved the time.
    later = takewhile(lambda time_ms: time_ms <= now_ms, times.times_after(record.next_ms))
    passed = [record.next_ms, *islice(later, MISSED_COUNTED_MAX)]
    # After a long pause of the tick, the count ends before the last time.
    recent_ms = max(passed[-1], now_ms - LATE_MS_MAX - 1)
    recent = takewhile(lambda time_ms: time_ms <= now_ms, times.times_after(recent_ms))
    *_, last_ms = passed[-1], *recent
    next_ms = times.next_time(now_ms)
    if now_ms - last_ms <= LATE_MS_MAX or record.catch_up:
        return DueTimes(last_ms, len(passed) - 1, next_ms)
    return DueTimes(None, min(len(passed), MISSED_COUNTED_MAX), next_ms)


def run_due_schedule(services: Services, partition: str) -> None:
    """Submit the experiment of a due schedule, or record why no experiment was submitted.

    `partition` is the partition of the schedule's entry in the due index. The schedule continues
    with the next time after each outcome. An entry that is due too early is postponed, and an entry
    without an active schedule is deleted.

    Raises:
        RequestError: unavailable, if the experiment or the schedule changes too fast. The time
            stays due.
        TableError: the state table failed. The time stays due, unless the commit happened.
    """
    schedule_id = int(partition.removeprefix(SCHEDULE_TIME.partition))
    for _ in range(_TRIES_MAX):
        try:
            _run_once(services, schedule_id)
        except Conflict as conflict:
            log.info("schedule %d was changed during a run: %s", schedule_id, conflict)
        else:
            return
    raise RequestError(Code.UNAVAILABLE, f"schedule {schedule_id} changes too fast; try again")


def run_schedule_now(
    services: Services, schedule_id: int, extra_writes: ScheduleExtraWrites
) -> ScheduleRecord:
    """Submit an experiment of an active or paused schedule at once; return the schedule.

    The next time stays. The overlap is not checked.

    Raises:
        RequestError: not_found, if the schedule does not exist; unavailable, if the schedule
            changes too fast; any error of a submission.
        Conflict: the condition of an extra write does not hold; nothing was written.
    """
    for _ in range(_TRIES_MAX):
        row = services.table.get(schedule_key(schedule_id))
        if row is None:
            raise missing_schedule_error(schedule_id)
        record = SCHEDULE_CODEC.decode(row.body)
        try:
            return _submit(services, row, record, services.now_ms(), extra_writes)
        except Conflict as conflict:
            if conflict.key != row.key:
                raise
    raise RequestError(Code.UNAVAILABLE, f"schedule {schedule_id} changes too fast; try again")


def _run_once(services: Services, schedule_id: int) -> None:
    """Process the due entry of a schedule as `run_due_schedule` does.

    Raises:
        Conflict: another process changed the schedule in the meantime; nothing was written.
    """
    table, now_ms = services.table, services.now_ms()
    row = table.get(schedule_key(schedule_id))
    record = None if row is None else SCHEDULE_CODEC.decode(row.body)
    if row is None or record is None or record.next_ms is None:
        entry = table.get(time_key(schedule_id))
        if entry is not None:
            # The schedule may have been activated after it was read.
            is_same = Check(
                schedule_key(schedule_id), Expect.ABSENT if row is None else row.revision
            )
            table.commit([Delete(entry.key, entry.revision), is_same])
        return
    if record.next_ms > now_ms:
        table.commit(schedule_writes(record, row, now_ms))
        return
    due = find_due_times(record, now_ms)
    missed_from_ms = record.next_ms
    record = replace(record, next_ms=due.next_ms)
    if due.missed:
        record = _with_run(record, _missed_run(due.missed, missed_from_ms))
        log.warning("schedule %d of %s missed %d times", record.id, record.user, due.missed)
    if due.run_ms is None:
        table.commit(schedule_writes(record, row, now_ms))
        return
    busy_id = _find_busy_experiment(services, record)
    if busy_id is not None:
        text = f"experiment {busy_id} had not ended"
        run = ScheduledRun(due.run_ms, RunOutcome.SKIPPED, text=text)
        table.commit(schedule_writes(_with_run(record, run), row, now_ms))
        return
    text = _find_refusal(services, row, record, due.run_ms)
    if text:
        run = ScheduledRun(due.run_ms, RunOutcome.REFUSED, text=text)
        table.commit(schedule_writes(_with_run(record, run), row, now_ms))


def _find_refusal(services: Services, row: Row, record: ScheduleRecord, time_ms: int) -> str:
    """Submit the experiment of a time. Return the reason of a refusal, or "" after a submission.

    An unexpected error is raised, so that the next tick tries again. Shortly before the time counts
    as missed, the error is logged and becomes a refusal.

    Raises:
        Conflict: another process changed the schedule in the meantime; nothing was written.
    """
    try:
        _submit(services, row, record, time_ms, lambda record: ())
    except RequestError as refusal:
        if refusal.code is Code.UNAVAILABLE:
            raise
        log.warning("schedule %d of %s: the submission was refused", record.id, record.user)
        return _reason_of(refusal)[:REASON_CHARACTERS_MAX] or FAILED_TEXT
    except (TableError, Conflict):
        raise
    except Exception:
        if services.now_ms() - time_ms < LATE_MS_MAX - GIVE_UP_MS:
            raise
        log.exception("schedule %d of %s cannot be submitted", record.id, record.user)
        return FAILED_TEXT
    return ""


def _submit(
    services: Services,
    row: Row,
    record: ScheduleRecord,
    time_ms: int,
    extra_writes: ScheduleExtraWrites,
) -> ScheduleRecord:
    """Check the schedule's submission and submit the experiment; return the changed schedule.

    The experiment belongs to the schedule's owner. The check has the permissions of a user, also if
    the owner is an admin. The commit stores `record` with the run in place of `row`.

    Raises:
        RequestError: any error of `check_submission` and `submit_experiment`.
        Conflict: another process changed the schedule, or the condition of an extra write does not
            hold. Nothing was written.
    """
    stored_row = services.table.get(submission_key(record.id))
    if stored_row is None:
        # The schedule was deleted after `row` was read.
        raise Conflict(row.key)
    stored = SUBMISSION_CODEC.decode(stored_row.body)
    submission = Submission(
        config=stored.config,
        model_code=stored.model_code,
        template=stored.template,
        overrides=stored.overrides,
        kind=JobKind.EXPERIMENT,
        may_be_scheduled=True,
    )
    checked = check_submission(services, submission, Principal(record.user, Role.USER))
    message = replace(checked.message, schedule_id=record.id)

    def with_experiment(experiment_id: object) -> ScheduleRecord:
        assert isinstance(experiment_id, int)
        warning = next(iter(checked.warnings), "")[:REASON_CHARACTERS_MAX]
        run = ScheduledRun(time_ms, RunOutcome.SUBMITTED, experiment_id, warning)
        return replace(_with_run(record, run), last_experiment_id=experiment_id)

    now_ms = services.now_ms()
    experiment_id = submit_experiment(
        services,
        replace(checked, message=message),
        record.user,
        lambda reply: (
            *schedule_writes(with_experiment(reply), row, now_ms),
            *extra_writes(with_experiment(reply)),
        ),
    )
    log.info("schedule %d of %s submitted experiment %s", record.id, record.user, experiment_id)
    return with_experiment(experiment_id)


def _find_busy_experiment(services: Services, record: ScheduleRecord) -> int | None:
    """Return the newest experiment of the schedule that has not ended, if runs may not overlap.

    Experiments that users submitted with `run-now` count, too. Return None otherwise. Deleted
    experiments have ended.
    """
    if record.overlap == "allow":
        return None
    known = {run.experiment_id for run in record.runs} | {record.last_experiment_id}
    ids = sorted((one for one in known if one is not None), reverse=True)
    experiments, _ = services.experiments.read_experiments(ids)
    for experiment_id, found in zip(ids, experiments, strict=True):
        if found is not None and not found[0].status.is_final:
            return experiment_id
    return None


def _missed_run(count: int, first_ms: int) -> ScheduledRun:
    """Return the record of missed times. `first_ms` is the first missed time."""
    number = f"at least {count}" if count == MISSED_COUNTED_MAX else f"{count}"
    times = "time" if count == 1 else "times"
    text = f"{number} {times} passed before the cluster could submit the experiment"
    return ScheduledRun(first_ms, RunOutcome.MISSED, text=text)


def _with_run(record: ScheduleRecord, run: ScheduledRun) -> ScheduleRecord:
    """Return the record with another run in front of the earlier runs.

    A skipped run replaces the skipped run before it, so that an experiment of many hours does not
    push out the other runs.
    """
    earlier = record.runs
    if run.outcome == RunOutcome.SKIPPED and earlier and earlier[0].outcome == RunOutcome.SKIPPED:
        earlier = earlier[1:]
    return replace(record, runs=(run, *earlier)[:RUNS_KEPT])


def _reason_of(refusal: RequestError) -> str:
    """Return the message of a refusal with the problems that the message lacks."""
    more = [
        f"{detail.path}: {detail.message}"
        for detail in refusal.details
        if detail.message not in refusal.message
    ]
    return "; ".join([refusal.message, *more])
