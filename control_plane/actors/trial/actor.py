"""The step of the trial actor, which owns its target, restarts, checkpoints and one allocation.

An allocation is named by the trial's epoch, which counts them. A message of an older epoch
changes nothing, so a zombie's reports, a late loss and a repeated exit are harmless. The trial
wants slots exactly while its experiment is ACTIVE and it has unfinished work; a failure beyond
`max_restarts` ends it, a loss of its machine does not. A machine that cannot start it is no
failure of the trial either, but starts are not tried for ever.
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

_WORSE = (
    Status.STOPPING_COMPLETED,
    Status.STOPPING_CANCELED,
    Status.STOPPING_KILLED,
    Status.STOPPING_ERROR,
)


def step(
    state: TrialState | None, message: TrialMessage, context: StepContext
) -> TrialState | None:
    """Apply one message."""
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
    """End a trial in ERROR that cannot process a message, and tell its experiment."""
    if state is None:
        if not isinstance(message, TrialCreated):
            return None
        state = _initial_state(message, context)
    if isinstance(message, CheckpointRequested):
        # The copy waits for an answer.
        context.send(addresses.trial(message.by), CheckpointHandedOver(state.trial_id, None))
    if state.status.is_final:
        return state
    text = f"internal error: {message_name(message)} could not be processed"
    return end_with_error(state, text, context)


def _answer_without_trial(state: TrialState | None, message: TrialMessage) -> TrialState | None:
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
        life=message.life,
        awaits_checkpoint=message.parent_id is not None,
    )


def _create_trial(message: TrialCreated, context: StepContext) -> TrialState:
    state = _initial_state(message, context)
    if message.parent_id is not None:
        # Requested only now, so that the answer finds this trial created.
        context.send(addresses.trial(message.parent_id), CheckpointRequested(state.trial_id))
    return reconcile(state, context)


def _assign_work(state: TrialState, message: WorkAssigned, context: StepContext) -> TrialState:
    """Take the search's decision on the latest length reached."""
    before = state.length_units
    state = evolve(
        state,
        closed=state.closed or message.closed,
        stopped=state.stopped or message.stopped,
        answered=state.reached,
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
    """Take the checkpoint of another trial to start from; without one the search cannot go on."""
    if not state.awaits_checkpoint:
        return state
    if message.checkpoint is None:
        report_missing_parent_checkpoint(state, message.by, context)
        return state
    return reconcile(evolve(state, awaits_checkpoint=False, inherited=message.checkpoint), context)


def _follow_experiment(
    state: TrialState, message: ExperimentStatusChanged, context: StepContext
) -> TrialState:
    """Follow the experiment's status; a trial that is stopping only takes a more severe one."""
    if _should_follow(state.experiment_status, message.status):
        # A user who activates it does not want to wait for the next start.
        state = evolve(state, experiment_status=message.status, held_back=False)
    return reconcile(evolve(state, killed=state.killed or message.forced), context)


def _should_follow(before: Status, status: Status) -> bool:
    if not before.is_stopping:
        return not status.is_final
    return status.is_stopping and _WORSE.index(status) > _WORSE.index(before)


def _kill_trial(state: TrialState, context: StepContext) -> TrialState:
    """End this trial alone; one that has ended stays as it is."""
    context.reply = state.trial_id
    if state.status.is_final or state.killed:
        return state
    context.add_reason("killed")
    return reconcile(evolve(state, killed=True), context)


def _continue_trial(state: TrialState, message: TrialContinued, context: StepContext) -> TrialState:
    """Go on from the latest checkpoint, in a later run generation of the experiment."""
    if not state.status.is_final or message.life <= state.life:
        return state
    context.add_reason(f"{state.status} to {Status.ACTIVE}: the experiment goes on")
    state = evolve(
        state,
        status=Status.ACTIVE,
        experiment_status=Status.ACTIVE,
        settings=message.settings,
        life=message.life,
        restarts=0,
        stalls=0,
        killed=False,
        held_back=False,
        early_exit="",
        ended_ms=None,
        message="",
        steps=state.checkpoint.steps_completed if state.checkpoint else 0,
    )
    if message.length is not None:
        state = _assign_length(state, message.length)
    return reconcile(state, context)


def _assign_length(state: TrialState, units: int) -> TrialState:
    """Assign a length in the configured unit; of one in epochs nothing is known to be done."""
    length = batches_of(state.settings, state.hparams, units)
    if state.counts_epochs and units != state.length_units:
        state = evolve(state, share=0.0)
    return evolve(state, length_units=units, length=length)


def _delete_trial(state: TrialState) -> TrialState:
    """Delete an ended trial, leaving a head that says that it existed."""
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
    """Apply the exit or loss of a gang's node. Where the rest cannot go on it is stopped, so that
    no slots are requested again before its own are free.
    """
    verdict = allocation.verdict
    if allocation is before or verdict is None:
        return state
    state = evolve(state, allocation=allocation)
    if gang.is_over(allocation):
        whole = evolve(allocation, wish=gang.desired_state(allocation))
        return _end_allocation(state, whole, verdict.exit, context)
    if not gang.is_broken(allocation) and not refuses_hparams(state):
        return state
    reason = f"node {verdict.exit.node_rank} of {verdict.exit.nodes} is gone"
    context.add_reason(f"the rest is stopped: {reason}")
    return kill(state, allocation, f"{reason}: {gang.exit_cause(verdict.exit)}")


def _end_allocation(
    state: TrialState, allocation: Allocation, message: AllocationExited, context: StepContext
) -> TrialState:
    if outcome := allocation.notice_outcome or message.notice_outcome:
        told = NoticeEnded(state.number, state.epoch, outcome)
        context.send(addresses.experiment(state.experiment_id), told)
    if state.settings.runs_once:
        return end_single_run(state, allocation, message, context)
    return _after_end(state, allocation, message, context)


def _after_end(
    state: TrialState, allocation: Allocation, message: AllocationExited, context: StepContext
) -> TrialState:
    reason = message.reason
    if reason == gang.AGENT_LOST:
        return release_and_reconcile(
            record_loss(state, allocation, message, context), allocation, context
        )
    if refuses_hparams(state):
        state = evolve(state, message=message.message or "the hyperparameters were refused")
        return end_trial(state, Status.COMPLETED, ExitReason(state.early_exit), context)
    if reason == "stop_requested" and not state.early_exit:
        reason = _reason_without_request(state, allocation)
    if reason == "stop_requested" or (reason == "errored" and state.early_exit):
        # Training code that asked to stop may end in any way.
        return end_trial(state, Status.COMPLETED, ExitReason.USER_REQUESTED_STOP, context)
    if reason == "completed":
        return _after_completion(evolve(state, closed=True), context)
    if gang.is_loss(message, allocation.wish):
        # The trial was to run: its machine ends, or its agent was stopped.
        return reconcile_after_loss(state, allocation, message, context)
    if reason in ("preempted", "idle"):
        return reconcile_after_yield(state, allocation, context)
    if allocation.wish is not DesiredState.RUN:
        # It was told to stop: however it ended, that is no failure.
        return _after_stop(state, allocation, message, context)
    if reason == "start_failed":
        return reconcile_after_failed_start(state, allocation, message, context)
    return _after_failure(state, allocation, message, context)


def _reason_without_request(state: TrialState, allocation: Allocation) -> str:
    """The reason of an exit that left work undone, of code that has reported no request to stop."""
    if allocation.wish is DesiredState.KILL:
        # It ended well because it was killed, not because its code asked to stop.
        return "killed"
    # A run before has reached the length that this one may have skipped.
    return "completed" if state.must_end_again else "stop_requested"


def _after_completion(state: TrialState, context: StepContext) -> TrialState:
    """End a trial whose run ended well; while its experiment is canceled it ends as that does."""
    if state.experiment_status is Status.STOPPING_CANCELED:
        return end_stopped_trial(state, context)
    return end_trial(state, Status.COMPLETED, None, context)


def _after_stop(
    state: TrialState, allocation: Allocation, message: AllocationExited, context: StepContext
) -> TrialState:
    if message.message and message.reason not in ("lost", "killed"):
        state = evolve(state, message=message.message)
    return release_and_reconcile(state, allocation, context)


def _end_restart_delay(state: TrialState, message: RestartDue, context: StepContext) -> TrialState:
    if not state.held_back or message.epoch != state.epoch:
        return state
    return reconcile(evolve(state, held_back=False), context)


def _after_failure(
    state: TrialState, allocation: Allocation, message: AllocationExited, context: StepContext
) -> TrialState:
    if can_excuse_failure(state, allocation):
        return reconcile_after_damage(state, allocation, context)
    text = message.message or f"the trial's process failed ({message.reason})"
    state = evolve(
        state,
        restarts=state.restarts + 1,
        stalls=0,
        message=text,
        # The exit code decides how it ends, also of one that has nothing left to train.
        awaits_good_exit=state.has_reached_length,
    )
    allowed = state.settings.max_restarts
    if state.restarts > allowed:
        context.add_reason(f"it failed more often than its {allowed} restarts allow")
        return end_trial(state, Status.ERROR, ExitReason.ERRORED, context)
    context.add_reason(f"restart {state.restarts} of {allowed}")
    return release_and_reconcile(state, allocation, context)
