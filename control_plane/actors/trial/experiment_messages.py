"""The messages of a trial's experiment: creation, work, status, continuation and deletion."""

from control_plane.actors import addresses
from control_plane.actors.messages.trial import (
    CheckpointHandedOver,
    CheckpointRequested,
    ExperimentStatusChanged,
    TrialContinued,
    TrialCreated,
    WorkAssigned,
)
from control_plane.actors.records import Status
from control_plane.actors.step import StepContext
from control_plane.actors.trial.lifecycle import reconcile
from control_plane.actors.trial.state import TrialState
from control_plane.actors.trial.training import (
    batches_of,
    report_length_already_reached,
    report_missing_parent_checkpoint,
)
from control_plane.evolve import evolve

_BY_SEVERITY = (
    Status.STOPPING_COMPLETED,
    Status.STOPPING_CANCELED,
    Status.STOPPING_KILLED,
    Status.STOPPING_ERROR,
)


def create_trial(message: TrialCreated, context: StepContext) -> TrialState:
    """Return the state of a new trial, and reconcile: a trial with work requests slots from the
    pool.

    A copy of another trial requests that trial's checkpoint by a CheckpointRequested, and waits for
    the answer before it requests slots.
    """
    state = initial_state(message, context)
    if message.parent_id is not None:
        # The request follows the creation, so that the answer finds the trial.
        context.send(addresses.trial(message.parent_id), CheckpointRequested(state.trial_id))
    return reconcile(state, context)


def initial_state(message: TrialCreated, context: StepContext) -> TrialState:
    """Return the state of a new trial, without sending or writing anything.

    The trial is ACTIVE and has no allocation. A copy of another trial waits for the checkpoint of
    that trial.
    """
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


def assign_work(state: TrialState, message: WorkAssigned, context: StepContext) -> TrialState:
    """Apply the search's decision on the latest length that the trial reached, and reconcile.

    A message without a length keeps the assigned length. `closed` and `stopped` are never
    withdrawn. The revision of the directives grows. If the new length is greater but amounts to
    batches that are already trained, the experiment gets a TrialLengthReached. To reconcile means
    to request slots, to stop the allocation or to end the trial.
    """
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


def inherit_checkpoint(
    state: TrialState, message: CheckpointHandedOver, context: StepContext
) -> TrialState:
    """Store the parent trial's checkpoint, from which the trial starts, and reconcile: a trial with
    work requests slots.

    If the parent has no checkpoint, the trial keeps waiting, and a TrialLengthReached with the
    reason ends the search. A trial that does not wait for a checkpoint stays unchanged.
    """
    if not state.awaits_checkpoint:
        return state
    if message.checkpoint is None:
        report_missing_parent_checkpoint(state, message.parent_id, context)
        return state
    return reconcile(
        evolve(state, awaits_checkpoint=False, inherited_checkpoint=message.checkpoint), context
    )


def continue_trial(state: TrialState, message: TrialContinued, context: StepContext) -> TrialState:
    """Make an ended trial ACTIVE again in a later run generation, and reconcile.

    The trial continues from its latest checkpoint, with restarts, stalls and used time reset to 0.
    Effects of log policies on retries and agents end. Return the state unchanged if the trial has
    not ended, or the message's run generation is not later.
    """
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
        failure_times=(),
        used_ms=0,
        stalls=0,
        retries_canceled="",
        excluded_agents=(),
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
    """Return the state with a length in the configured unit, also converted to batches.

    If the trial `counts_epochs`, a changed length resets `share` to 0.
    """
    length = batches_of(state.settings, state.hparams, units)
    if state.counts_epochs and units != state.length_units:
        state = evolve(state, share=0.0)
    return evolve(state, length_units=units, length=length)


def delete_trial(state: TrialState) -> TrialState:
    """Mark an ended trial as deleted, and drop the hyperparameters, the checkpoint, the snapshot,
    the message and the lines of the log.

    Only the head remains. The parts and rows are deleted by the collector. A trial that has not
    ended stays unchanged.
    """
    if not state.status.is_final:
        return state
    return evolve(
        state,
        deleted=True,
        hparams={},
        checkpoint=None,
        snapshot=None,
        message="",
        log_matches=(),
        signal="",
        retries_canceled="",
    )


def follow_experiment(
    state: TrialState, message: ExperimentStatusChanged, context: StepContext
) -> TrialState:
    """Follow the experiment's status, and reconcile in any case.

    A stopping trial only follows a more severe status. A final status is never followed. A followed
    status ends the delay before a restart. A message with `forced` kills the trial for good, even
    if the status is ignored.
    """
    if _should_follow(state.experiment_status, message.status):
        # A user who activates the experiment does not want to wait for a delayed start.
        state = evolve(state, experiment_status=message.status, awaits_restart_delay=False)
    return reconcile(evolve(state, killed=state.killed or message.forced), context)


def _should_follow(before: Status, status: Status) -> bool:
    """Return whether a trial that knows the status `before` of the experiment follows the new
    status.

    Final statuses are not followed. After a stopping status, only a more severe one is followed, in
    the order of _BY_SEVERITY.
    """
    if not before.is_stopping:
        return not status.is_final
    return status.is_stopping and _BY_SEVERITY.index(status) > _BY_SEVERITY.index(before)


def kill_trial(state: TrialState, context: StepContext) -> TrialState:
    """Kill only this trial, at a user's command. The reply is the trial's id.

    An allocation with slots is killed, and the trial ends CANCELED after the exit. Without one, it
    ends CANCELED at once. A trial that has ended or is killed already stays unchanged.
    """
    context.reply = state.trial_id
    if state.status.is_final or state.killed:
        return state
    context.add_reason("killed")
    return reconcile(evolve(state, killed=True), context)
