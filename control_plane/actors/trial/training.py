"""Reports of a trial's training: validations, progress, reached lengths and checkpoints."""

from collections.abc import Mapping

from control_plane.actors import addresses
from control_plane.actors.messages.experiment import (
    TrialLengthReached,
    TrialProgressReported,
    TrialValidationReported,
)
from control_plane.actors.messages.trial import (
    CheckpointReported,
    LengthReached,
    ProgressReported,
    ValidationReported,
)
from control_plane.actors.records import TrialSettings, worst_metric
from control_plane.actors.step import StepContext
from control_plane.actors.trial.allocation import set_exit_deadline
from control_plane.actors.trial.checkpoints import record_checkpoint, update_checkpoint_metric
from control_plane.actors.trial.lost_work import add_validation
from control_plane.actors.trial.snapshots import is_snapshot, record_snapshot
from control_plane.actors.trial.state import Allocation, AllocationState, TrialState
from control_plane.evolve import evolve
from control_plane.searchers.method import ENDLESS

COPY_WITHOUT_CHECKPOINT = "it is to begin as a copy of trial "
"""The beginning of the reason why a copy without a parent checkpoint has no metric."""
PROGRESS_STEP = 0.01
"""The least increase of a progress share that is reported to the experiment."""


def apply_training_report(
    state: TrialState,
    allocation: Allocation,
    message: ValidationReported | ProgressReported | LengthReached | CheckpointReported,
    context: StepContext,
) -> TrialState:
    """Apply a report of the current allocation: a validation, progress, a reached length or a
    checkpoint.

    The allocation of a single node becomes RUNNING. A validation that another node of a gang has
    reported changes nothing. After a checkpoint, a timer may limit the time until the exit of an
    allocation that was asked to stop.
    """
    after = _apply_first_report(allocation, message)
    if after is None:
        return state
    state = state if after is allocation else evolve(state, allocation=after)
    match message:
        case ValidationReported():
            return _apply_validation(state, message, context)
        case ProgressReported():
            return _apply_progress(state, message, context)
        case LengthReached():
            return _apply_length_reached(state, message, context)
        case CheckpointReported():
            set_exit_deadline(state, allocation, context)
            if is_snapshot(state, message):
                return record_snapshot(state, message, context)
            return record_checkpoint(state, message, context)


def batches_of(
    settings: TrialSettings, hparams: Mapping[str, object], length: int | None
) -> int | None:
    """Convert a length in the configured unit to batches, rounded down.

    Records and epochs amount to at least 1 batch. None, ENDLESS, and epochs that only the trial can
    convert are returned unchanged.
    """
    if length is None or length == ENDLESS or settings.lengths.counts_epochs:
        return length
    return settings.lengths.batches(length, hparams)


def report_length_already_reached(state: TrialState, context: StepContext) -> None:
    """Send the experiment a TrialLengthReached, if the trial has reached the newly assigned length
    already.

    A longer length in records or epochs may amount to equal batches. The report has the metric of
    the validation at that batch, or the worst metric. Do nothing if training is left.
    """
    if not state.has_reached_length:
        return
    is_measured = not state.counts_epochs and state.metric_steps == state.reached
    metric = state.metric if is_measured else None
    _send_length_reached(state, metric, "", context)


def report_missing_parent_checkpoint(state: TrialState, parent: int, context: StepContext) -> None:
    """Send the experiment a TrialLengthReached with the reason that the parent trial has no
    checkpoint.

    The report stops the experiment with STOPPING_ERROR.
    """
    missing_metric_reason = (
        f"{COPY_WITHOUT_CHECKPOINT}{parent}, which has no checkpoint: write one before "
        "the metric of a length is reported"
    )
    _send_length_reached(state, None, missing_metric_reason, context)


def _apply_first_report(allocation: Allocation, message: object) -> Allocation | None:
    """Return the allocation after a training report, which shows that a single node is RUNNING.

    Return None if another node of a gang has reported the same or a later validation.
    """
    if isinstance(message, ValidationReported) and message.nodes > 1:
        if message.steps <= allocation.validated_steps:
            return None
        return evolve(allocation, validated_steps=message.steps)
    if allocation.is_gang or allocation.state is AllocationState.RUNNING:
        return allocation
    return evolve(allocation, state=AllocationState.RUNNING)


