"""The step of the trial actor, which owns the target, restarts, checkpoints and a single
allocation.

The trial's epoch numbers its allocations. A message with an older epoch changes nothing, so late
reports, late losses and repeated exits are harmless. The trial wants slots exactly while its
experiment is ACTIVE and it has unfinished work. More than `max_restarts` failures end the trial.
The loss of a machine, or a machine that cannot start the trial, is no failure, but such ends
without progress are limited (stalls.py).
"""

from typing import assert_never

from control_plane.actors import addresses
from control_plane.actors.messages.experiment import NoticeEnded
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
    EarlyExitReported,
    ExperimentStatusChanged,
    LengthReached,
    PartialDeletionEnded,
    PartialDeletionRequested,
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
from control_plane.actors.records import Status
from control_plane.actors.step import CommandRefused, StepContext
from control_plane.actors.trial import gang
from control_plane.actors.trial.allocation import (
    apply_container_state,
    assign_places,
    kill,
    kill_overdue,
    preempt,
    record_early_exit,
    refuses_hparams,
)
from control_plane.actors.trial.checkpoints import apply_checkpoint_message
from control_plane.actors.trial.damage import can_excuse_failure, clear_damage, record_damage
from control_plane.actors.trial.lifecycle import (
    end_stopped_trial,
    end_trial,
    end_with_error,
    is_ended_from_outside,
    move_to_pool,
    reconcile,
    release_and_reconcile,
)
from control_plane.actors.trial.metering import stop_metering_agent
from control_plane.actors.trial.single_run import end_single_run
from control_plane.actors.trial.stalls import (
    reconcile_after_damage,
    reconcile_after_failed_start,
    reconcile_after_loss,
    reconcile_after_yield,
    record_loss,
)
from control_plane.actors.trial.state import Allocation, DesiredState, TrialState
from control_plane.actors.trial.training import (
    apply_training_report,
    batches_of,
    report_length_already_reached,
    report_missing_parent_checkpoint,
)
from control_plane.evolve import evolve
from control_plane.searchers.method import ExitReason
from detcloud.shared.plurals import count_text

_BY_SEVERITY = (
    Status.STOPPING_COMPLETED,
    Status.STOPPING_CANCELED,
    Status.STOPPING_KILLED,
    Status.STOPPING_ERROR,
)


def step(
    state: TrialState | None, message: TrialMessage, context: StepContext
) -> TrialState | None:
    """Apply one message to the state of a trial. A trial that does not exist has no state."""
    if isinstance(message, TrialCreated):
        return _create_trial(message, context) if state is None else state
    if state is None or state.deleted:
        return _answer_without_trial(state, message)
    match message:
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
            return _kill_trial(state, context)
        case TrialContinued():
            return _continue_trial(state, message, context)
        case TrialDeleted():
            return _delete_trial(state)
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
    match message:
        case WorkAssigned():
            return _assign_work(state, message, context)
        case CheckpointHandedOver():
            return _inherit_checkpoint(state, message, context)
        case ExperimentStatusChanged():
            return _follow_experiment(state, message, context)
        case TrialMoved():
            return move_to_pool(state, message, context)
        case RestartDue():
            return _end_restart_delay(state, message, context)
        case _:
            return _apply_allocation_message(state, message, context)


def _apply_allocation_message(
    state: TrialState, message: AllocationMessage, context: StepContext
) -> TrialState:
    """Apply a message about the present allocation. Ignore a message about another epoch."""
    allocation = state.allocation
    if message.epoch != state.epoch or allocation is None:
        return state
    match message:
        case SlotsAssigned() | PreemptionRequested() | AllocationLost():
            return _apply_pool_message(state, allocation, message, context)
        case (
            ContainerStateReported()
            | EarlyExitReported()
            | CheckpointDamageReported()
            | AllocationExited()
        ):
            return _apply_agent_message(state, allocation, message, context)
        case ValidationReported() | ProgressReported() | LengthReached() | CheckpointReported():
            return apply_training_report(state, allocation, message, context)
        case TerminationOverdue():
            return kill_overdue(state, allocation, context)
        case _:
            assert_never(message)


def fallback(state: TrialState | None, message: object, context: StepContext) -> TrialState | None:
    """End a trial that cannot process a message in ERROR, and send a TrialEnded."""
    if state is None:
        if not isinstance(message, TrialCreated):
            return None
        state = _initial_state(message, context)
    if isinstance(message, CheckpointRequested):
        # The copy waits for an answer.
        context.send(addresses.trial(message.copy_id), CheckpointHandedOver(state.trial_id, None))
    if state.status.is_final:
        return state
    text = f"internal error: {message_name(message)} could not be processed"
    return end_with_error(state, text, context)


def _answer_without_trial(state: TrialState | None, message: TrialMessage) -> TrialState | None:
    """Refuse a user's kill of a deleted trial. Ignore every other message."""
    if state is not None and isinstance(message, TrialKillRequested):
        raise CommandRefused("not_found", f"trial {state.trial_id} was deleted with its experiment")
    return state


