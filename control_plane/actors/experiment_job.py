"""The experiment's job: its row in the partition of its pool, which it alone writes."""

from dataclasses import replace

from control_plane.actors import addresses
from control_plane.actors.experiment_messages import JobAudited, PoolChanged
from control_plane.actors.experiment_state import (
    ExperimentState,
    Settings,
    definition_of,
    settings_of,
)
from control_plane.actors.experiment_summaries import summaries
from control_plane.actors.jobs import JobRow, job_sort, jobs_of, written_job
from control_plane.actors.pool_messages import JobChanged
from control_plane.actors.records import TrialSettings
from control_plane.actors.step import Refused, Turn
from control_plane.actors.trial_messages import TrialMoved
from control_plane.evolve import evolve

JOB_IDS = "job-ids"
"""The partition with the experiment of each job, by its UUID, as long as it is in a queue."""


def published(state: ExperimentState, turn: Turn) -> None:
    """Writes the row of an experiment that has not ended, removes that of one that has, and tells
    its pool.
    """
    body = None if state.status.final else written_job(job_of(turn))
    turn.write_row(jobs_of(state.pool), job_sort(state.experiment_id), body)
    if job_id := definition_of(turn).job_id:
        turn.write_row(JOB_IDS, job_id, None if body is None else b"%d" % state.experiment_id)
    turn.send(addresses.pool(state.pool), JobChanged(state.experiment_id))


def job_of(turn: Turn) -> JobRow:
    """The job as it is now."""
    definition = definition_of(turn)
    return job_now(definition.job, definition.settings, settings_of(turn))


def job_now(job: JobRow, trials: TrialSettings, settings: Settings) -> JobRow:
    """A job as it was submitted, with what has changed of it since."""
    return replace(
        job,
        submitted_ms=trials.submitted_ms,
        weight=settings.weight,
        priority=settings.priority,
        max_slots=settings.max_slots,
        position=settings.position,
        deadline_ms=trials.deadline_ms,
    )


def settings_for_trials(state: ExperimentState, turn: Turn) -> TrialSettings:
    """What trials are told that begin or go on now."""
    return replace(definition_of(turn).settings, pool=state.pool)


def moved(state: ExperimentState, message: PoolChanged, turn: Turn) -> ExperimentState:
    """Goes on in another pool: what waits asks there at once, what runs once it has saved its work.

    Raises:
        Refused: conflict, for one that has ended and for the pool that it is in.
    """
    turn.reply = state.experiment_id
    if state.status.final:
        text = f"experiment {state.experiment_id} is {state.status} and can no longer be moved"
        raise Refused("conflict", text)
    if not message.pool:
        raise Refused("invalid", "resource pool must be set")
    if message.pool == state.pool:
        raise Refused("conflict", "resource pool is unchanged")
    turn.because(f"resource pool {state.pool} to {message.pool}")
    _left(state, state.pool, turn)
    state = evolve(state, pool=message.pool)
    published(state, turn)
    if state.trials_open:
        for summary in summaries(state.trials, turn):
            if summary.is_open(state.life):
                turn.send(addresses.trial(summary.trial_id), TrialMoved(message.pool))
    return state


def audited(state: ExperimentState, message: JobAudited, turn: Turn) -> ExperimentState:
    """Says again what a pool was to know."""
    if message.pool == state.pool:
        published(state, turn)
    else:
        _left(state, message.pool, turn)
    return state


def _left(state: ExperimentState, pool: str, turn: Turn) -> None:
    turn.write_row(jobs_of(pool), job_sort(state.experiment_id), None)
    turn.send(addresses.pool(pool), JobChanged(state.experiment_id))
