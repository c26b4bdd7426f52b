"""Changes of jobs: priority, weight, pool and position in the queue.

A move reads the rows of the pool's jobs, which the experiments write, and gives the job a position
between two other jobs. Moves in a pool are serialized: each commit also writes the pool's row of
moves. If another move was faster, the commit fails and the new position is computed again.

A change may have conditions: the revisions of the job, and of the neighbour of a move, that the
user has read. The commit checks both conditions, so that no change overwrites a change that its
user has not seen.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from decimal import Decimal
from functools import partial
from typing import NamedTuple

from control_plane.actors import addresses
from control_plane.actors.content_revision import find_changed_since
from control_plane.actors.job_row import (
    JobRow,
    decode_job,
    job_sort_key,
    jobs_partition,
    order_revision,
)
from control_plane.actors.messages.experiment import PoolChanged, SettingsChanged
from control_plane.agents.spec import parse_stored_config
from control_plane.errors import Code, Detail, RequestError
from control_plane.queries import experiment as experiments
from control_plane.queries import pool as pools
from control_plane.queries.job_lookup import find_job
from control_plane.rows import pool_rows
from control_plane.scheduling.queue_positions import (
    PositionError,
    QueueEntry,
    check_operation_supported,
    check_priority,
    check_weight,
    moved_entry,
)
from control_plane.services import Services
from control_plane.state.row_ranges import read_rows
from control_plane.state.table import Check, Conflict, Expect, Key, Put, Row, Write
from control_plane.usecases.idempotency import ExtraWrites, IdempotentRequest
from control_plane.usecases.placement import (
    check_fits,
    check_mounts,
    choose_destination,
    trial_needs,
)

OPERATIONS = ("priority", "weight", "resource_pool", "ahead_of", "behind_of", "place")
MOVES = pool_rows.JOB_MOVES.partition

_TRIES_MAX = 50


class QueuePlace(NamedTuple):
    """A place in the queue of a priority pool."""

    priority: int
    position: Decimal


@dataclass(frozen=True)
class JobChange:
    """A change of a job, with conditions. Exactly one field of OPERATIONS is not None."""

    priority: int | None = None
    weight: float | None = None
    resource_pool: str | None = None
    """The pool to move to."""
    ahead_of: str | None = None
    """The job to move ahead of, as text for `find_job`."""
    behind_of: str | None = None
    """The job to move behind, as text for `find_job`."""
    place: QueuePlace | None = None
    """The place to return to, which the job had before a move."""
    revision: str | None = None
    """The revision that the job must have. None: no condition. Not for `resource_pool`."""
    neighbour_revision: str | None = None
    """The revision that the other job of a move must have. None: no condition."""


def change_job(
    services: Services,
    job: str,
    change: JobChange,
    by: str,
    extra_writes: ExtraWrites,
    *,
    keep_position: bool = False,
) -> object:
    """Change a job by a command to the experiment; return the experiment's id.

    A new weight, priority, position or pool is committed with the extra writes. A move next to a
    job in another pool, or to the present place, commits the extra writes alone. The conditions of
    the change hold at the commit.

    Args:
        services: the services with the engine and the state table.
        job: the job's UUID, a prefix of the UUID, or its experiment's id.
        change: the change.
        by: the user, for the journal.
        extra_writes: returns further writes of the commit, given the experiment's id.
        keep_position: a change of priority keeps the position from an earlier move.

    Raises:
        RequestError: not_found, if a job does not exist or has ended. invalid, if a prefix is
            ambiguous, the pool's scheduler does not support the change, or the value is wrong.
            invalid also if the new pool cannot run the job. conflict, if the job is in the new pool
            already, the experiment is being deleted, or a condition of the change does not hold.
            unavailable, if the queue or the experiment changes too fast.
        Conflict: the condition of an extra write does not hold; nothing was written.
    """
    group = find_job(services, job)
    try:
        message = _change_command(services, group, job, change, keep_position)
        if message is None:
            return _move(services, group, change, by, extra_writes)
        return services.engine.execute_command(
            addresses.experiment(group), message, by=by, extra_writes=extra_writes
        )
    except PositionError as error:
        raise RequestError(Code.INVALID, str(error)) from None


def change_jobs(
    services: Services, changes: Sequence[tuple[str, JobChange]], request: IdempotentRequest
) -> list[int]:
    """Apply changes of jobs in order, each in a separate commit; return the experiment ids.

    All changes are tried, even if earlier ones fail. A change of priority keeps the position from
    an earlier move.

    Args:
        services: the services with the engine and the state table.
        changes: each a job, as for `change_job`, and its change.
        request: the request, which makes each change take effect only once.

    Raises:
        RequestError: a single error for all failed changes, with a detail for each. The other
            changes took effect. The code is unavailable if any change is unavailable, else the
            common code, or invalid for different codes.
    """
    groups: list[int] = []
    errors: list[tuple[int, RequestError]] = []
    for number, (job, change) in enumerate(changes):
        try:
            effect = partial(_change_in_batch, services, job, change, request.by)
            groups.append(request.part(number).execute_for_reply(services, effect))
        except RequestError as error:
            errors.append((number, error))
    if errors:
        raise _combined_error(errors)
    return groups


def _change_in_batch(
    services: Services, job: str, change: JobChange, by: str, extra_writes: ExtraWrites
) -> object:
    """Apply a change of `change_jobs`; return the experiment's id.

    Arguments and errors are those of `change_job`. A change of priority keeps the position from an
    earlier move.
    """
    return change_job(services, job, change, by, extra_writes, keep_position=True)


def _combined_error(errors: Sequence[tuple[int, RequestError]]) -> RequestError:
    """Return a single error for several changes, with a detail for each.

    `errors` has the changes' numbers.

    The code is unavailable if any error is unavailable, so that clients retry. Otherwise it is the
    errors' common code, or invalid.
    """
    details = [Detail(f"operations[{number}]", error.message) for number, error in errors]
    codes = [error.code for _, error in errors]
    messages = [error.message for _, error in errors]
    if len(errors) == 1:
        return RequestError(codes[0], messages[0], details)
    code = Code.UNAVAILABLE if Code.UNAVAILABLE in codes else codes[0]
    code = code if len(set(codes)) == 1 or code is Code.UNAVAILABLE else Code.INVALID
    return RequestError(code, f"encountered the following errors: {', '.join(messages)}", details)


def _change_command(
    services: Services, group: int, job: str, change: JobChange, keep_position: bool
) -> object | None:
    """Check a change, and return the command for the experiment; send nothing.

    Return None for a move, whose position `_move` computes. An unchanged priority gives a command
    without effect.

    Args:
        services: the services with the pools and the state table.
        group: the id of the job's experiment.
        job: the user's name of the job, for errors.
        change: the change.
        keep_position: a change of priority keeps the position from an earlier move.

    Raises:
        RequestError: not_found, if the job's experiment does not exist or has ended; invalid, if
            the new pool cannot run the job; conflict, if the job has another revision than the
            change demands.
        PositionError: the pool's scheduler does not support the change, also of a priority or
            weight, or the priority or weight is out of range.
    """
    pool, row = _load_job(services, group, job)
    settings = pools.load_settings(services, pool)
    if change.resource_pool is not None:
        return _pool_change_command(services, group, pool, change.resource_pool)
    name = next(name for name in OPERATIONS if getattr(change, name) is not None)
    check_operation_supported(name.replace("_", "-"), settings.scheduler.kind)
    if change.priority is None and change.weight is None:
        return None
    condition = _revision_condition(group, row, settings.default_priority, change)
    if change.weight is not None:
        check_weight(change.weight)
        return SettingsChanged(weight=change.weight, job_revision=condition)
    assert change.priority is not None
    check_priority(change.priority)
    present = settings.default_priority if row.priority is None else row.priority
    if present == change.priority:
        return SettingsChanged(job_revision=condition)
    return SettingsChanged(
        priority=change.priority, keep_position=keep_position, job_revision=condition
    )


def _load_job(services: Services, group: int, job: str) -> tuple[str, JobRow]:
    """Return the name of the job's pool and the job's row, for the experiment `group`.

    `job` is the user's name of the job, for the error.

    Raises:
        RequestError: not_found, if the experiment does not exist, was deleted or has ended.
    """
    pool = experiments.get_experiment(services, group)[0].pool
    row = services.table.get(Key(jobs_partition(pool), job_sort_key(group)))
    if row is None:
        raise RequestError(Code.NOT_FOUND, f"job {job:.40} not found: its experiment has ended")
    return pool, decode_job(row.body)


def _pool_change_command(services: Services, group: int, present: str, pool: str) -> PoolChanged:
    """Check that the experiment can run in `pool`; return the command that moves the experiment.

    The pool must exist and accept work, a trial must fit on the pool's agents, and the pool must
    allow the experiment's host folders. Nothing is checked if `pool` is the current pool `present`;
    the experiment then refuses the command.

    Raises:
        RequestError: invalid, if `pool` is "" or a check fails.
    """
    if not pool:
        raise RequestError(Code.INVALID, "resource pool must be set")
    if pool != present:
        config = parse_stored_config(experiments.get_experiment(services, group)[1])
        to = choose_destination(services, pool, config.job.slots_per_trial, "resource_pool")
        check_fits(services, to, trial_needs(config.resources), "resource_pool")
        check_mounts(to, config, "resource_pool")
    return PoolChanged(pool)


def _move(
    services: Services, group: int, change: JobChange, by: str, extra_writes: ExtraWrites
) -> object:
    """Move the job next to another job, or to a former place, by a command to the experiment.

    Return the experiment's id. The commit also increments the pool's row of moves. After a
    concurrent move, compute the position again. Change no position if the other job is in another
    pool, or the job is in that place already.

    Raises:
        RequestError: not_found, if a job does not exist; invalid, if a prefix is ambiguous;
            conflict, if the experiment is being deleted or a condition of the change does not hold;
            unavailable, if other moves in the pool keep committing first.
        PositionError: no number is left between the positions of the new neighbours.
        Conflict: the condition of an extra write does not hold; nothing was written.
    """
    anchor = None
    if change.place is None:
        anchor = find_job(services, change.ahead_of or change.behind_of or "")
    pool = experiments.get_experiment(services, group)[0].pool
    moves_key = Key(MOVES, pool)
    for _ in range(_TRIES_MAX):
        row = services.table.get(moves_key)
        revision = row.revision if row else 0
        moves_put = Put(moves_key, revision + 1, b"", revision or Expect.ABSENT)
        message, checks = _plan_move(services, pool, group, anchor, change)
        try:
            return services.engine.execute_command(
                addresses.experiment(group),
                message,
                by=by,
                extra_writes=partial(_with_queue_writes, (moves_put, *checks), extra_writes),
            )
        except Conflict as conflict:
            if conflict.key not in {moves_key, *(check.key for check in checks)}:
                raise
    raise RequestError(Code.UNAVAILABLE, f"the queue of pool {pool} changes too fast; try again")


def _with_queue_writes(
    queue_writes: tuple[Write, ...], extra_writes: ExtraWrites, reply: object
) -> tuple[Write, ...]:
    """Return the writes of a move, followed by the extra writes for `reply`."""
    return (*queue_writes, *extra_writes(reply))


def _plan_move(
    services: Services, pool: str, group: int, anchor: int | None, change: JobChange
) -> tuple[SettingsChanged, tuple[Check, ...]]:
    """Return the command that moves the job `group`, and the conditions of the commit.

    The command sets a position directly ahead of or behind the job `anchor`, or the former place of
    `change` without an anchor. The command also sets the priority of the new place if that differs.
    The command sets neither if a job is not in the pool, both jobs are the same, or the job is
    already in that place.

    A change with a `neighbour_revision` has the condition that the row of `anchor` stays unchanged.

    Raises:
        RequestError: conflict, if a job has another revision than the change demands, or is no
            longer in the pool while the change demands a revision.
        PositionError: no number is left between the positions of the new neighbours.
    """
    default = pools.load_settings(services, pool).default_priority
    rows = {
        int(row.key.sort): row
        for row in read_rows(services.table, jobs_partition(pool), " ", "\x7f")
    }
    condition = None
    if change.revision is not None:
        job = decode_job(_find_in_queue(rows, group, pool).body)
        condition = _revision_condition(group, job, default, change)
    checks = _neighbour_checks(rows, anchor, pool, default, change.neighbour_revision)
    standings = {number: _queue_entry(row, default) for number, row in rows.items()}
    if group not in standings or (anchor is not None and anchor not in standings):
        return SettingsChanged(job_revision=condition), checks
    before = standings[group]
    if change.place is not None:
        after = replace(before, **change.place._asdict())
    else:
        assert anchor is not None
        ahead, now_ms = change.ahead_of is not None, services.now_ms()
        after = moved_entry(standings.values(), group, anchor, ahead=ahead, now_ms=now_ms)
    if after == before:
        return SettingsChanged(job_revision=condition), checks
    message = SettingsChanged(
        priority=None if after.priority == before.priority else after.priority,
        position=f"{after.position:f}",
        keep_position=True,
        job_revision=condition,
    )
    return message, checks


def _revision_condition(
    group: int, row: JobRow, default_priority: int, change: JobChange
) -> str | None:
    """Check the revision that a change demands of the job `group`; return the condition for the
    experiment.

    Users read revisions with the pool's default priority. The experiment does not know the default,
    so the condition is the revision of the row without the default. Return None if the change
    demands no revision.

    Raises:
        RequestError: conflict, if the job has another revision.
    """
    if change.revision is None:
        return None
    _check_revision(group, row, default_priority, change.revision)
    return order_revision(row.weight, row.priority, row.queue_position())


def _check_revision(group: int, row: JobRow, default_priority: int, revision: str | None) -> None:
    """Raise RequestError conflict unless the job's row has the revision that users read."""
    priority = default_priority if row.priority is None else row.priority
    present = order_revision(row.weight, priority, row.queue_position())
    if problem := find_changed_since(f"job {group}", present, revision):
        raise RequestError(Code.CONFLICT, problem)


