"""The ends of trials. A trial's end counts once, since the summary records the end."""

from control_plane.actors.experiment.continuation import continue_after_end
from control_plane.actors.experiment.events import raise_trial_event
from control_plane.actors.experiment.listing import write_listing_row
from control_plane.actors.experiment.refusals import update_refusal_message
from control_plane.actors.experiment.search import apply_event
from control_plane.actors.experiment.state import ExperimentState
from control_plane.actors.experiment.status import finish_if_no_trial_open
from control_plane.actors.experiment.trial_summaries import open_summary, replace_summary
from control_plane.actors.messages.experiment import TrialEnded
from control_plane.actors.records import Status
from control_plane.actors.step import StepContext
from control_plane.evolve import evolve
from control_plane.searchers import method
from control_plane.searchers.method import Event, ExitReason


def apply_trial_end(
    state: ExperimentState, message: TrialEnded, context: StepContext
) -> ExperimentState:
    """Count a trial's end, and pass the end to the search, which may create trials or shut down.

    If the experiment is stopping and no trial is open, the experiment ends. In a continued
    experiment, the next waiting trial continues. A repeated end, an end of an earlier run
    generation and an unknown trial change nothing.
    """
    summary = open_summary(message.number, state.run_generation, context)
    if summary is None or message.run_generation != state.run_generation:
        return state
    state = count_trial_end(state, message, context)
    event: Event
    if message.early_exit:
        reason = ExitReason(message.early_exit)
        event = method.TrialExitedEarly(message.number, reason, summary.units, summary.reached)
    else:
        event = method.TrialClosed(message.number, summary.units)
    before = state.status
    is_limited = state.first_waiting_trial >= 0 and not (before.is_stopping or before.is_final)
    after = (continue_after_end if is_limited else apply_event)(state, event, context)
    after = update_refusal_message(after, context)
    after = finish_if_no_trial_open(after, context)
    return after if after.status is before else write_listing_row(after, context)


def count_trial_end(
    state: ExperimentState, message: TrialEnded, context: StepContext
) -> ExperimentState:
    """Count a trial's end in the summary and the head, and return the state.

    The trial's message becomes the experiment's, unless the experiment is stopping with an error.
    Webhooks announce the end (`raise_trial_event`). A
    repeated end, an end of an earlier run generation and an unknown trial change nothing.
    """
    summary = open_summary(message.number, state.run_generation, context)
    if summary is None or message.run_generation != state.run_generation:
        return state
    ended = summary._replace(status=message.status, run_generation=state.run_generation)
    replace_summary(message.number, ended, context)
    state = raise_trial_event(state, ended, message, context)
    # The message of a stopped trial does not replace the reason that stopped the experiment.
    reason = state.message if state.status is Status.STOPPING_ERROR else ""
    return evolve(
        state,
        trials_open=state.trials_open - 1,
        trials_completed=state.trials_completed + (message.status is Status.COMPLETED),
        trials_errored=state.trials_errored + (message.status is Status.ERROR),
        message=reason or message.message or state.message,
    )
