"""A trial's allocation: its state, and the state that the trial desires it to be in.

The desired state only goes one way: run, preempt, kill. The timers set here come whether they are
needed or not; a late one finds another epoch or desired state, and changes nothing.
"""

from control_plane.actors.messages.trial import (
    ContainerStateReported,
    SlotsAssigned,
    TerminationOverdue,
)
from control_plane.actors.step import StepContext
from control_plane.actors.trial.gang import advance_node, later_state
from control_plane.actors.trial.metering import start_metering
from control_plane.actors.trial.state import Allocation, AllocationState, DesiredState, TrialState
from control_plane.evolve import evolve
from control_plane.searchers.method import ExitReason

# How long training code may take to end after it refused its hyperparameters.
REFUSED_MS = 10_000


def assign_places(
    state: TrialState, allocation: Allocation, message: SlotsAssigned, context: StepContext
) -> TrialState:
    """Give the allocation the places that the pool chose; a repeat changes nothing."""
    if allocation.places:
        return state
    placed = evolve(
        allocation,
        places=message.places,
        state=later_state(allocation.state, AllocationState.ASSIGNED),
        placed_ms=context.now_ms,
    )
    return start_metering(state, placed, context)


def apply_container_state(
    state: TrialState, allocation: Allocation, message: ContainerStateReported
) -> TrialState:
    """Advance the allocation, or a node of it, to a container's state; never back."""
    if message.state not in AllocationState.__members__:
        return state
    container = AllocationState(message.state)
    if message.nodes > 1:
        after = advance_node(allocation, message.node_rank, message.nodes, container)
    else:
        after = evolve(allocation, state=later_state(allocation.state, container))
    return state if after == allocation else evolve(state, allocation=after)


def preempt(
    state: TrialState, allocation: Allocation, reason: str, context: StepContext
) -> TrialState:
    """Ask the allocation to save its work and end; kill one that does not run yet, or has none."""
    if allocation.state is not AllocationState.RUNNING or state.settings.runs_once:
        return kill(state, allocation, reason)
    timeout_ms = state.settings.preempt_ms
    if allocation.wish is DesiredState.RUN and timeout_ms is not None:
        context.set_timer(context.now_ms + timeout_ms, TerminationOverdue(state.epoch))
    return _set_desired_state(state, allocation, DesiredState.PREEMPT, reason)


def kill(state: TrialState, allocation: Allocation, reason: str) -> TrialState:
    """Immediately stop the allocation."""
    return _set_desired_state(state, allocation, DesiredState.KILL, reason)


def set_exit_deadline(state: TrialState, allocation: Allocation, context: StepContext) -> None:
    """Set the time by which an allocation must end that has saved its work, if it was told to
    stop.
    """
    timeout_ms = state.settings.terminate_ms
    if allocation.wish is DesiredState.PREEMPT and timeout_ms is not None:
        context.set_timer(context.now_ms + timeout_ms, TerminationOverdue(state.epoch))


def record_early_exit(state: TrialState, reason: str, context: StepContext) -> TrialState:
    """Record why the training code ends early; after it refused its hyperparameters it has little
    time to end, and whatever another of its processes asks for changes nothing.
    """
    if _is_refusal(state.early_exit):
        return state
    if _is_refusal(reason):
        timeout_ms = state.settings.terminate_ms or REFUSED_MS
        context.set_timer(context.now_ms + timeout_ms, TerminationOverdue(state.epoch))
    return evolve(state, early_exit=reason)


def kill_overdue(state: TrialState, allocation: Allocation, context: StepContext) -> TrialState:
    """Kill an allocation that should have ended by now."""
    if allocation.wish is not DesiredState.PREEMPT and not refuses_hparams(state):
        return state
    context.add_reason("it has not stopped, and is killed")
    return kill(state, allocation, "it did not end when it was told to")


def refuses_hparams(state: TrialState) -> bool:
    """Whether the running code has refused the trial's hyperparameters."""
    return _is_refusal(state.early_exit)


def _is_refusal(early_exit: str) -> bool:
    return early_exit in (ExitReason.INVALID_HP, ExitReason.INIT_INVALID_HP)


def _set_desired_state(
    state: TrialState, allocation: Allocation, desired: DesiredState, reason: str
) -> TrialState:
    if allocation.wish is DesiredState.KILL or allocation.wish is desired:
        return state
    allocation = evolve(allocation, wish=desired, wish_reason=reason)
    return evolve(state, allocation=allocation, revision=state.revision + 1)
