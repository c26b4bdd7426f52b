"""A trial's next action, by the experiment's status and the trial's own work, and the
trial's end.
"""

from dataclasses import replace

from control_plane.actors import addresses
from control_plane.actors.messages.experiment import TrialEnded
from control_plane.actors.messages.pool import SlotsReleased, SlotsRequested
from control_plane.actors.messages.trial import TrialMoved
from control_plane.actors.records import Status
from control_plane.actors.step import StepContext
from control_plane.actors.trial.allocation import kill, preempt
from control_plane.actors.trial.metering import finish_metering
from control_plane.actors.trial.state import Allocation, AllocationState, TrialState
from control_plane.actors.trial.time_limit import TIME_REASON, count_used_time, remaining_time_ms
from control_plane.evolve import evolve
from control_plane.searchers.method import ExitReason


def wants_slots(state: TrialState) -> bool:
    """Return whether the trial should run as soon as slots are available.

    The trial and the experiment, as far as the trial knows, must be ACTIVE, with work left. The
    trial must not be killed or stopped, and must not wait for a checkpoint or a restart delay.
    """
    if state.status is not Status.ACTIVE or state.experiment_status is not Status.ACTIVE:
        return False
    if state.killed or state.awaits_restart_delay or state.stopped or state.awaits_checkpoint:
        return False
    if state.length is None:
        return False
    return not state.has_reached_length or state.must_end_again


def reconcile(state: TrialState, context: StepContext) -> TrialState:
    """Request slots, stop the allocation or end the trial, as the experiment's status and the work
    require.

    No other function decides this. Return the updated state.

    - Without an allocation: end the trial if it is killed, stopped, done, or its experiment is
      stopping. Otherwise request slots if `wants_slots`, or cancel the trial if it has used up the
      time of `max_trial_duration`.
    - With a queued request: withdraw the request if the trial must not run, and reconcile again.
    - With held slots: kill the allocation for a kill or an error, or ask it to save its work. The
      trial goes on after the exit.
    """
    allocation = state.allocation
    if allocation is None:
        if is_ended_from_outside(state):
            return end_stopped_trial(state, context)
        if state.stopped or is_done(state):
            return end_trial(state, Status.COMPLETED, None, context)
        if not wants_slots(state):
            return state
        if remaining_time_ms(state) == 0:
            return _cancel_at_time_limit(state, context)
        return _request_slots(state, context)
    is_active = state.experiment_status is Status.ACTIVE
    if is_active and not (state.killed or state.stopped):
        return state
    if allocation.state is AllocationState.PENDING:
        context.add_reason("withdrawn from the queue")
        return release_and_reconcile(state, allocation, context)
    killed = state.experiment_status in (Status.STOPPING_KILLED, Status.STOPPING_ERROR)
    if state.killed or killed:
        reason = "killed" if state.killed else f"the experiment is {state.experiment_status}"
        return kill(state, allocation, reason)
    reason = f"the experiment is {state.experiment_status}"
    return preempt(state, allocation, "the search stopped it" if is_active else reason, context)


def is_ended_from_outside(state: TrialState) -> bool:
    """Return whether a user has killed only this trial, or the experiment is stopping."""
    return state.killed or state.experiment_status.is_stopping


def is_done(state: TrialState) -> bool:
    """Return whether all assigned training is done, the search assigns no further length, and no
    failed run must be repeated.
    """
    is_trained = state.length is None or state.has_reached_length
    return state.closed and is_trained and not state.must_end_again


def release_and_reconcile(
    state: TrialState, allocation: Allocation, context: StepContext, *, has_yielded: bool = False
) -> TrialState:
    """Send the pool a SlotsReleased, roll back to the latest checkpoint, and reconcile.

    The allocation is dropped. For slots with a price, a usage row is written and the experiment
    gets a TrialMetered (`finish_metering`). Without a checkpoint, `steps` becomes 0.

    Args:
        has_yielded: whether the run gave up its slots by itself, so that no work was lost.
            Otherwise the next run discards metrics after its checkpoint, if the settings say so.
    """
    state = _release_slots(state, allocation, context)
    steps = state.checkpoint.steps_completed if state.checkpoint else 0
    lost = state.settings.discards_lost_metrics and not has_yielded
    state = evolve(
        state,
        allocation=None,
        steps=min(state.steps, steps),
        lost_work=state.lost_work or lost,
    )
    return reconcile(state, context)


def move_to_pool(state: TrialState, message: TrialMoved, context: StepContext) -> TrialState:
    """Move the trial to another pool, and return the state.

    A queued request is withdrawn and sent to the new pool at once. A running allocation is
    preempted, unless the message lets the trial keep its slots or the trial runs once. Its next
    request then goes to the new pool. The present pool changes nothing.
    """
    pool = message.pool
    if pool == state.settings.pool:
        return state
    state = evolve(state, settings=replace(state.settings, pool=pool))
    allocation = state.allocation
    if allocation is None:
        return state
    if allocation.state is AllocationState.PENDING:
        context.add_reason(f"withdrawn from pool {allocation.pool}")
        return release_and_reconcile(state, allocation, context)
    if message.keeps_slots or state.settings.runs_once:
        return state
    return preempt(state, allocation, f"the experiment moved to pool {pool}", context)


