"""Reports of a trial's training: validations, lengths reached, checkpoints."""

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
from control_plane.actors.trial.state import Allocation, AllocationState, TrialState
from control_plane.evolve import evolve
from control_plane.searchers.method import ENDLESS

# Shares that the search hears of differ by so much.
PROGRESS_STEP = 0.01


def apply_training_report(
    state: TrialState,
    allocation: Allocation,
    message: ValidationReported | ProgressReported | LengthReached | CheckpointReported,
    context: StepContext,
) -> TrialState:
    """Apply a report of the current allocation."""
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
            return record_checkpoint(state, message, context)


def batches_of(
    settings: TrialSettings, hparams: Mapping[str, object], length: int | None
) -> int | None:
    """A length in the configured unit as batches; None, ENDLESS and epochs that only the trial can
    convert stay as they are.
    """
    if length is None or length == ENDLESS or settings.lengths.counts_epochs:
        return length
    return settings.lengths.batches(length, hparams)


def report_length_already_reached(state: TrialState, context: StepContext) -> None:
    """Tell the search that a newly assigned length is reached, if it comes to no more batches than
    before: a longer length of records or epochs may. The validation there is its metric.
    """
    if not state.has_reached_length:
        return
    is_measured = not state.counts_epochs and state.metric_steps == state.reached
    metric = state.metric if is_measured else None
    _send_length_reached(state, metric, "", context)


def report_missing_parent_checkpoint(state: TrialState, parent: int, context: StepContext) -> None:
    """Tell the search that the trial to copy has no checkpoint, which ends the search."""
    missing_metric_reason = (
        f"it is to begin as a copy of trial {parent}, which has no checkpoint: write one before "
        "the metric of a length is reported"
    )
    _send_length_reached(state, None, missing_metric_reason, context)


def _apply_first_report(allocation: Allocation, message: object) -> Allocation | None:
    """The allocation after a report of its training, which shows that it runs. None: another node
    has reported the same validation before.
    """
    if isinstance(message, ValidationReported) and message.nodes > 1:
        if message.steps <= allocation.validated:
            return None
        return evolve(allocation, validated=message.steps)
    if allocation.is_gang or allocation.state is AllocationState.RUNNING:
        return allocation
    return evolve(allocation, state=AllocationState.RUNNING)


def _apply_validation(
    state: TrialState, message: ValidationReported, context: StepContext
) -> TrialState:
    steps = max(state.steps, message.steps)
    best = state.best_metric
    if message.metric is not None:
        smaller = state.settings.smaller_is_better
        if best is None or (message.metric < best if smaller else message.metric > best):
            best = message.metric
    update_checkpoint_metric(state, message, context)
    # Where the code decides how long it trains, only it knows the share that is done.
    units = 0.0 if state.is_open_ended else _in_units(state, message.steps)
    validated = TrialValidationReported(
        state.number, units, message.metric, message.time, message.lack
    )
    context.send(addresses.experiment(state.experiment_id), validated)
    return evolve(
        state,
        steps=steps,
        metric=message.metric,
        metric_steps=message.steps,
        best_metric=best,
    )


def _apply_progress(
    state: TrialState, message: ProgressReported, context: StepContext
) -> TrialState:
    """Record the share that is done, of the whole training or of the epochs that were assigned, and
    tell the search when it grew by enough to be shown.
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
    """Record that the assigned length is reached, and tell the search once: not again after a
    rollback.
    """
    if state.length is None or message.length != state.length or message.length <= state.reached:
        return state
    if state.length == ENDLESS:
        # Only the training code knows where an endless training ends.
        return state
    if state.counts_epochs and not message.lack:
        # Code that reports no progress of its own has made all of it by now.
        state = _apply_progress(state, ProgressReported(message.epoch, 1.0), context)
    _send_length_reached(state, message.metric, message.lack, context, message.value)
    if message.lack:
        # Without a metric no length counts as reached: the experiment ends because of it.
        return state
    state = evolve(state, reached=message.length, awaits_good_exit=False)
    return state if state.counts_epochs else evolve(state, steps=max(state.steps, message.length))


def _send_length_reached(
    state: TrialState, metric: float | None, lack: str, context: StepContext, value: str = ""
) -> None:
    assert state.length_units is not None
    if metric is None:
        metric = worst_metric(state.settings.smaller_is_better)
    units, closed = state.length_units, state.closed
    reached = TrialLengthReached(state.number, units, metric, closed, lack, value)
    context.send(addresses.experiment(state.experiment_id), reached)


def _in_units(state: TrialState, batches: int) -> float:
    if state.counts_epochs:
        return state.epochs_done
    return state.settings.lengths.units(batches, state.hparams)
