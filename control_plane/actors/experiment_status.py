"""What an experiment's status changes into, and who is told.

ACTIVE and PAUSED change into each other; STOPPING_x becomes x when no trial is left.
"""

from control_plane.actors import addresses
from control_plane.actors.experiment_deletion import collected
from control_plane.actors.experiment_job import published
from control_plane.actors.experiment_state import ExperimentState, definition_of, listed
from control_plane.actors.experiment_suggestions import asked
from control_plane.actors.experiment_summaries import summaries
from control_plane.actors.records import Status
from control_plane.actors.step import Turn
from control_plane.actors.trial_messages import ExperimentStatusChanged
from control_plane.evolve import evolve

_FINAL = {
    Status.STOPPING_COMPLETED: Status.COMPLETED,
    Status.STOPPING_CANCELED: Status.CANCELED,
    Status.STOPPING_KILLED: Status.CANCELED,
    Status.STOPPING_ERROR: Status.ERROR,
}


def with_status(
    state: ExperimentState, status: Status, turn: Turn, *, forced: bool = False
) -> ExperimentState:
    """Takes a status, tells every open trial, and ends at once if there is none."""
    turn.because(f"{state.status} to {status}")
    if state.trials_open:
        for summary in summaries(state.trials, turn):
            if summary.is_open(state.life):
                to = addresses.trial(summary.trial_id)
                turn.send(to, ExperimentStatusChanged(status, forced))
    after = asked(state, evolve(state, status=status), turn)
    return listed(finished(after, turn), turn)


def finished(state: ExperimentState, turn: Turn) -> ExperimentState:
    """Ends an experiment that is stopping, once no trial is left."""
    final = _FINAL.get(state.status)
    if final is None or state.trials_open:
        return state
    turn.because(f"{state.status} to {final}: no trial is left")
    progress = 1.0 if final is Status.COMPLETED else state.progress
    if definition_of(turn).rules.progress_cleared:
        progress = None
    state = evolve(state, status=final, ended_ms=turn.now_ms, progress=progress)
    published(state, turn)
    return collected(state, turn)