def _initial_state(message: TrialCreated, context: StepContext) -> TrialState:
    return TrialState(
        trial_id=message.trial_id,
        experiment_id=message.experiment_id,
        number=message.number,
        hparams=message.hparams,
        seed=message.seed,
        settings=message.settings,
        created_ms=context.now_ms,
        experiment_status=message.experiment_status,
        length_units=message.length,
        length=batches_of(message.settings, message.hparams, message.length),
        closed=message.closed,
        run_generation=message.run_generation,
        awaits_checkpoint=message.parent_id is not None,
    )


def _create_trial(message: TrialCreated, context: StepContext) -> TrialState:
    state = _initial_state(message, context)
    if message.parent_id is not None:
        # The request follows the creation, so that the answer finds the trial.
        context.send(addresses.trial(message.parent_id), CheckpointRequested(state.trial_id))
    return reconcile(state, context)


def _assign_work(state: TrialState, message: WorkAssigned, context: StepContext) -> TrialState:
    """Apply the search's decision on the latest length that the trial reached."""
    before = state.length_units
    state = evolve(
        state,
        closed=state.closed or message.closed,
        stopped=state.stopped or message.stopped,
        decided_length=state.reached,
        revision=state.revision + 1,
    )
    if message.length is not None:
        state = _assign_length(state, message.length)
        if before is not None and message.length > before:
            report_length_already_reached(state, context)
    return reconcile(state, context)


def _inherit_checkpoint(
    state: TrialState, message: CheckpointHandedOver, context: StepContext
) -> TrialState:
    """Store the checkpoint from which the trial starts. Without one the search cannot continue."""
    if not state.awaits_checkpoint:
        return state
    if message.checkpoint is None:
        report_missing_parent_checkpoint(state, message.parent_id, context)
        return state
    return reconcile(
        evolve(state, awaits_checkpoint=False, inherited_checkpoint=message.checkpoint), context
    )


def _follow_experiment(
    state: TrialState, message: ExperimentStatusChanged, context: StepContext
) -> TrialState:
    """Follow the experiment's status, and reconcile in any case.

    A stopping trial only follows a more severe status. A followed status ends the delay of a start.
    A message with `forced` also kills the trial.
    """
    if _should_follow(state.experiment_status, message.status):
        # A user who activates the experiment does not want to wait for a delayed start.
        state = evolve(state, experiment_status=message.status, awaits_restart_delay=False)
    return reconcile(evolve(state, killed=state.killed or message.forced), context)


def _should_follow(before: Status, status: Status) -> bool:
    if not before.is_stopping:
        return not status.is_final
    return status.is_stopping and _BY_SEVERITY.index(status) > _BY_SEVERITY.index(before)


def _kill_trial(state: TrialState, context: StepContext) -> TrialState:
    """End only this trial. The reply is the trial's id."""
    context.reply = state.trial_id
    if state.status.is_final or state.killed:
        return state
    context.add_reason("killed")
    return reconcile(evolve(state, killed=True), context)


def _continue_trial(state: TrialState, message: TrialContinued, context: StepContext) -> TrialState:
    """Continue an ended trial from the latest checkpoint, in a later run generation."""
    if not state.status.is_final or message.run_generation <= state.run_generation:
        return state
    context.add_reason(f"{state.status} to {Status.ACTIVE}: the experiment was continued")
    state = evolve(
        state,
        status=Status.ACTIVE,
        experiment_status=Status.ACTIVE,
        settings=message.settings,
        run_generation=message.run_generation,
        restarts=0,
        stalls=0,
        killed=False,
        awaits_restart_delay=False,
        early_exit="",
        ended_ms=None,
        message="",
        steps=state.checkpoint.steps_completed if state.checkpoint else 0,
    )
    if message.length is not None:
        state = _assign_length(state, message.length)
    return reconcile(state, context)


def _assign_length(state: TrialState, units: int) -> TrialState:
    """Assign a length in the configured unit. A changed length in epochs resets `share` to 0."""
    length = batches_of(state.settings, state.hparams, units)
    if state.counts_epochs and units != state.length_units:
        state = evolve(state, share=0.0)
    return evolve(state, length_units=units, length=length)


def _delete_trial(state: TrialState) -> TrialState:
    """Delete an ended trial. A head with the field `deleted` remains."""
    if not state.status.is_final:
        return state
    return evolve(state, deleted=True, hparams={}, checkpoint=None, message="")


def _apply_pool_message(
    state: TrialState,
    allocation: Allocation,
    message: SlotsAssigned | PreemptionRequested | AllocationLost,
    context: StepContext,
) -> TrialState:
    match message:
        case SlotsAssigned():
            return assign_places(state, allocation, message, context)
        case PreemptionRequested(reason=reason, forced=True):
            return kill(state, allocation, reason)
        case PreemptionRequested(reason=reason):
            return preempt(state, allocation, reason, context)
        case AllocationLost():
            return _lose_agent(state, allocation, message, context)


