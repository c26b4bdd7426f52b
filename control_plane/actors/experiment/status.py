"""Changes of an experiment's status.

ACTIVE and PAUSED change into each other. STOPPING_x becomes x when no trial is open.
"""

from control_plane.actors import addresses
from control_plane.actors.experiment.collection import request_collection
from control_plane.actors.experiment.expiry import plan_expiry
from control_plane.actors.experiment.job import write_job_row
from control_plane.actors.experiment.listing import write_listing_row
from control_plane.actors.experiment.state import ExperimentState, definition_of
from control_plane.actors.experiment.suggestions import update_suggestion_row
from control_plane.actors.experiment.trial_summaries import summaries
from control_plane.actors.experiment.waiting_trials import close_waiting
from control_plane.actors.messages.trial import ExperimentStatusChanged
from control_plane.actors.records import Status
from control_plane.actors.step import StepContext
from control_plane.evolve import evolve

_FINAL = {
    Status.STOPPING_COMPLETED: Status.COMPLETED,
    Status.STOPPING_CANCELED: Status.CANCELED,
    Status.STOPPING_KILLED: Status.CANCELED,
    Status.STOPPING_ERROR: Status.ERROR,
}


def change_status(
    state: ExperimentState, status: Status, context: StepContext, *, forced: bool = False
) -> ExperimentState:
    """Change the status, and send an ExperimentStatusChanged to every open trial.

    A stopping status also ends trials that wait for a place. If no trial is open, a stopping
    experiment ends immediately; see `finish_if_no_trial_open`. The listing row and the suggestion
    row are updated. Every change is accepted: the caller checks whether the status may follow.

    Args:
        forced: whether open trials are killed for good, without saving work, whatever the status.
    """
    context.add_reason(f"{state.status} to {status}")
    if status.is_stopping:
        state = close_waiting(state, context)
    if state.trials_open:
        for summary in summaries(state.trials, context):
            if summary.is_open(state.run_generation):
                to = addresses.trial(summary.trial_id)
                context.send(to, ExperimentStatusChanged(status, forced))
    after = update_suggestion_row(state, evolve(state, status=status), context)
    return write_listing_row(finish_if_no_trial_open(after, context), context)


def finish_if_no_trial_open(state: ExperimentState, context: StepContext) -> ExperimentState:
    """End an experiment that is stopping, if no trial is open. Otherwise return `state` unchanged.

    The end sets the final status, removes the job row, notifies the pool by a JobChanged, requests
    a checkpoint collection, and plans the deletion of logs and metrics. The caller writes the
    listing row. The progress becomes 1 for COMPLETED, or None if the era's rules say so.
    """
    final = _FINAL.get(state.status)
    if final is None or state.trials_open:
        return state
    context.add_reason(f"{state.status} to {final}: no trials left")
    progress = 1.0 if final is Status.COMPLETED else state.progress
    if definition_of(context).rules.progress_cleared:
        progress = None
    state = evolve(state, status=final, ended_ms=context.now_ms, progress=progress)
    write_job_row(state, context)
    return plan_expiry(request_collection(state, context), context)