def _apply_validation(
    state: TrialState, message: ValidationReported, context: StepContext
) -> TrialState:
    """Record a validation, and send the experiment a TrialValidationReported.

    The metric of a checkpoint at this batch is updated. If the validation replaces the best metric
    of an earlier run, a TrialMetricsDiscarded is sent first.
    """
    steps = max(state.steps, message.steps)
    update_checkpoint_metric(state, message, context)
    # If the code decides how long the trial trains, batches do not measure the progress.
    units = 0.0 if state.is_open_ended else _in_units(state, message.steps)
    # The experiment must discard replaced metrics before it counts the new metric.
    state = add_validation(state, message, context)
    is_best = message.metric is not None and message.metric == state.best_metric
    validated = TrialValidationReported(
        state.number,
        units,
        message.metric,
        message.time,
        message.missing_metric_reason,
        message.values if is_best else {},
    )
    context.send(addresses.experiment(state.experiment_id), validated)
    return evolve(state, steps=steps, metric=message.metric, metric_steps=message.steps)


def _apply_progress(
    state: TrialState, message: ProgressReported, context: StepContext
) -> TrialState:
    """Record the reported share, and send the experiment a TrialProgressReported.

    Return the state unchanged if the share has not grown by PROGRESS_STEP. A share of 1 is always
    sent, but only once.
    """
    if message.share < min(state.share + PROGRESS_STEP, 1.0) or message.share <= state.share:
        return state
    state = evolve(state, share=message.share)
    units = state.epochs_done if state.counts_epochs else None
    reported = TrialProgressReported(state.number, message.share, units)
    context.send(addresses.experiment(state.experiment_id), reported)
    return state


def _apply_length_reached(
    state: TrialState, message: LengthReached, context: StepContext
) -> TrialState:
    """Record that the assigned length is reached, and send the experiment a TrialLengthReached.

    Nothing happens for another length than the assigned one, or for a length that was reported
    before a rollback. The same applies if the code decides how long to train. With
    `missing_metric_reason`, the report is sent, but the length does not count as reached.
    """
    if state.length is None or message.length != state.length or message.length <= state.reached:
        return state
    if state.length == ENDLESS:
        # Only the training code knows where an endless training ends.
        return state
    if state.counts_epochs and not message.missing_metric_reason:
        # Code may report no progress, but the assigned epochs are done now.
        state = _apply_progress(state, ProgressReported(message.epoch, 1.0), context)
    _send_length_reached(
        state, message.metric, message.missing_metric_reason, context, message.value
    )
    if message.missing_metric_reason:
        # The experiment ends for lack of the metric, so the length does not count as reached.
        return state
    state = evolve(state, reached=message.length, awaits_good_exit=False)
    return state if state.counts_epochs else evolve(state, steps=max(state.steps, message.length))


def _send_length_reached(
    state: TrialState,
    metric: float | None,
    missing_metric_reason: str,
    context: StepContext,
    value: str = "",
) -> None:
    """Send the experiment a TrialLengthReached for the assigned length, in the configured unit.

    A metric of None is replaced by the worst possible metric. The trial must have an assigned
    length.
    """
    assert state.length_units is not None
    if metric is None:
        metric = worst_metric(state.settings.smaller_is_better)
    units, closed = state.length_units, state.closed
    reached = TrialLengthReached(state.number, units, metric, closed, missing_metric_reason, value)
    context.send(addresses.experiment(state.experiment_id), reached)


def _in_units(state: TrialState, batches: int) -> float:
    """Convert batches to the unit of the configured lengths: batches, records or epochs.

    If only the trial knows the batches of an epoch (`counts_epochs`), ignore `batches` and return
    the epochs done so far.
    """
    if state.counts_epochs:
        return state.epochs_done
    return state.settings.lengths.units(batches, state.hparams)
