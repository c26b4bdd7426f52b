"""A trial's allocation: the state, and the state that the trial desires.

The desired state only moves from run to preempt to kill. Timers set here arrive even if they are no
longer needed. A late timer has another epoch or desired state, and changes nothing.
"""

from control_plane.actors import addresses
from control_plane.actors.messages.experiment import TrialPlaced
from control_plane.actors.messages.trial import (
    ContainerStateReported,
    DurationExceeded,
    SlotsAssigned,
    TerminationOverdue,
)
from control_plane.actors.step import StepContext
from control_plane.actors.trial.gang import advance_node, later_state
from control_plane.actors.trial.lost_work import begin_run
from control_plane.actors.trial.metering import start_metering
from control_plane.actors.trial.state import Allocation, AllocationState, DesiredState, TrialState
from control_plane.actors.trial.time_limit import TIME_REASON, remaining_time_ms
from control_plane.evolve import evolve
from control_plane.searchers.method import ExitReason

DURATION_REASON = "it has come to its max_duration"
# How long training code may take to exit after it refused the hyperparameters, by default.
REFUSED_MS = 10_000


def assign_places(
    state: TrialState, allocation: Allocation, message: SlotsAssigned, context: StepContext
) -> TrialState:
    """Store the places that the pool chose, begin metering and begin the run.

    The experiment may get a TrialMetered, and a TrialMetricsDiscarded if the run discards metrics
    of lost work. With a `max_duration`, a DurationExceeded timer ends the run of a command,
    notebook or shell, and an experiment gets a TrialPlaced. With a `max_trial_duration`, the timer
    is set for the time that the trial has left. A repeated assignment changes nothing.
    """
    if allocation.places:
        return state
    if state.settings.experiment_duration_ms is not None:
        placed_message = TrialPlaced(state.number, state.run_generation, context.now_ms)
        context.send(addresses.experiment(state.experiment_id), placed_message)
    duration_ms = state.settings.max_duration_ms or remaining_time_ms(state)
    if duration_ms is not None:
        context.set_timer(context.now_ms + duration_ms, DurationExceeded(state.epoch))
    placed = evolve(
        allocation,
        places=message.places,
        state=later_state(allocation.state, AllocationState.ASSIGNED),
        placed_ms=context.now_ms,
    )
    return begin_run(start_metering(state, placed, context), context)


def apply_container_state(
    state: TrialState, allocation: Allocation, message: ContainerStateReported
) -> TrialState:
    """Advance the allocation, or a node of a gang, to the state of a container.

    Earlier and unknown states return `state` unchanged.
    """
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
    """Ask the allocation to save the trial's work and exit.

    If the settings limit the time by `preempt_ms`, a TerminationOverdue timer kills the allocation
    later. An allocation that is not RUNNING, or whose code saves no checkpoints, is killed
    immediately. A killed or preempted allocation stays unchanged.
    """
    if allocation.state is not AllocationState.RUNNING or state.settings.runs_once:
        return kill(state, allocation, reason)
    timeout_ms = state.settings.preempt_ms
    if allocation.desired_state is DesiredState.RUN and timeout_ms is not None:
        context.set_timer(context.now_ms + timeout_ms, TerminationOverdue(state.epoch))
    return _set_desired_state(state, allocation, DesiredState.PREEMPT, reason)


def kill(state: TrialState, allocation: Allocation, reason: str) -> TrialState:
    """Set the desired state to KILL, so that the agents stop the allocation immediately.

    Slots stay held until the exit is reported. A killed allocation stays unchanged.
    """
    return _set_desired_state(state, allocation, DesiredState.KILL, reason)


def set_exit_deadline(state: TrialState, allocation: Allocation, context: StepContext) -> None:
    """Set a TerminationOverdue timer for an allocation that was asked to stop and has saved a
    checkpoint.

    No timer is set for other allocations, or if the settings do not limit the time by
    `terminate_ms`.
    """
    timeout_ms = state.settings.terminate_ms
    if allocation.desired_state is DesiredState.PREEMPT and timeout_ms is not None:
        context.set_timer(context.now_ms + timeout_ms, TerminationOverdue(state.epoch))


def record_early_exit(state: TrialState, reason: str, context: StepContext) -> TrialState:
    """Record the exit reason that the training code announced. The last announcement counts.

    After a refusal of the hyperparameters, later announcements of other processes change nothing. A
    TerminationOverdue timer then kills an allocation that does not exit within `terminate_ms`, or
    within REFUSED_MS without the setting.
    """
    if _is_refusal(state.early_exit):
        return state
    if _is_refusal(reason):
        timeout_ms = state.settings.terminate_ms or REFUSED_MS
        context.set_timer(context.now_ms + timeout_ms, TerminationOverdue(state.epoch))
    return evolve(state, early_exit=reason)


def kill_overdue(state: TrialState, allocation: Allocation, context: StepContext) -> TrialState:
    """Kill an allocation that should have ended by now.

    Return the state unchanged if the allocation was neither asked to save its work nor refused the
    hyperparameters.
    """
    if allocation.desired_state is not DesiredState.PREEMPT and not refuses_hparams(state):
        return state
    context.add_reason("killed: the allocation has not stopped in time")
    return kill(state, allocation, "it did not end when it was told to")


def end_long_run(state: TrialState, allocation: Allocation, context: StepContext) -> TrialState:
    """Stop a run that has reached `max_duration` or `max_trial_duration`.

    The run of a command, notebook or shell is killed, and then ends regularly. The run of an
    experiment is asked to save its work; after the exit, the trial is canceled. Return the state
    unchanged if the allocation was killed before.
    """
    if allocation.desired_state is DesiredState.KILL:
        return state
    if not state.settings.runs_once:
        context.add_reason(f"the run is stopped: {TIME_REASON}")
        allocation = evolve(allocation, has_come_to_limit=True)
        return preempt(evolve(state, allocation=allocation), allocation, TIME_REASON, context)
    context.add_reason("the run has come to its max_duration")
    return kill(state, evolve(allocation, has_come_to_limit=True), DURATION_REASON)


def refuses_hparams(state: TrialState) -> bool:
    """Return whether the running code has refused the trial's hyperparameters."""
    return _is_refusal(state.early_exit)


def _is_refusal(early_exit: str) -> bool:
    """Return whether an announced exit reason is a refusal of the hyperparameters."""
    return early_exit in (ExitReason.INVALID_HP, ExitReason.INIT_INVALID_HP)


def _set_desired_state(
    state: TrialState, allocation: Allocation, desired: DesiredState, reason: str
) -> TrialState:
    """Set the desired state and the reason, and increase the revision of the directives.

    Return `state` unchanged if the desired state is the same. KILL is never replaced.
    """
    if allocation.desired_state is DesiredState.KILL or allocation.desired_state is desired:
        return state
    allocation = evolve(allocation, desired_state=desired, desired_state_reason=reason)
    return evolve(state, allocation=allocation, revision=state.revision + 1)
