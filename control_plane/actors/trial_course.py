"""What a trial does next, given its experiment's status and its own work, and how it ends."""

from dataclasses import replace

from control_plane.actors import addresses
from control_plane.actors.experiment_messages import TrialEnded
from control_plane.actors.pool_messages import SlotsReleased, SlotsRequested
from control_plane.actors.records import Status
from control_plane.actors.step import Turn
from control_plane.actors.trial_allocation import killing, preempting
from control_plane.actors.trial_cost import settled
from control_plane.actors.trial_state import Allocation, AllocationState, TrialState
from control_plane.evolve import evolve
from control_plane.searchers.method import ExitReason


def wants_slots(state: TrialState) -> bool:
    """Whether the trial should run if there are slots for it."""
    if state.status is not Status.ACTIVE or state.experiment_status is not Status.ACTIVE:
        return False
    if state.killed or state.held_back or state.stopped or state.awaits_checkpoint:
        return False
    return state.length is not None and state.length > state.reached


def carried_on(state: TrialState, turn: Turn) -> TrialState:
    """What the trial wants now, given its experiment's status and its own work: the one place
    that decides.
    """
    allocation = state.allocation
    if allocation is None:
        if state.killed or state.experiment_status.stopping:
            return _stopped(state, turn)
        if state.stopped or is_done(state):
            return ended(state, Status.COMPLETED, None, turn)
        return _requested(state, turn) if wants_slots(state) else state
    is_active = state.experiment_status is Status.ACTIVE
    if is_active and not (state.killed or state.stopped):
        return state
    if allocation.state is AllocationState.PENDING:
        turn.because("withdrawn from the queue")
        return released(state, allocation, turn)
    killed = state.experiment_status in (Status.STOPPING_KILLED, Status.STOPPING_ERROR)
    if state.killed or killed:
        reason = "killed" if state.killed else f"the experiment is {state.experiment_status}"
        return killing(state, allocation, reason)
    reason = f"the experiment is {state.experiment_status}"
    return preempting(state, allocation, "the search stopped it" if is_active else reason, turn)


def is_done(state: TrialState) -> bool:
    """Whether the trial has trained all that it will ever be asked for."""
    return state.closed and (state.length is None or state.reached >= state.length)


def released(state: TrialState, allocation: Allocation, turn: Turn) -> TrialState:
    """Gives the slots back, rolls back to the latest checkpoint and goes on to what comes next."""
    state = _release(state, allocation, turn)
    steps = state.checkpoint.steps_completed if state.checkpoint else 0
    return carried_on(evolve(state, allocation=None, steps=min(state.steps, steps)), turn)


def moved(state: TrialState, pool: str, turn: Turn) -> TrialState:
    """Asks another pool from now on. What waits moves at once; what runs saves its work first, and
    gives its slots back where it has them.
    """
    if pool == state.settings.pool:
        return state
    state = evolve(state, settings=replace(state.settings, pool=pool))
    allocation = state.allocation
    if allocation is None:
        return state
    if allocation.state is AllocationState.PENDING:
        turn.because(f"withdrawn from pool {allocation.pool}")
        return released(state, allocation, turn)
    return preempting(state, allocation, f"the experiment moved to pool {pool}", turn)


def errored(state: TrialState, text: str, turn: Turn) -> TrialState:
    """Ends by an error that is no failure of the training code's."""
    return ended(evolve(state, message=text), Status.ERROR, ExitReason.ERRORED, turn)


def ended(
    state: TrialState, status: Status, early_exit: ExitReason | None, turn: Turn
) -> TrialState:
    """Ends, and its experiment learns it; what it holds is given back."""
    if state.allocation is not None:
        state = _release(state, state.allocation, turn)
    message = TrialEnded(
        number=state.number,
        status=status,
        early_exit=early_exit or "",
        message=state.message if status is Status.ERROR else "",
        life=state.life,
    )
    turn.send(addresses.experiment(state.experiment_id), message)
    return evolve(state, status=status, allocation=None, ended_ms=turn.now_ms)


def _stopped(state: TrialState, turn: Turn) -> TrialState:
    """Ends as its experiment ends, but for one that was killed alone."""
    stopping = state.experiment_status
    if stopping is Status.STOPPING_ERROR:
        # The experiment knows its own reason.
        state = ended(evolve(state, message=""), Status.ERROR, ExitReason.ERRORED, turn)
        return evolve(state, message="the experiment ended in ERROR")
    if stopping is Status.STOPPING_COMPLETED and not state.killed:
        return ended(state, Status.COMPLETED, None, turn)
    return ended(state, Status.CANCELED, ExitReason.USER_CANCELED, turn)


def _requested(state: TrialState, turn: Turn) -> TrialState:
    epoch = state.epoch + 1
    # Job submission, then request time, then the trial: the queue's order as a string.
    submitted = state.settings.submitted_ms
    ticket = f"{submitted:014d}.{turn.now_ms:014d}.{state.trial_id:012d}"
    turn.send(
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


def _release(state: TrialState, allocation: Allocation, turn: Turn) -> TrialState:
    turn.send(
        addresses.pool(allocation.pool),
        SlotsReleased(
            state.trial_id,
            state.epoch,
            allocation.ticket,
            allocation.agents,
            group=state.experiment_id,
        ),
    )
    return settled(state, allocation, turn)
