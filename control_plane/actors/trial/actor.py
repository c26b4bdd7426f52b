"""The step of the trial actor, which owns the target, restarts, checkpoints and a single
allocation.

The trial's epoch numbers its allocations. A message with an older epoch changes nothing, so late
reports, late losses and repeated exits are harmless. The trial wants slots exactly while its
experiment is ACTIVE and it has unfinished work. More than `max_restarts` failures end the trial.
The loss of a machine, or a machine that cannot start the trial, is no failure, but such ends
without progress are limited (stalls.py).

The functions of this module choose the function that handles a message. The handlers are in the
other modules of this folder, a module for each concern.
"""

from typing import assert_never

from control_plane.actors import addresses
from control_plane.actors.messages.experiment_events import TrialAlerted
from control_plane.actors.messages.stored_names import message_name
from control_plane.actors.messages.trial import (
    AllocationExited,
    AllocationLost,
    AllocationMessage,
    CheckpointDamageReported,
    CheckpointDeletionRequested,
    CheckpointFilesDeleted,
    CheckpointHandedOver,
    CheckpointReported,
    CheckpointRequested,
    CheckpointUploaded,
    CheckpointVerified,
    ContainerStateReported,
    DurationExceeded,
    EarlyExitReported,
    ExperimentStatusChanged,
    LengthReached,
    PreemptionRequested,
    ProgressReported,
    RestartDue,
    SlotsAssigned,
    TerminationOverdue,
    TrialContinued,
    TrialCreated,
    TrialDeleted,
    TrialKillRequested,
    TrialMessage,
    TrialMoved,
    ValidationReported,
    WorkAssigned,
)
from control_plane.actors.messages.trial_alerts import AlertReported
from control_plane.actors.messages.trial_deletions import (
    PartialDeletionEnded,
    PartialDeletionRequested,
)
from control_plane.actors.messages.trial_expiry import DataExpired
from control_plane.actors.messages.trial_gang_checks import (
    GangCheckReported,
    GangMeetingDelayed,
)
from control_plane.actors.messages.trial_hangs import HangReported, HangTimeOver, StacksReported
from control_plane.actors.messages.trial_logs import LogPolicyMatched
from control_plane.actors.messages.trial_use import LowUseReported, UseReported
from control_plane.actors.step import CommandRefused, StepContext
from control_plane.actors.trial import gang
from control_plane.actors.trial.allocation import (
    apply_container_state,
    assign_places,
    end_long_run,
    kill,
    kill_overdue,
    preempt,
    record_early_exit,
)
from control_plane.actors.trial.checkpoints import apply_checkpoint_message
from control_plane.actors.trial.damage import clear_damage, record_damage
from control_plane.actors.trial.exits import end_allocation, end_member, lose_agent
from control_plane.actors.trial.experiment_messages import (
    assign_work,
    continue_trial,
    create_trial,
    delete_trial,
    follow_experiment,
    inherit_checkpoint,
    initial_state,
    kill_trial,
)
from control_plane.actors.trial.expiry import expire_data
from control_plane.actors.trial.gang_checks import apply_gang_report
from control_plane.actors.trial.hangs import apply_hang_message
from control_plane.actors.trial.lifecycle import end_with_error, move_to_pool
from control_plane.actors.trial.log_policies import record_match
from control_plane.actors.trial.low_use import apply_use_message
from control_plane.actors.trial.replacement_tracking import track_replacement
from control_plane.actors.trial.span_tracking import write_spans
from control_plane.actors.trial.stalls import end_restart_delay
from control_plane.actors.trial.state import Allocation, TrialState
from control_plane.actors.trial.training import apply_training_report


def step(
    state: TrialState | None, message: TrialMessage, context: StepContext
) -> TrialState | None:
    """Apply a message to the state of a trial, and return the next state.

    A trial that does not exist has no state: only TrialCreated creates one, and the result of any
    other message is None. A repeated TrialCreated changes nothing. A deleted trial ignores all
    messages except a user's kill. An ended trial only accepts messages about checkpoints, kills,
    continuations and its deletion.

    Raises:
        CommandRefused: not_found; a user's kill of a deleted trial.
        CommandRefused: conflict; a copy requests a checkpoint that was deleted.
    """
    if isinstance(message, TrialCreated):
        return create_trial(message, context) if state is None else state
    if state is None or state.deleted:
        return _answer_without_trial(state, message)
    after = track_replacement(state, _apply_message(state, message, context), message, context)
    write_spans(state, after, message, context)
    return after


def _apply_message(state: TrialState, message: TrialMessage, context: StepContext) -> TrialState:
    """Apply a message to a trial that exists. Choose the handler by the message's type.

    Raises CommandRefused as `step` does.
    """
    match message:
        case TrialCreated():
            return state
        case (
            CheckpointDeletionRequested()
            | CheckpointFilesDeleted()
            | PartialDeletionRequested()
            | PartialDeletionEnded()
            | CheckpointUploaded()
            | CheckpointRequested()
        ):
            return apply_checkpoint_message(state, message, context)
        case CheckpointVerified():
            return clear_damage(state, message, context)
        case TrialKillRequested():
            return kill_trial(state, context)
        case TrialContinued():
            return continue_trial(state, message, context)
        case TrialDeleted():
            return delete_trial(state)
        case DataExpired():
            return expire_data(state, message, context)
        case _:
            return state if state.status.is_final else _apply_to_open_trial(state, message, context)


