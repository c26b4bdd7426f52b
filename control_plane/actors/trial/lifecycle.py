"""A trial's next action, given its experiment's status and its own work, and its end."""

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
from control_plane.evolve import evolve
from control_plane.searchers.method import ExitReason


def wants_slots(state: TrialState) -> bool:
    """Whether the trial should run as soon as there are slots for it."""
    if state.status is not Status.ACTIVE or state.experiment_status is not Status.ACTIVE:
        return False
    if state.killed or state.held_back or state.stopped or state.awaits_checkpoint:
        return False
    if state.length is None:
        return False
    return not state.has_reached_length or state.must_end_again


def reconcile(state: TrialState, context: StepContext) -> TrialState:
    """Request, stop or end what the experiment's status and the trial's own work call for now.
    Nothing else decides that.
    """
    allocation = state.allocation
    if allocation is None:
        if state.killed or state.experiment_status.is_stopping:
            return end_stopped_trial(state, context)
        if state.stopped or is_done(state):
            return end_trial(state, Status.COMPLETED, None, context)
        return _request_slots(state, context) if wants_slots(state) else state
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


def is_done(state: TrialState) -> bool:
    """Whether the trial has trained everything that it will ever be asked for, and no run of it
    has failed since.
    """
    is_trained = state.length is None or state.has_reached_length
    return state.closed and is_trained and not state.must_end_again


def release_and_reconcile(
    state: TrialState, allocation: Allocation, context: StepContext
) -> TrialState:
    """Release the slots, roll back to the latest checkpoint, and reconcile."""
    state = _release_slots(state, allocation, context)
    steps = state.checkpoint.steps_completed if state.checkpoint else 0
    return reconcile(evolve(state, allocation=None, steps=min(state.steps, steps)), context)


def move_to_pool(state: TrialState, message: TrialMoved, context: StepContext) -> TrialState:
    """Move to another pool. A queued allocation moves immediately; a running one saves its work
    first and releases its slots in the pool that it has them of, unless it is to keep them.
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
    """End the trial in ERROR for a reason other than a failure of the training code."""
    return end_trial(evolve(state, message=text), Status.ERROR, ExitReason.ERRORED, context)


def end_trial(
    state: TrialState, status: Status, early_exit: ExitReason | None, context: StepContext
) -> TrialState:
    """End the trial, release what it holds, and tell its experiment."""
    if state.allocation is not None:
        state = _release_slots(state, state.allocation, context)
    message = TrialEnded(
        number=state.number,
        status=status,
        early_exit=early_exit or "",
        message=state.message if status is Status.ERROR else "",
        life=state.life,
    )
    context.send(addresses.experiment(state.experiment_id), message)
    return evolve(state, status=status, allocation=None, ended_ms=context.now_ms)


def end_stopped_trial(state: TrialState, context: StepContext) -> TrialState:
    """End the trial as its experiment ends; one that was killed alone ends CANCELED."""
    stopping = state.experiment_status
    if stopping is Status.STOPPING_ERROR:
        # The experiment has its own reason: the trial's message does not replace it.
        state = end_trial(evolve(state, message=""), Status.ERROR, ExitReason.ERRORED, context)
        return evolve(state, message="the experiment ended in ERROR")
    if stopping is Status.STOPPING_COMPLETED and not state.killed:
        return end_trial(state, Status.COMPLETED, None, context)
    return end_trial(state, Status.CANCELED, ExitReason.USER_CANCELED, context)


def _request_slots(state: TrialState, context: StepContext) -> TrialState:
    epoch = state.epoch + 1
    # The queue's order as a string: job submission, then time of the request, then the trial.
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
