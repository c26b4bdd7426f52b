"""The end of a trial that runs once, for example the program of a command.

The code saves no checkpoint to continue from, and its effects may not be repeated unasked. So every
end of the allocation ends the trial. The trial completes if the program exits well, and otherwise
ends in ERROR with the reason.
"""

from control_plane.actors.messages.trial import AllocationExited
from control_plane.actors.records import Status
from control_plane.actors.step import StepContext
from control_plane.actors.trial import gang
from control_plane.actors.trial.lifecycle import (
    end_stopped_trial,
    end_trial,
    end_with_error,
    is_ended_from_outside,
)
from control_plane.actors.trial.stalls import record_loss
from control_plane.actors.trial.state import Allocation, DesiredState, TrialState
from control_plane.evolve import evolve

_GOOD_REASONS = ("completed", "idle", "preempted", "stop_requested")
_ADVICE = "it runs once, so start another one"


def end_single_run(
    state: TrialState, allocation: Allocation, message: AllocationExited, context: StepContext
) -> TrialState:
    """End a trial that runs once, and release the slots. Store the exit code and the agent.

    - A trial that is ended from outside ends as `end_stopped_trial` decides.
    - A good exit without a loss ends the trial in COMPLETED. So does the end of a run that has come
      to its `max_duration` or was idle, with the reason as the message.
    - A loss, a stop at the cluster's request, and any other exit end it in ERROR, with a message
      that says why.

    The experiment gets a TrialEnded in each case.
    """
    final_agent = next(iter(allocation.agents), "")
    state = evolve(state, exit_code=message.code, final_agent=final_agent)
    is_loss = gang.is_loss(message, allocation.desired_state)
    if is_ended_from_outside(state):
        return end_stopped_trial(state, context)
    limit = _limit_text(allocation, message)
    if limit and not is_loss:
        context.add_reason(limit)
        return end_trial(evolve(state, message=limit), Status.COMPLETED, None, context)
    if message.reason in _GOOD_REASONS and not message.code and not is_loss:
        return end_trial(state, Status.COMPLETED, None, context)
    if is_loss:
        state = record_loss(state, allocation, message, context)
        text = f"lost: {gang.exit_cause(message)}; {_advice(state)}"
        return end_with_error(state, text, context)
    if allocation.desired_state is not DesiredState.RUN:
        # Users cannot pause this kind of experiment, so the cost limit has paused the experiment.
        is_paused = state.experiment_status is Status.PAUSED
        reason = "it has come to its max_cost" if is_paused else allocation.desired_state_reason
        return end_with_error(state, f"stopped: {reason}; {_advice(state)}", context)
    text = message.message or f"the program failed ({message.reason})"
    return end_with_error(state, text, context)


def _advice(state: TrialState) -> str:
    """Return the advice to start another run, with the files of this run if a snapshot exists."""
    settings, snapshot = state.settings.snapshots, state.snapshot
    if settings is None:
        return _ADVICE
    has_own = snapshot is not None and not snapshot.is_deleted
    if not has_own and not settings.is_restored:
        return _ADVICE
    command = f"detcloud {settings.kind} start --from {state.experiment_id}"
    return f"start it again with its files: {command}"


def _limit_text(allocation: Allocation, message: AllocationExited) -> str:
    """Return why a limit of the run has ended the run. "" for any other end.

    The agent ends an idle run, and reports the reason `idle` with a message.
    """
    if allocation.has_come_to_limit:
        return allocation.desired_state_reason
    return message.message if message.reason == "idle" else ""
