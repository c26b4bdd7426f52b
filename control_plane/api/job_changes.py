"""Changes of jobs: priority, weight, pool and place in the queue.

A move reads the rows of the pool's jobs, which their experiments write, and gives the job a
position between two of them. Moves of one pool take turns: each passes on the pool's row of moves
in its commit, and is worked out again if another was faster.
"""

from collections.abc import Sequence
from functools import partial
from typing import Annotated, Self

from pydantic import Field, model_validator

from control_plane.actors import addresses
from control_plane.actors.experiment_messages import PoolChanged, SettingsChanged
from control_plane.actors.jobs import JobRow, job_sort, jobs_of, read_job
from control_plane.actors.step import Refused
from control_plane.agents.spec import stored_config
from control_plane.api.bodies import RequestBody
from control_plane.api.errors import ApiError, Code, Detail
from control_plane.api.idempotency import Beside, Once
from control_plane.api.job_lookup import job_of
from control_plane.api.placement import check_fits, check_mounts, destination, needs_of
from control_plane.api.services import Services
from control_plane.api.views import experiment as experiments
from control_plane.api.views import pool as pools
from control_plane.api.views.rows import all_rows
from control_plane.scheduling.positions import (
    PositionError,
    Standing,
    check_heeded,
    check_priority,
    check_weight,
    moved,
)
from control_plane.state.table import Conflict, Expect, Key, Put, Row, Write

OPERATIONS = ("priority", "weight", "resource_pool", "ahead_of", "behind_of")
MOVES = "job-moves"

_TRIES_MAX = 50

Name = Annotated[str, Field(max_length=100)]


class Change(RequestBody):
    """The body of `PATCH /jobs/{job_id}`: exactly one of these."""

    priority: int | None = None
    weight: float | None = None
    resource_pool: Name | None = None
    ahead_of: Name | None = None
    behind_of: Name | None = None

    @model_validator(mode="after")
    def _check_one(self) -> Self:
        if sum(getattr(self, name) is not None for name in OPERATIONS) != 1:
            raise ValueError(f"exactly one of {', '.join(OPERATIONS)} is required")
        return self


class Operation(Change):
    """One operation of a batch."""

    job_id: Annotated[str, Field(min_length=1, max_length=100)]


def changed(
    services: Services,
    job: str,
    change: Change,
    by: str,
    beside: Beside,
    *,
    keep_position: bool = False,
) -> object:
    """Carries out one change of the job that is called so, and returns its experiment's id.

    Raises:
        ApiError: not_found, conflict or invalid, in the words of the queue.
    """
    group = job_of(services, job)
    try:
        message = _message(services, group, job, change, keep_position)
        if message is None:
            return _moved(services, group, change, by, beside)
        return services.engine.command(addresses.experiment(group), message, by=by, beside=beside)
    except PositionError as error:
        raise ApiError(Code.INVALID, str(error)) from None


def changed_all(services: Services, operations: Sequence[Operation], once: Once) -> list[int]:
    """Carries out a batch in order and returns the experiment of each operation. A change of
    priority keeps the place that an earlier move gave.

    Raises:
        ApiError: of those that failed; the others were carried out.
    """
    groups: list[int] = []
    errors: list[tuple[int, ApiError]] = []
    for number, operation in enumerate(operations):
        try:
            effect = partial(_one, services, operation, once.by)
            groups.append(once.part(number).effected(services, effect))
        except ApiError as error:
            errors.append((number, error))
        except Refused as refused:
            errors.append((number, ApiError(Code(refused.code), str(refused))))
    if errors:
        raise _joined(errors)
    return groups


def _one(services: Services, operation: Operation, by: str, beside: Beside) -> object:
    return changed(services, operation.job_id, operation, by, beside, keep_position=True)


def _joined(errors: Sequence[tuple[int, ApiError]]) -> ApiError:
    """One error for several; one that may be well a moment later makes all of them so."""
    details = [Detail(f"operations[{number}]", error.message) for number, error in errors]
    codes = [error.code for _, error in errors]
    messages = [error.message for _, error in errors]
    if len(errors) == 1:
        return ApiError(codes[0], messages[0], details)
    code = Code.UNAVAILABLE if Code.UNAVAILABLE in codes else codes[0]
    code = code if len(set(codes)) == 1 or code is Code.UNAVAILABLE else Code.INVALID
    return ApiError(code, f"encountered the following errors: {', '.join(messages)}", details)


