"""The end of an allocation: a node's exit or loss, and the next action of the trial.

An exit on request of the cluster is no failure. Other exits complete the trial, count as a failure,
or let the trial start again.
"""

from control_plane.actors import addresses
from control_plane.actors.messages.experiment import NoticeEnded
from control_plane.actors.messages.trial import AllocationExited, AllocationLost
from control_plane.actors.records import Status
from control_plane.actors.step import StepContext
from control_plane.actors.trial import gang
from control_plane.actors.trial.allocation import kill, refuses_hparams
from control_plane.actors.trial.damage import can_excuse_failure
from control_plane.actors.trial.gang_checks import reconcile_after_failed_check
from control_plane.actors.trial.lifecycle import (
    end_stopped_trial,
    end_trial,
    is_ended_from_outside,
    release_and_reconcile,
)
from control_plane.actors.trial.metering import stop_metering_agent
from control_plane.actors.trial.repeated_failures import record_failure
from control_plane.actors.trial.restart_window import (
    count_failure,
    counted_failures,
    window_text,
)
from control_plane.actors.trial.single_run import end_single_run
from control_plane.actors.trial.stalls import (
    judge_full_disk,
    reconcile_after_damage,
    reconcile_after_failed_start,
    reconcile_after_loss,
    reconcile_after_yield,
    record_loss,
)
from control_plane.actors.trial.state import Allocation, DesiredState, TrialState
from control_plane.evolve import evolve
from control_plane.searchers.method import ExitReason
from detcloud.shared.plurals import count_text


def lose_agent(
    state: TrialState, allocation: Allocation, message: AllocationLost, context: StepContext
) -> TrialState:
    """Record the loss of an agent of the allocation, and stop metering the agent.

    For a gang, the loss counts as the exit of the agent's node. Otherwise the allocation ends, and
    the trial starts again without using up a restart.
    """
    allocation = stop_metering_agent(state, allocation, message, context)
    state = evolve(state, allocation=allocation)
    if allocation.is_gang:
        after = gang.record_lost_agent(allocation, message)
        return end_member(state, allocation, after, context)
    lost = AllocationExited(state.epoch, gang.AGENT_LOST, message=message.reason)
    return end_allocation(state, allocation, lost, context)


def end_member(
    state: TrialState, before: Allocation, allocation: Allocation, context: StepContext
) -> TrialState:
    """Apply the exit or loss of a gang's node, and return the state.

    Return `state` unchanged if `allocation` is `before`, which means a repeated exit. If every node
    has ended, the allocation ends with the deciding exit. If the gang is broken or has refused the
    hyperparameters, the other nodes are killed. The slots stay held until their exits.

    Args:
        before: the allocation before the exit.
        allocation: the allocation with the recorded exit.
    """
    verdict = allocation.verdict
    if allocation is before or verdict is None:
        return state
    state = evolve(state, allocation=allocation)
    if gang.is_over(allocation):
        ended = evolve(allocation, desired_state=gang.desired_state(allocation))
        return end_allocation(state, ended, verdict.exit, context)
    if not gang.is_broken(allocation) and not refuses_hparams(state):
        return state
    reason = f"node {verdict.exit.node_rank} of {verdict.exit.nodes} is gone"
    context.add_reason(f"the other nodes are stopped: {reason}")
    return kill(state, allocation, f"{reason}: {gang.exit_cause(verdict.exit)}")


def end_allocation(
    state: TrialState, allocation: Allocation, message: AllocationExited, context: StepContext
) -> TrialState:
    """Release the slots of an ended allocation, and choose the next action of the trial.

    The trial starts again, ends, or waits, by the reason of the exit. A TrialEnded is sent if the
    trial ends, and a SlotsRequested if it starts again. The outcome of an interruption notice is
    sent to the experiment as a NoticeEnded. A trial that runs once always ends.
    """
    if outcome := allocation.notice_outcome or message.notice_outcome:
        ended = NoticeEnded(state.number, state.epoch, outcome)
        context.send(addresses.experiment(state.experiment_id), ended)
    if state.settings.runs_once:
        return end_single_run(state, allocation, message, context)
    if message.reason == gang.AGENT_LOST:
        state = record_loss(state, allocation, message, context)
        return release_and_reconcile(state, allocation, context)
    if is_ended_from_outside(state):
        return _after_outside_end(state, allocation, message, context)
    return _after_end(state, allocation, message, context)


def _after_end(
    state: TrialState, allocation: Allocation, message: AllocationExited, context: StepContext
) -> TrialState:
    """Choose the next action of a trial that is not ended from outside (`is_ended_from_outside`).

    - Refused hyperparameters, an announced stop and the exit reason `completed` end the trial in
      COMPLETED.
    - A hanging run that was killed counts as a failure.
    - A run whose machines failed the check starts again on other machines, without a restart.
    - An idle run that its agent has ended cancels the trial. So does the end for low use.
    - Losses, yields, failed starts and exits on request let the trial start again without a
      restart. Too many such ends without progress end it in ERROR.
    - Any other exit counts as a failure.
    """
    message = judge_full_disk(state, message)
    reason = message.reason
    if refuses_hparams(state):
        state = evolve(state, message=message.message or "the hyperparameters were refused")
        return end_trial(state, Status.COMPLETED, ExitReason(state.early_exit), context)
    if reason == "stop_requested" and not state.early_exit:
        reason = _reason_without_request(state, allocation)
    if reason == "stop_requested" or (reason == "errored" and state.early_exit):
        # Training code that announced a stop may exit with any code.
        return end_trial(state, Status.COMPLETED, ExitReason.USER_REQUESTED_STOP, context)
    if reason == "completed":
        return end_trial(evolve(state, closed=True), Status.COMPLETED, None, context)
    if gang.is_loss(message, allocation.desired_state):
        return reconcile_after_loss(state, allocation, message, context)
    if limit := _limit_text(allocation, message):
        return _cancel_at_limit(state, limit, context)
    if reason in ("preempted", "idle"):
        return reconcile_after_yield(state, allocation, context)
    if allocation.desired_state is not DesiredState.RUN and not allocation.has_hung:
        # The allocation was asked to stop, so no exit counts as a failure.
        return _after_stop(state, allocation, message, context)
    if reason == "start_failed":
        return reconcile_after_failed_start(state, allocation, message, context)
    return _after_failure(state, allocation, message, context)


