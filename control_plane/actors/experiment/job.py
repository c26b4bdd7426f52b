"""The experiment's job row in the partition of the pool. Only the experiment writes the row."""

from dataclasses import replace

from control_plane.actors import addresses
from control_plane.actors.experiment.state import (
    ExperimentState,
    Settings,
    definition_of,
    settings_of,
)
from control_plane.actors.experiment.trial_summaries import summaries
from control_plane.actors.job_row import POOLS, JobRow, encode_job, job_sort_key, jobs_partition
from control_plane.actors.messages.experiment import JobAudited, PoolChanged, WaitEnded
from control_plane.actors.messages.pool import JobChanged
from control_plane.actors.messages.trial import TrialMoved
from control_plane.actors.records import Status, TrialSettings
from control_plane.actors.step import CommandRefused, StepContext
from control_plane.evolve import evolve
from control_plane.rows import pool_rows
from control_plane.scheduling.pool_choice import next_pool, round_number

JOB_IDS = pool_rows.JOB_ID.partition
"""The partition with the experiment's id of each queued job, by the job's UUID."""


def write_job_row(state: ExperimentState, context: StepContext) -> None:
    """Write the job row of the experiment in the present pool, and send the pool a JobChanged.

    An experiment that has ended removes the row instead. The row in JOB_IDS is written and removed
    together with the job row, if the job has a UUID.
    """
    body = None if state.status.is_final else encode_job(current_job(state, context))
    context.write_row(jobs_partition(state.pool), job_sort_key(state.experiment_id), body)
    if job_id := definition_of(context).job_id:
        context.write_row(JOB_IDS, job_id, None if body is None else b"%d" % state.experiment_id)
    context.send(addresses.pool(state.pool), JobChanged(state.experiment_id))


def current_job(state: ExperimentState, context: StepContext) -> JobRow:
    """Return the experiment's job row with the present settings, for the present pool."""
    definition = definition_of(context)
    job = effective_job(definition.job, definition.settings, settings_of(context))
    moves, pools = state.pool_moves, definition.pools
    if moves is None or moves.is_over or pools is None:
        return job
    return replace(
        job,
        patience_ms=pools.patience_ms,
        stay=moves.count,
        rounds=round_number(moves.count - moves.first, len(pools.names)),
        waits_since_ms=moves.waits_since_ms,
    )


def effective_job(job: JobRow, trials: TrialSettings, settings: Settings) -> JobRow:
    """Return the submitted job with the settings in force. Pool moves are not included.

    Args:
        job: the submitted job.
        trials: the settings of trials, with the time of submission and the deadline.
        settings: the settings in force.
    """
    return replace(
        job,
        submitted_ms=trials.submitted_ms,
        weight=settings.weight,
        priority=settings.priority,
        max_slots=settings.max_slots,
        position=settings.position,
        deadline_ms=trials.deadline_ms,
    )


def current_trial_settings(state: ExperimentState, context: StepContext) -> TrialSettings:
    """Return the settings for trials that are created or continued now, with the present pool."""
    return replace(definition_of(context).settings, pool=state.pool)


def move_to_pool(
    state: ExperimentState, message: PoolChanged, context: StepContext
) -> ExperimentState:
    """Move the experiment to another pool, at a user's command. The reply is the experiment's id.

    The job rows of both pools change, and open trials get a TrialMoved. Queued trials request slots
    there immediately, and running trials after they have saved their work. The job then no longer
    moves between preferred pools. The new pool need not exist.

    Raises:
        CommandRefused: conflict, if the experiment has ended or is in that pool already.
        CommandRefused: invalid, if the pool's name is empty.
    """
    context.reply = state.experiment_id
    if state.status.is_final:
        text = f"experiment {state.experiment_id} is {state.status} and can no longer be moved"
        raise CommandRefused("conflict", text)
    if not message.pool:
        raise CommandRefused("invalid", "resource pool must be set")
    if message.pool == state.pool:
        raise CommandRefused("conflict", "the job is already in that resource pool")
    if state.pool_moves is not None:
        state = evolve(state, pool_moves=replace(state.pool_moves, is_over=True))
    return _change_pool(state, TrialMoved(message.pool), context)


def leave_pool(state: ExperimentState, message: WaitEnded, context: StepContext) -> ExperimentState:
    """Move the job to the next preferred pool that exists, after a pool has released the job.

    The job rows of both pools change, and both pools get a JobChanged. Open trials get a TrialMoved
    and keep slots that they hold. Nothing changes if the message is about another pool or stay, or
    no other pool exists. The same applies if a user has moved the job, or the experiment is not
    ACTIVE.
    """
    moves, pools = state.pool_moves, definition_of(context).pools
    if moves is None or pools is None or moves.is_over or state.status is not Status.ACTIVE:
        return state
    if (message.pool, message.stay) != (state.pool, moves.count):
        return state
    to = next_pool(pools.names, state.pool, lambda name: bool(context.row(POOLS, name).revision))
    if to is None:
        context.add_reason(f"stays in pool {state.pool}: none of its other pools exists")
        return state
    since_ms = message.since_ms if moves.waits_since_ms is None else moves.waits_since_ms
    moved = replace(
        moves,
        count=moves.count + 1,
        waits_since_ms=since_ms,
        moved_ms=context.now_ms,
        reason=message.reason,
    )
    moving = TrialMoved(to, keeps_slots=True)
    return _change_pool(evolve(state, pool_moves=moved), moving, context)


def begin_new_round(state: ExperimentState, context: StepContext) -> ExperimentState:
    """End the present round of moves between preferred pools, since a trial of the job has run.

    The job's wait in the present pool starts again, and the job row is written. Nothing changes if
    the job does not move between pools, or has not moved since it last ran.
    """
    moves = state.pool_moves
    if moves is None or moves.is_over or moves.waits_since_ms is None:
        return state
    state = evolve(state, pool_moves=replace(moves, first=moves.count, waits_since_ms=None))
    write_job_row(state, context)
    return state


def _change_pool(
    state: ExperimentState, message: TrialMoved, context: StepContext
) -> ExperimentState:
    """Move the job row to the pool of the message, and send the message to every open trial.

    The old and the new pool get a JobChanged. Return the state with the new pool.
    """
    context.add_reason(f"resource pool {state.pool} to {message.pool}")
    _remove_job_row(state, state.pool, context)
    state = evolve(state, pool=message.pool)
    write_job_row(state, context)
    if state.trials_open:
        for summary in summaries(state.trials, context):
            if summary.is_open(state.run_generation):
                context.send(addresses.trial(summary.trial_id), message)
    return state


def repair_job_row(
    state: ExperimentState, message: JobAudited, context: StepContext
) -> ExperimentState:
    """Write the job row again if the audit found a wrong row in the present pool.

    A row in another pool is removed. The pool of the row gets a JobChanged.
    """
    if message.pool == state.pool:
        write_job_row(state, context)
    else:
        _remove_job_row(state, message.pool, context)
    return state


def _remove_job_row(state: ExperimentState, pool: str, context: StepContext) -> None:
    """Remove the experiment's job row from a pool, and send that pool a JobChanged."""
    context.write_row(jobs_partition(pool), job_sort_key(state.experiment_id), None)
    context.send(addresses.pool(pool), JobChanged(state.experiment_id))
