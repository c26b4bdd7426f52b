"""How far a trial's allocation has come, and what is wanted of it.

Wishes only get worse: run, preempt, kill. The timers here come whether they are needed or not; a
late one finds another epoch, or a wish that it does not concern.
"""

from control_plane.actors.step import Turn
from control_plane.actors.trial_cost import priced
from control_plane.actors.trial_gang import furthest, reached
from control_plane.actors.trial_messages import (
    CheckpointReported,
    ContainerStateReported,
    SlotsAssigned,
    TerminationOverdue,
    ValidationReported,
)
from control_plane.actors.trial_state import Allocation, AllocationState, TrialState, Wish
from control_plane.evolve import evolve
from control_plane.searchers.method import ExitReason

# How long training code may take to end after it refused its hyperparameters.
REFUSED_MS = 10_000


def assigned(
    state: TrialState, allocation: Allocation, message: SlotsAssigned, turn: Turn
) -> TrialState:
    """The pool has placed it."""
    if allocation.places:
        return state
    placed = evolve(
        allocation,
        places=message.places,
        state=furthest(allocation.state, AllocationState.ASSIGNED),
        placed_ms=turn.now_ms,
    )
    return priced(state, placed, turn)


def advanced(
    state: TrialState, allocation: Allocation, message: ContainerStateReported
) -> TrialState:
    """A container is in the state of that name; it never goes back."""
    if message.state not in AllocationState.__members__:
        return state
    container = AllocationState(message.state)
    if message.nodes > 1:
        after = reached(allocation, message.node_rank, message.nodes, container)
    else:
        after = evolve(allocation, state=furthest(allocation.state, container))
    return state if after == allocation else evolve(state, allocation=after)


def counted(allocation: Allocation, message: object) -> Allocation | None:
    """The allocation after a report of its training, None: another node has said it before."""
    if isinstance(message, ValidationReported) and message.nodes > 1:
        if message.steps <= allocation.validated:
            return None
        return evolve(allocation, validated=message.steps)
    if allocation.is_gang or allocation.state is AllocationState.RUNNING:
        return allocation
    return evolve(allocation, state=AllocationState.RUNNING)


def preempting(state: TrialState, allocation: Allocation, reason: str, turn: Turn) -> TrialState:
    """Asks it to save its work and end. One that does not run yet has none, and is stopped."""
    if allocation.state is not AllocationState.RUNNING:
        return killing(state, allocation, reason)
    patience_ms = state.settings.preempt_ms
    if allocation.wish is Wish.RUN and patience_ms is not None:
        turn.set_timer(turn.now_ms + patience_ms, TerminationOverdue(state.epoch))
    return _wishing(state, allocation, Wish.PREEMPT, reason)


def killing(state: TrialState, allocation: Allocation, reason: str) -> TrialState:
    """Stops it at once."""
    return _wishing(state, allocation, Wish.KILL, reason)


def saved(state: TrialState, allocation: Allocation, message: object, turn: Turn) -> None:
    """One that has saved its work after it was told to stop has nothing left to do but end."""
    patience_ms = state.settings.terminate_ms
    if allocation.wish is not Wish.PREEMPT or patience_ms is None:
        return
    if isinstance(message, CheckpointReported):
        turn.set_timer(turn.now_ms + patience_ms, TerminationOverdue(state.epoch))


def exiting_early(state: TrialState, reason: str, turn: Turn) -> TrialState:
    """The code has said why it ends; one that refused its hyperparameters has little time to."""
    if _is_refusal(reason) and not _is_refusal(state.early_exit):
        patience_ms = state.settings.terminate_ms or REFUSED_MS
        turn.set_timer(turn.now_ms + patience_ms, TerminationOverdue(state.epoch))
    return evolve(state, early_exit=reason)


def overdue(state: TrialState, allocation: Allocation) -> TrialState:
    """It was to end by now."""
    if allocation.wish is not Wish.PREEMPT and not refuses_hparams(state):
        return state
    return killing(state, allocation, "it did not end when it was told to")


def refuses_hparams(state: TrialState) -> bool:
    """Whether the code that runs has refused the hyperparameters."""
    return _is_refusal(state.early_exit)


def _is_refusal(early_exit: str) -> bool:
    return early_exit in (ExitReason.INVALID_HP, ExitReason.INIT_INVALID_HP)


def _wishing(state: TrialState, allocation: Allocation, wish: Wish, reason: str) -> TrialState:
    if allocation.wish is Wish.KILL or allocation.wish is wish:
        return state
    wishing = evolve(allocation, wish=wish, wish_reason=reason)
    return evolve(state, allocation=wishing, revision=state.revision + 1)