def _limit_text(allocation: Allocation, message: AllocationExited) -> str:
    """Return why the cluster has ended a run with low use, or the agent an idle run.

    Return "" for any other end.
    """
    if allocation.low_use is not None and allocation.low_use.end_reason:
        return allocation.low_use.end_reason
    has_ended = message.limit and allocation.desired_state is DesiredState.RUN
    return (message.message or message.limit) if has_ended else ""


def _cancel_at_limit(state: TrialState, limit: str, context: StepContext) -> TrialState:
    """Cancel a trial after the end of an idle or little used run, with the reason `limit`."""
    context.add_reason(limit)
    text = f"trial {state.trial_id} was canceled: {limit}"
    return end_trial(
        evolve(state, message=text),
        Status.CANCELED,
        ExitReason.USER_CANCELED,
        context,
        says_why=True,
    )


def _reason_without_request(state: TrialState, allocation: Allocation) -> str:
    """Return the reason that counts for the exit reason `stop_requested` without an announced stop.

    After a kill by the cluster, return "killed". If only a good exit was missing, return
    "completed". Otherwise return "stop_requested".
    """
    if allocation.desired_state is DesiredState.KILL:
        # The kill ended the run, not a request of the code.
        return "killed"
    # An earlier run has reached the length, and this run may have skipped the training.
    return "completed" if state.must_end_again else "stop_requested"


def _after_outside_end(
    state: TrialState, allocation: Allocation, message: AllocationExited, context: StepContext
) -> TrialState:
    """End a trial that is ended from outside (`is_ended_from_outside`).

    The request decides the status, not the exit. A run that ended by its own decision keeps its
    steps. Any other run rolls back to the latest checkpoint.
    """
    if message.reason in ("completed", "stop_requested"):
        return end_stopped_trial(state, context)
    return _after_stop(state, allocation, message, context)


def _after_stop(
    state: TrialState, allocation: Allocation, message: AllocationExited, context: StepContext
) -> TrialState:
    """Release the slots of an allocation that was asked to stop, roll back to the latest
    checkpoint, and reconcile.

    The text of the exit becomes the trial's message, unless the node was lost or killed. After a
    failed check of the machines, the trial requests slots after a delay.
    """
    if allocation.has_failed_check and not is_ended_from_outside(state):
        return reconcile_after_failed_check(state, allocation, context)
    if message.message and message.reason not in ("lost", "killed"):
        state = evolve(state, message=message.message)
    return release_and_reconcile(state, allocation, context)


def _after_failure(
    state: TrialState, allocation: Allocation, message: AllocationExited, context: StepContext
) -> TrialState:
    """Count a failure of the code, and start again or end the trial in ERROR.

    The trial ends if the failure is permanent, if a log policy has canceled retries, if a failure
    on another machine was alike, or if more than `max_restarts` failures count. With a
    `restart_window`, only failures within the window count. A failure that a damaged checkpoint
    excuses is not counted as a restart, unless a log policy has canceled retries.
    """
    if not state.retries_canceled and can_excuse_failure(state, allocation):
        return reconcile_after_damage(state, allocation, context)
    text = message.message or f"the trial's process failed ({message.reason})"
    if allocation.has_hung:
        # The run was killed, so that its exit does not explain the failure.
        text = f"the run hung: {allocation.desired_state_reason}"
    state, repetition = record_failure(state, allocation, message)
    state = evolve(
        count_failure(state, context.now_ms),
        stalls=0,
        message=text,
        # A run with nothing left to train must also exit well (decision 0080).
        awaits_good_exit=state.has_reached_length,
    )
    allowed = state.settings.max_restarts
    if reason := _reason_against_restart(state, message, repetition):
        context.add_reason(f"no restart: {reason}")
        if not message.is_permanent:
            state = evolve(state, message=f"no restart: {reason}\n{text}")
        return end_trial(state, Status.ERROR, ExitReason.ERRORED, context)
    failures, window = counted_failures(state, context.now_ms), window_text(state)
    if failures > allowed:
        context.add_reason(
            f"it failed {count_text(failures, 'time')}{window}; max_restarts is {allowed}"
        )
        return end_trial(state, Status.ERROR, ExitReason.ERRORED, context)
    context.add_reason(f"restart {failures} of {allowed}{window}")
    return release_and_reconcile(state, allocation, context)


def _reason_against_restart(state: TrialState, message: AllocationExited, repetition: str) -> str:
    """Return why a restart after a failure is useless, or "".

    Args:
        repetition: why the failure would repeat itself, from `record_failure`, or "".
    """
    if message.is_permanent:
        return "the code or the image of the trial cannot be loaded"
    return state.retries_canceled or repetition
