"""The end of a trial that runs once, as the program of a command does.

Its code saves nothing that another run could go on from, and what it did may not be repeated
unasked. So whatever ends its allocation ends the trial: with what the program returned, or in ERROR
with the reason why it did not come to an end.
"""

from control_plane.actors.messages.trial import AllocationExited
from control_plane.actors.records import Status
from control_plane.actors.step import StepContext
from control_plane.actors.trial import gang
from control_plane.actors.trial.lifecycle import end_stopped_trial, end_trial, end_with_error
from control_plane.actors.trial.stalls import record_loss
from control_plane.actors.trial.state import Allocation, DesiredState, TrialState
from control_plane.evolve import evolve

_WELL = ("completed", "idle", "preempted", "stop_requested")
_AGAIN = "it runs once, so start another one"


def end_single_run(
    state: TrialState, allocation: Allocation, message: AllocationExited, context: StepContext
) -> TrialState:
    """End the trial, whose one allocation has ended."""
    ran_on = next(iter(allocation.agents), "")
    state = evolve(state, exit_code=message.code, ran_on=ran_on)
    is_loss = gang.is_loss(message, allocation.wish)
    if message.reason in _WELL and not message.code and not is_loss:
        return end_trial(state, Status.COMPLETED, None, context)
    if state.killed or state.experiment_status.is_stopping:
        return end_stopped_trial(state, context)
    if is_loss:
        state = record_loss(state, allocation, message, context)
        return end_with_error(state, f"lost: {gang.exit_cause(message)}; {_AGAIN}", context)
    if allocation.wish is not DesiredState.RUN:
        # Only max_cost pauses it.
        is_paused = state.experiment_status is Status.PAUSED
        reason = "it has come to its max_cost" if is_paused else allocation.wish_reason
        return end_with_error(state, f"stopped: {reason}; {_AGAIN}", context)
    text = message.message or f"the program failed ({message.reason})"
    return end_with_error(state, text, context)