def _apply_to_open_trial(
    state: TrialState,
    message: WorkAssigned
    | CheckpointHandedOver
    | ExperimentStatusChanged
    | TrialMoved
    | RestartDue
    | AllocationMessage,
    context: StepContext,
) -> TrialState:
    """Apply a message to a trial that has not ended. Choose the handler by the message's type."""
    match message:
        case WorkAssigned():
            return assign_work(state, message, context)
        case CheckpointHandedOver():
            return inherit_checkpoint(state, message, context)
        case ExperimentStatusChanged():
            return follow_experiment(state, message, context)
        case TrialMoved():
            return move_to_pool(state, message, context)
        case RestartDue():
            return end_restart_delay(state, message, context)
        case _:
            return _apply_allocation_message(state, message, context)


def _apply_allocation_message(
    state: TrialState, message: AllocationMessage, context: StepContext
) -> TrialState:
    """Apply a message about the present allocation.

    Return the state unchanged if the message is about another epoch, or the trial has no
    allocation.
    """
    allocation = state.allocation
    if message.epoch != state.epoch or allocation is None:
        return state
    match message:
        case SlotsAssigned() | PreemptionRequested() | AllocationLost():
            return _apply_pool_message(state, allocation, message, context)
        case (
            ContainerStateReported()
            | EarlyExitReported()
            | AlertReported()
            | CheckpointDamageReported()
            | LogPolicyMatched()
            | AllocationExited()
        ):
            return _apply_agent_message(state, allocation, message, context)
        case ValidationReported() | ProgressReported() | LengthReached() | CheckpointReported():
            return apply_training_report(state, allocation, message, context)
        case TerminationOverdue():
            return kill_overdue(state, allocation, context)
        case DurationExceeded():
            return end_long_run(state, allocation, context)
        case UseReported() | LowUseReported():
            return apply_use_message(state, allocation, message, context)
        case HangReported() | StacksReported() | HangTimeOver():
            return apply_hang_message(state, allocation, message, context)
        case GangCheckReported() | GangMeetingDelayed():
            return apply_gang_report(state, allocation, message, context)
        case _:
            assert_never(message)


def fallback(state: TrialState | None, message: object, context: StepContext) -> TrialState | None:
    """End a trial that cannot process a message in ERROR.

    The slots are released, and the experiment gets a TrialEnded. A trial that has ended stays
    unchanged. A TrialCreated that failed creates the trial in ERROR. Any other message to a missing
    trial returns None. For a failed CheckpointRequested, the copy gets an answer without a
    checkpoint, because it would wait forever.
    """
    if state is None:
        if not isinstance(message, TrialCreated):
            return None
        state = initial_state(message, context)
    if isinstance(message, CheckpointRequested):
        # The copy waits for an answer.
        context.send(addresses.trial(message.copy_id), CheckpointHandedOver(state.trial_id, None))
    if state.status.is_final:
        return state
    text = f"internal error: {message_name(message)} could not be processed"
    return end_with_error(state, text, context)


def _answer_without_trial(state: TrialState | None, message: TrialMessage) -> TrialState | None:
    """Return `state` unchanged: the head of a deleted trial, or nothing for a missing trial.

    Raises:
        CommandRefused: not_found; the message is a user's kill of a deleted trial.
    """
    if state is not None and isinstance(message, TrialKillRequested):
        raise CommandRefused("not_found", f"trial {state.trial_id} was deleted with its experiment")
    return state


def _apply_pool_message(
    state: TrialState,
    allocation: Allocation,
    message: SlotsAssigned | PreemptionRequested | AllocationLost,
    context: StepContext,
) -> TrialState:
    """Store assigned slots, kill or preempt the allocation, or record the loss of an agent.

    A forced PreemptionRequested kills the allocation, and any other asks it to save its work.
    """
    match message:
        case SlotsAssigned():
            return assign_places(state, allocation, message, context)
        case PreemptionRequested(reason=reason, forced=True):
            return kill(state, allocation, reason)
        case PreemptionRequested(reason=reason):
            return preempt(state, allocation, reason, context)
        case AllocationLost():
            return lose_agent(state, allocation, message, context)


def _apply_agent_message(
    state: TrialState,
    allocation: Allocation,
    message: ContainerStateReported
    | EarlyExitReported
    | AlertReported
    | CheckpointDamageReported
    | LogPolicyMatched
    | AllocationExited,
    context: StepContext,
) -> TrialState:
    """Apply an agent's report: a container's state, an early exit, an alert, a damaged checkpoint,
    a line of the log, or a node's exit. An alert only goes to the experiment.
    """
    match message:
        case ContainerStateReported():
            return apply_container_state(state, allocation, message)
        case EarlyExitReported(reason=reason):
            return record_early_exit(state, reason, context)
        case AlertReported(title=title, text=text, level=level):
            alerted = TrialAlerted(state.number, title, text, level)
            context.send(addresses.experiment(state.experiment_id), alerted)
            return state
        case CheckpointDamageReported():
            return record_damage(state, allocation, message, context)
        case LogPolicyMatched():
            return record_match(state, allocation, message, context)
        case AllocationExited() if message.nodes > 1:
            return end_member(
                state, allocation, gang.record_node_exit(allocation, message), context
            )
        case AllocationExited():
            return end_allocation(state, allocation, message, context)