def end_with_error(state: TrialState, text: str, context: StepContext) -> TrialState:
    """End the trial in ERROR with the message `text`, for a reason other than a failure of the
    code.

    The experiment gets a TrialEnded, and the pool a SlotsReleased for an allocation. For slots with
    a price, a usage row is written and the experiment gets a TrialMetered. The caller makes sure
    that the trial has not ended yet.
    """
    return end_trial(evolve(state, message=text), Status.ERROR, ExitReason.ERRORED, context)


def end_trial(
    state: TrialState,
    status: Status,
    early_exit: ExitReason | None,
    context: StepContext,
    *,
    says_why: bool = False,
) -> TrialState:
    """End the trial with a final status, and send the experiment a TrialEnded.

    An allocation is released: the pool gets a SlotsReleased. For slots with a price, a usage row is
    written and the experiment gets a TrialMetered (`finish_metering`). The TrialEnded contains
    `state.message` only if the status is ERROR, the trial runs once, or `says_why` is set.

    Args:
        early_exit: the reason that the search gets. None: an ordinary end.
        says_why: whether `state.message` is the reason of an end in another status.
    """
    if state.allocation is not None:
        state = _release_slots(state, state.allocation, context)
    says_why = says_why or status is Status.ERROR or state.settings.runs_once
    message = TrialEnded(
        number=state.number,
        status=status,
        early_exit=early_exit or "",
        message=state.message if says_why else "",
        run_generation=state.run_generation,
    )
    context.send(addresses.experiment(state.experiment_id), message)
    return evolve(state, status=status, allocation=None, ended_ms=context.now_ms)


def end_stopped_trial(state: TrialState, context: StepContext) -> TrialState:
    """End a trial that was killed, or that ends with the experiment, as by `end_trial`.

    The status follows the experiment: ERROR after STOPPING_ERROR, COMPLETED after
    STOPPING_COMPLETED, and otherwise CANCELED. A trial that was killed alone ends CANCELED.
    """
    stopping = state.experiment_status
    if stopping is Status.STOPPING_ERROR:
        # The experiment's message has the reason, and no message of the trial may replace it.
        state = end_trial(evolve(state, message=""), Status.ERROR, ExitReason.ERRORED, context)
        return evolve(state, message="the experiment ended in ERROR")
    if stopping is Status.STOPPING_COMPLETED and not state.killed:
        return end_trial(state, Status.COMPLETED, None, context)
    return end_trial(state, Status.CANCELED, ExitReason.USER_CANCELED, context)


def _cancel_at_time_limit(state: TrialState, context: StepContext) -> TrialState:
    """Cancel a trial that has work left, but has used up the time of `max_trial_duration`."""
    context.add_reason(TIME_REASON)
    text = (
        f"trial {state.trial_id} was canceled: {TIME_REASON}; `detcloud experiment continue "
        f"{state.experiment_id}` continues for as long again"
    )
    canceled, reason = Status.CANCELED, ExitReason.USER_CANCELED
    return end_trial(evolve(state, message=text), canceled, reason, context, says_why=True)


def _request_slots(state: TrialState, context: StepContext) -> TrialState:
    """Send the pool a SlotsRequested for a new epoch, and return the state with a PENDING
    allocation.

    The revision of the directives restarts at 1, and an announced early exit is forgotten.
    """
    epoch = state.epoch + 1
    if state.starts_over:
        context.add_reason(
            f"no checkpoint of {state.metric_steps} trained batches: it starts again from batch 0"
        )
    # Requests sort by the job's submission, then by the time of the request, then by the trial.
    submitted = state.settings.submitted_ms
    ticket = f"{submitted:014d}.{context.now_ms:014d}.{state.trial_id:012d}"
    context.send(
        addresses.pool(state.settings.pool),
        SlotsRequested(
            trial_id=state.trial_id,
            epoch=epoch,
            slots=state.settings.slots,
            ticket=ticket,
            group=state.experiment_id,
            excluded_agents=state.excluded_agents,
        ),
    )
    return evolve(
        state,
        epoch=epoch,
        revision=1,
        early_exit="",
        allocation=Allocation(ticket, from_steps=state.steps, pool=state.settings.pool),
    )


def _release_slots(state: TrialState, allocation: Allocation, context: StepContext) -> TrialState:
    """Send the pool a SlotsReleased, and finish the metering (`finish_metering`).

    For slots with a price, a usage row is written and the experiment gets a TrialMetered. Return
    the state with the new cost and the used time. The allocation stays in the state.
    """
    state = count_used_time(state, allocation, context.now_ms)
    context.send(
        addresses.pool(allocation.pool),
        SlotsReleased(
            state.trial_id,
            state.epoch,
            allocation.ticket,
            allocation.agents,
            group=state.experiment_id,
        ),
    )
    return finish_metering(state, allocation, context)
