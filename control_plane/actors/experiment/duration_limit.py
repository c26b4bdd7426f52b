"""The limit of an experiment's duration, `max_duration`.

The time counts from the first assignment of slots to a trial. An experiment at the limit is
canceled, so that the trials save checkpoints, and a user can continue the experiment later. Each
continuation has the whole time again.
"""

from control_plane.actors.experiment.state import ExperimentState, definition_of
from control_plane.actors.experiment.status import change_status
from control_plane.actors.messages.experiment import DurationEnded, TrialPlaced
from control_plane.actors.records import Status
from control_plane.actors.step import StepContext
from control_plane.clock_skew import is_from_future
from control_plane.evolve import evolve


def apply_duration_message(
    state: ExperimentState, message: TrialPlaced | DurationEnded, context: StepContext
) -> ExperimentState:
    """Start the time of the experiment, or cancel the experiment at the end of the time.

    A TrialPlaced sets `ends_ms` and a DurationEnded timer, unless the time runs already. A
    placement's time from a clock ahead is replaced by now. A message of an earlier run generation
    changes nothing. Nor does any message to an experiment that is stopping or has ended.
    """
    is_over = state.status.is_stopping or state.status.is_final
    if is_over or message.run_generation != state.run_generation:
        return state
    match message:
        case TrialPlaced(placed_ms=placed_ms):
            duration_ms = definition_of(context).settings.experiment_duration_ms
            if duration_ms is None or state.ends_ms is not None:
                return state
            if is_from_future(placed_ms, context.now_ms):
                placed_ms = context.now_ms
            ends_ms = placed_ms + duration_ms
            context.set_timer(ends_ms, DurationEnded(state.run_generation))
            return evolve(state, ends_ms=ends_ms)
        case DurationEnded():
            text = (
                "the experiment has come to its max_duration; "
                f"`detcloud experiment continue {state.experiment_id}` continues for as long again"
            )
            context.add_reason("the experiment has come to its max_duration")
            return change_status(evolve(state, message=text), Status.STOPPING_CANCELED, context)