def _neighbour_checks(
    rows: Mapping[int, Row],
    anchor: int | None,
    pool: str,
    default_priority: int,
    revision: str | None,
) -> tuple[Check, ...]:
    """Return the condition that the row of `anchor` stays as in `rows`. Empty without a revision.

    Raises:
        RequestError: conflict, if the anchor has another revision or is not in the pool.
    """
    if anchor is None or revision is None:
        return ()
    row = _find_in_queue(rows, anchor, pool)
    _check_revision(anchor, decode_job(row.body), default_priority, revision)
    return (Check(row.key, row.revision),)


def _find_in_queue(rows: Mapping[int, Row], group: int, pool: str) -> Row:
    """Return the row of the job `group`. Raise RequestError conflict if `rows` lacks the job."""
    row = rows.get(group)
    if row is None:
        text = f"job {group} is no longer in pool {pool}; read the queue again and retry"
        raise RequestError(Code.CONFLICT, text)
    return row


def _queue_entry(row: Row, default_priority: int) -> QueueEntry:
    """Return the queue entry of a job's row. A job without a priority has `default_priority`."""
    job = decode_job(row.body)
    priority = default_priority if job.priority is None else job.priority
    return QueueEntry(int(row.key.sort), job.submitted_ms, priority, job.queue_position())