def _message(
    services: Services, group: int, job: str, change: Change, keep_position: bool
) -> object | None:
    """What to tell the experiment; None for a move, which depends on others."""
    pool, row = _row_of(services, group, job)
    settings = pools.settings(services, pool)
    if change.resource_pool is not None:
        return _pool_change(services, group, pool, change.resource_pool)
    name = next(name for name in OPERATIONS if getattr(change, name) is not None)
    check_heeded(name.replace("_", "-"), settings.scheduler.kind)
    if change.priority is not None:
        check_priority(change.priority)
        present = settings.default_priority if row.priority is None else row.priority
        if present == change.priority:
            return SettingsChanged()
        return SettingsChanged(priority=change.priority, keep_position=keep_position)
    if change.weight is not None:
        check_weight(change.weight)
        return SettingsChanged(weight=change.weight)
    return None


def _row_of(services: Services, group: int, job: str) -> tuple[str, JobRow]:
    """The pool and the settings of a job; ApiError not_found once it has ended."""
    pool = experiments.found(services, group)[0].pool
    row = services.table.get(Key(jobs_of(pool), job_sort(group)))
    if row is None:
        raise ApiError(Code.NOT_FOUND, f"job {job:.40} not found: its experiment has ended")
    return pool, read_job(row.body)


def _pool_change(services: Services, group: int, present: str, wanted: str) -> PoolChanged:
    if not wanted:
        raise ApiError(Code.INVALID, "resource pool must be set")
    if wanted != present:
        config = stored_config(experiments.found(services, group)[1])
        to = destination(services, wanted, config.job.slots_per_trial, "resource_pool")
        check_fits(services, to, needs_of(config.resources), "resource_pool")
        check_mounts(to, config, "resource_pool")
    return PoolChanged(wanted)


def _moved(services: Services, group: int, change: Change, by: str, beside: Beside) -> object:
    """Gives the job its place beside another; one of another pool is no place at all."""
    anchor = job_of(services, change.ahead_of or change.behind_of or "")
    pool = experiments.found(services, group)[0].pool
    turns = Key(MOVES, pool)
    for _ in range(_TRIES_MAX):
        row = services.table.get(turns)
        revision = row.revision if row else 0
        turn = Put(turns, revision + 1, b"", revision or Expect.ABSENT)
        message = _place(services, pool, group, anchor, change.ahead_of is not None)
        try:
            return services.engine.command(
                addresses.experiment(group),
                message,
                by=by,
                beside=partial(_in_turn, turn, beside),
            )
        except Conflict as conflict:
            if conflict.key != turns:
                raise
    raise ApiError(Code.UNAVAILABLE, f"the queue of pool {pool} changes too fast; try again")


def _in_turn(turn: Put, beside: Beside, reply: object) -> tuple[Write, ...]:
    return (turn, *beside(reply))


def _place(services: Services, pool: str, group: int, anchor: int, ahead: bool) -> SettingsChanged:
    default = pools.settings(services, pool).default_priority
    rows = all_rows(services.table, jobs_of(pool), " ", "\x7f")
    standings = {int(row.key.sort): _standing(row, default) for row in rows}
    if group not in standings or anchor not in standings:
        return SettingsChanged()
    now_ms = services.now_ms()
    after = moved(standings.values(), group, anchor, ahead=ahead, now_ms=now_ms)
    before = standings[group]
    if after == before:
        return SettingsChanged()
    priority = None if after.priority == before.priority else after.priority
    position = f"{after.position:f}"
    return SettingsChanged(priority=priority, position=position, keep_position=True)


def _standing(row: Row, default_priority: int) -> Standing:
    job = read_job(row.body)
    priority = default_priority if job.priority is None else job.priority
    return Standing(int(row.key.sort), job.submitted_ms, priority, job.at())
