"""Schedules of experiments: creation, pauses and deletion.

A schedule has three rows: the record, the submission, and the entry in the due index. Only an
active schedule has the entry. Every change replaces or deletes the record on the condition of the
record's revision, so that a change and a concurrent run never both take effect.
"""

from collections.abc import Callable
from dataclasses import replace

from control_plane.access.ownership import OwnedObject
from control_plane.access.principals import Principal, Role
from control_plane.actors.identifiers import COUNTERS
from control_plane.cron_times import CronTimes
from control_plane.engine.mailbox import DUE_MS_MAX
from control_plane.errors import Code, RequestError, invalid
from control_plane.queries.schedules import (
    SCHEDULE_CODEC,
    SCHEDULES,
    SUBMISSION_CODEC,
    ScheduledSubmission,
    ScheduleRecord,
    missing_schedule_error,
    schedule_key,
    submission_key,
    time_key,
)
from control_plane.services import Services
from control_plane.state.row_ranges import read_rows
from control_plane.state.table import Delete, Expect, Key, Put, Row, StateTable, Write
from control_plane.usecases.row_changes import change_row, replacing_put
from control_plane.usecases.submission import Submission, check_submission

SCHEDULES_MAX = 500
"""The most schedules of a cluster. Concurrent requests may exceed the limit by a few."""
SCHEDULES_PER_USER_MAX = 50
"""The most schedules of a user."""
STORED_BYTES_MAX = 300_000
"""The most bytes of a stored submission. A row has at most 400 KiB."""
NAME_CHARACTERS_MAX = 200
"""The most characters of the stored name. The experiments have the whole name."""
_COUNTER = Key(COUNTERS, "schedule")

ScheduleExtraWrites = Callable[[ScheduleRecord], tuple[Write, ...]]
"""Returns further writes for the commit of a change, given the schedule."""


def find_owned_schedule(table: StateTable, schedule_id: int) -> tuple[OwnedObject, ...]:
    """Return the ownership of a schedule, as a tuple. Empty if the schedule does not exist."""
    row = table.get(schedule_key(schedule_id))
    if row is None:
        return ()
    record = SCHEDULE_CODEC.decode(row.body)
    return (OwnedObject(f"schedule {schedule_id}", (record.user,), "create your own"),)


def create_schedule(
    services: Services,
    submission: Submission,
    caller: Principal,
    extra_writes: ScheduleExtraWrites,
) -> tuple[ScheduleRecord, tuple[str, ...]]:
    """Check a submission with the section `schedule`, and store a schedule of the caller.

    The first experiment is submitted at the first time of the schedule. A single commit writes all
    rows and the counter of ids. Return the schedule, and the warnings about the submission.

    Raises:
        RequestError: invalid, if the configuration has no section `schedule`, or would be refused
            as an experiment; too_large, for a large configuration; conflict, if the cluster has
            SCHEDULES_MAX schedules; unavailable, if other requests keep creating schedules.
        Conflict: the condition of an extra write does not hold; nothing was written.
    """
    # Runs have the permissions of a user, also those of an admin's schedule.
    as_user = Principal(caller.user, Role.USER)
    checked = check_submission(services, replace(submission, may_be_scheduled=True), as_user)
    section = checked.config.schedule
    if section is None:
        raise invalid("schedule", "is missing", 'use `schedule: {cron: "0 3 * * *"}`')
    _check_count(services.table, caller.user)
    times = CronTimes(section.cron, section.time_zone)
    stored = ScheduledSubmission(
        config=submission.config,
        model_code=submission.model_code or "",
        template=submission.template,
        overrides=tuple(submission.overrides),
    )
    body = SUBMISSION_CODEC.encode(stored)
    if len(body) > STORED_BYTES_MAX:
        text = f"the configuration of a schedule has at most {STORED_BYTES_MAX:,} bytes"
        raise RequestError(Code.TOO_LARGE, text)

    def change(row: Row | None) -> tuple[ScheduleRecord, tuple[Write, ...]]:
        number = 1 if row is None else int(row.body)
        revision = 0 if row is None else row.revision
        now_ms = services.now_ms()
        record = ScheduleRecord(
            id=number,
            name=checked.message.name[:NAME_CHARACTERS_MAX],
            user=caller.user,
            cron=section.cron,
            time_zone=section.time_zone,
            overlap=section.overlap,
            catch_up=section.catch_up,
            created_ms=now_ms,
            next_ms=None if submission.paused else times.next_time(now_ms),
        )
        return record, (
            Put(_COUNTER, revision + 1, b"%d" % (number + 1), revision or Expect.ABSENT),
            Put(submission_key(number), 1, body, Expect.ABSENT),
            *schedule_writes(record, None, now_ms),
            *extra_writes(record),
        )

    record = change_row(services.table, _COUNTER, change, "the number of schedules")
    return record, checked.warnings