def _lose_agent(
    state: TrialState, allocation: Allocation, message: AllocationLost, context: StepContext
) -> TrialState:
    allocation = stop_metering_agent(state, allocation, message, context)
    state = evolve(state, allocation=allocation)
    if allocation.is_gang:
        after = gang.record_lost_agent(allocation, message)
        return _end_member(state, allocation, after, context)
    lost = AllocationExited(state.epoch, gang.AGENT_LOST, message=message.reason)
    return _end_allocation(state, allocation, lost, context)


def _apply_agent_message(
    state: TrialState,
    allocation: Allocation,
    message: ContainerStateReported
    | EarlyExitReported
    | CheckpointDamageReported
    | AllocationExited,
    context: StepContext,
) -> TrialState:
    match message:
        case ContainerStateReported():
            return apply_container_state(state, allocation, message)
        case EarlyExitReported(reason=reason):
            return record_early_exit(state, reason, context)
        case CheckpointDamageReported():
            return record_damage(state, allocation, message, context)
        case AllocationExited() if message.nodes > 1:
            return _end_member(
                state, allocation, gang.record_node_exit(allocation, message), context
            )
        case AllocationExited():
            return _end_allocation(state, allocation, message, context)


def _end_member(
    state: TrialState, before: Allocation, allocation: Allocation, context: StepContext
) -> TrialState:
    """Apply a node's exit or loss. Stop a broken gang's other nodes before requesting slots."""
    verdict = allocation.verdict
    if allocation is before or verdict is None:
        return state
    state = evolve(state, allocation=allocation)
    if gang.is_over(allocation):
        whole = evolve(allocation, desired_state=gang.desired_state(allocation))
        return _end_allocation(state, whole, verdict.exit, context)
    if not gang.is_broken(allocation) and not refuses_hparams(state):
        return state
    reason = f"node {verdict.exit.node_rank} of {verdict.exit.nodes} is gone"
    context.add_reason(f"the other nodes are stopped: {reason}")
    return kill(state, allocation, f"{reason}: {gang.exit_cause(verdict.exit)}")


def _end_allocation(
    state: TrialState, allocation: Allocation, message: AllocationExited, context: StepContext
) -> TrialState:
    """Report a notice's outcome, and choose the next action after an allocation's end."""
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
    """Choose the next action of a trial that is not being ended from outside."""
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
    if reason in ("preempted", "idle"):
        return reconcile_after_yield(state, allocation, context)
    if allocation.desired_state is not DesiredState.RUN:
        # The allocation was asked to stop, so no exit counts as a failure.
        return _after_stop(state, allocation, message, context)
    if reason == "start_failed":
        return reconcile_after_failed_start(state, allocation, message, context)
    return _after_failure(state, allocation, message, context)


def _reason_without_request(state: TrialState, allocation: Allocation) -> str:
    """Return the reason of an exit with work left. The code announced no stop."""
    if allocation.desired_state is DesiredState.KILL:
        # The kill ended the run, not a request of the code.
        return "killed"
    # An earlier run has reached the length, and this run may have skipped the training.
    return "completed" if state.must_end_again else "stop_requested"


def _after_outside_end(
    state: TrialState, allocation: Allocation, message: AllocationExited, context: StepContext
) -> TrialState:
    """End a trial that a user or its experiment ends. The request decides the status, not the exit.

    A run that ended by its own decision keeps its steps. Other runs lose work without a checkpoint.
    """
    if message.reason in ("completed", "stop_requested"):
        return end_stopped_trial(state, context)
    return _after_stop(state, allocation, message, context)


def _after_stop(
    state: TrialState, allocation: Allocation, message: AllocationExited, context: StepContext
) -> TrialState:
    if message.message and message.reason not in ("lost", "killed"):
        state = evolve(state, message=message.message)
    return release_and_reconcile(state, allocation, context)


def _end_restart_delay(state: TrialState, message: RestartDue, context: StepContext) -> TrialState:
    if not state.awaits_restart_delay or message.epoch != state.epoch:
        return state
    return reconcile(evolve(state, awaits_restart_delay=False), context)


def _after_failure(
    state: TrialState, allocation: Allocation, message: AllocationExited, context: StepContext
) -> TrialState:
    """Count a failure, unless a damaged checkpoint excuses it. Start again, or end the trial."""
    if can_excuse_failure(state, allocation):
        return reconcile_after_damage(state, allocation, context)
    text = message.message or f"the trial's process failed ({message.reason})"
    state = evolve(
        state,
        restarts=state.restarts + 1,
        stalls=0,
        message=text,
        # A run with nothing left to train must also exit well (decision 0080).
        awaits_good_exit=state.has_reached_length,
    )
    allowed = state.settings.max_restarts
    if message.is_permanent:
        context.add_reason("no restart: the code of the trial cannot be loaded")
        return end_trial(state, Status.ERROR, ExitReason.ERRORED, context)
    if state.restarts > allowed:
        context.add_reason(
            f"it failed {count_text(state.restarts, 'time')}; max_restarts is {allowed}"
        )
        return end_trial(state, Status.ERROR, ExitReason.ERRORED, context)
    context.add_reason(f"restart {state.restarts} of {allowed}")
    return release_and_reconcile(state, allocation, context)