def pause_schedule(
    services: Services, schedule_id: int, extra_writes: ScheduleExtraWrites
) -> ScheduleRecord:
    """Pause a schedule, so that no experiment is submitted; return the schedule.

    Pausing a paused schedule changes nothing. Raises RequestError and Conflict as
    `_change_schedule` does.
    """
    return _change_schedule(
        services, schedule_id, lambda record, now_ms: replace(record, next_ms=None), extra_writes
    )


def activate_schedule(
    services: Services, schedule_id: int, extra_writes: ScheduleExtraWrites
) -> ScheduleRecord:
    """Continue a paused schedule with the first time from now; return the schedule.

    Times during the pause are not missed times. Activating an active schedule changes nothing.
    Raises RequestError and Conflict as `_change_schedule` does.
    """

    def activate(record: ScheduleRecord, now_ms: int) -> ScheduleRecord:
        if record.next_ms is not None:
            return record
        return replace(record, next_ms=CronTimes(record.cron, record.time_zone).next_time(now_ms))

    return _change_schedule(services, schedule_id, activate, extra_writes)


def delete_schedule(
    table: StateTable, schedule_id: int, extra_writes: ScheduleExtraWrites
) -> ScheduleRecord:
    """Delete a schedule with all rows; return the deleted schedule. Experiments are kept.

    Raises:
        RequestError: not_found, if the schedule does not exist; unavailable, if other requests
            keep changing the schedule.
        Conflict: the condition of an extra write does not hold; nothing was written.
    """

    def change(row: Row | None) -> tuple[ScheduleRecord, tuple[Write, ...]]:
        if row is None:
            raise missing_schedule_error(schedule_id)
        record = SCHEDULE_CODEC.decode(row.body)
        return record, (
            Delete(row.key, row.revision),
            Delete(submission_key(schedule_id), Expect.ANYTHING),
            Delete(time_key(schedule_id), Expect.ANYTHING),
            *extra_writes(record),
        )

    return change_row(table, schedule_key(schedule_id), change, f"schedule {schedule_id}")


def schedule_writes(record: ScheduleRecord, former: Row | None, now_ms: int) -> tuple[Write, ...]:
    """Return the writes that store a schedule in place of the row `former`; commit nothing.

    The first write stores the record, and expects the revision of `former`, or no row. The second
    write stores the entry in the due index, or deletes the entry of a paused schedule. The entry is
    due at the next time, but at most DUE_MS_MAX from now, as all entries of the index.
    """
    key = time_key(record.id)
    body = SCHEDULE_CODEC.encode(record, None if former is None else former.body)
    put = replacing_put(schedule_key(record.id), former, body, 1)
    if record.next_ms is None:
        return put, Delete(key, Expect.ANYTHING)
    due_ms = min(record.next_ms, now_ms + DUE_MS_MAX)
    return put, Put(key, put.revision, b"", Expect.ANYTHING, due_ms)


def _change_schedule(
    services: Services,
    schedule_id: int,
    change_record: Callable[[ScheduleRecord, int], ScheduleRecord],
    extra_writes: ScheduleExtraWrites,
) -> ScheduleRecord:
    """Change a schedule in a commit with the extra writes; return the changed schedule.

    Args:
        services: the services with the state table.
        schedule_id: the id of the schedule.
        change_record: returns the changed record, given the stored record and the time in epoch ms.
        extra_writes: returns further writes of the commit.

    Raises:
        RequestError: not_found, if the schedule does not exist; unavailable, if other requests
            keep changing the schedule.
        Conflict: the condition of an extra write does not hold; nothing was written.
    """

    def change(row: Row | None) -> tuple[ScheduleRecord, tuple[Write, ...]]:
        if row is None:
            raise missing_schedule_error(schedule_id)
        now_ms = services.now_ms()
        record = change_record(SCHEDULE_CODEC.decode(row.body), now_ms)
        return record, (*schedule_writes(record, row, now_ms), *extra_writes(record))

    return change_row(services.table, schedule_key(schedule_id), change, f"schedule {schedule_id}")


def _check_count(table: StateTable, user: str) -> None:
    """Raise RequestError conflict if the cluster has SCHEDULES_MAX schedules, or the user has
    SCHEDULES_PER_USER_MAX schedules.
    """
    owners = [SCHEDULE_CODEC.decode(row.body).user for row in read_rows(table, SCHEDULES)]
    if len(owners) >= SCHEDULES_MAX:
        text = f"the cluster has {SCHEDULES_MAX} schedules, the maximum: delete one"
        raise RequestError(Code.CONFLICT, text)
    if owners.count(user) >= SCHEDULES_PER_USER_MAX:
        text = f"{user} has {SCHEDULES_PER_USER_MAX} schedules, the maximum: delete one"
        raise RequestError(Code.CONFLICT, text)
