"""Metrics of lost work: a new run of a trial discards reports of earlier runs.

A run starts from a checkpoint at batch S, or from the beginning. Earlier runs trained past S in
vain, so their reports of later batches no longer count. Lists, charts and the trial's best metric
leave them out. A report at S itself stays, since a validation may follow the checkpoint.
"""

from collections.abc import Sequence

from control_plane.actors import addresses
from control_plane.actors.messages.experiment import TrialMetricsDiscarded
from control_plane.actors.messages.trial import ValidationReported
from control_plane.actors.step import StepContext
from control_plane.actors.trial.state import RunStart, TrialState, Validation
from control_plane.evolve import evolve

BEGINNING = -1
"""The start of a run without a checkpoint: even reports at batch 0 no longer count."""
NOTHING_LOST = 1 << 53
"""The start of a run that may skip all training, since the trial had reached its length."""
VALIDATIONS_MAX = 24
"""The most validations in a trial's head."""
STARTS_MAX = 100
"""The most run starts in a trial's head.

If the oldest start is dropped, the next start also discards the reports of the runs before it.
"""


def begin_run(state: TrialState, context: StepContext) -> TrialState:
    """Record the start of the present run, and discard the validations of lost work.

    `discarded_from` becomes the first batch of lost work, or None if no work was lost. The trial's
    metric becomes that of the latest remaining validation. If the best metric changes, the
    experiment gets a TrialMetricsDiscarded. Nothing happens in the first run, or if the settings do
    not discard lost metrics.
    """
    if not state.settings.discards_lost_metrics or state.epoch == 1:
        return state
    steps = _first_batch(state)
    kept = tuple(validation for validation in state.validations if validation.steps <= steps)
    is_rolled_back = state.lost_work or len(kept) < len(state.validations)
    state = evolve(
        state,
        run_starts=add_start(state.run_starts, RunStart(state.epoch, steps)),
        discarded_from=steps + 1 if is_rolled_back else None,
        lost_work=False,
    )
    if state.metric_steps is not None and state.metric_steps > steps:
        latest = max(kept, key=lambda validation: validation.steps, default=None)
        state = evolve(
            state,
            metric=latest.metric if latest else None,
            metric_steps=latest.steps if latest else None,
        )
    return _with_validations(state, kept, context)


def add_validation(
    state: TrialState, message: ValidationReported, context: StepContext
) -> TrialState:
    """Record a validation, and drop validations of earlier runs at an equal batch.

    A validation without a metric drops them too, but is not recorded. If a dropped validation
    changes the trial's best metric, the experiment gets a TrialMetricsDiscarded. If the settings do
    not discard lost metrics, only the best metric is updated.
    """
    if not state.settings.discards_lost_metrics:
        return _update_best_metric(state, message.metric)
    kept = tuple(
        validation
        for validation in state.validations
        if validation.steps != message.steps or validation.epoch == message.epoch
    )
    is_replaced = len(kept) < len(state.validations)
    if message.metric is not None:
        added = Validation(message.steps, message.metric, message.epoch)
        kept = _drop_excess((*kept, added), smaller_is_better=state.settings.smaller_is_better)
    if is_replaced:
        return _with_validations(state, kept, context)
    return _update_best_metric(evolve(state, validations=kept), message.metric)


def add_start(starts: Sequence[RunStart], start: RunStart) -> tuple[RunStart, ...]:
    """Return the run starts with `start` appended, without earlier starts at an equal or greater
    batch.

    The new start discards every report that a dropped start discards. Only the last STARTS_MAX
    starts are kept.
    """
    kept = [earlier for earlier in starts if earlier.steps < start.steps]
    return (*kept, start)[-STARTS_MAX:]


def last_valid_batch(starts: Sequence[RunStart], epoch: int) -> float:
    """Return the last batch at which reports by the run of this epoch still count.

    Return infinity if no later run discards reports. Return BEGINNING if no report counts.
    """
    # The batches of starts ascend, so the first later start has the fewest batches.
    return next((start.steps for start in starts if start.epoch > epoch), float("inf"))


def _first_batch(state: TrialState) -> int:
    """Return the number of batches from which the present run starts.

    Return BEGINNING without a checkpoint, and NOTHING_LOST if only a good exit is missing.
    """
    if state.must_end_again:
        return NOTHING_LOST
    return state.checkpoint.steps_completed if state.checkpoint else BEGINNING


def _with_validations(
    state: TrialState, kept: tuple[Validation, ...], context: StepContext
) -> TrialState:
    """Set the trial's validations and best metric. Equal validations change nothing.

    If the best metric changes, the experiment gets a TrialMetricsDiscarded.
    """
    if kept == state.validations:
        return state
    best = _best(kept, smaller_is_better=state.settings.smaller_is_better)
    if best != state.best_metric:
        discarded = TrialMetricsDiscarded(state.number, best)
        context.send(addresses.experiment(state.experiment_id), discarded)
    return evolve(state, validations=kept, best_metric=best)


def _update_best_metric(state: TrialState, metric: float | None) -> TrialState:
    """Set the best metric to `metric`, if the present best metric is worse or missing.

    A metric of None changes nothing.
    """
    best, smaller = state.best_metric, state.settings.smaller_is_better
    if metric is None or not (best is None or _is_better(metric, best, smaller)):
        return state
    return evolve(state, best_metric=metric)


def _best(validations: Sequence[Validation], *, smaller_is_better: bool) -> float | None:
    """Return the best metric of the validations. Return None without validations."""
    metrics = [validation.metric for validation in validations]
    return (min if smaller_is_better else max)(metrics, default=None)


def _drop_excess(
    validations: tuple[Validation, ...], *, smaller_is_better: bool
) -> tuple[Validation, ...]:
    """Return the validations without the least useful, if the number exceeds VALIDATIONS_MAX.

    A validation is useless if a validation of the same or an earlier batch has a metric as good.
    Each later run that discards the earlier validation also discards the useless validation. The
    worst useless validation is dropped. If none is useless, the validation of the earliest batch is
    dropped. The latest validation always stays.
    """
    if len(validations) <= VALIDATIONS_MAX:
        return validations
    sign = 1 if smaller_is_better else -1
    useless = [
        validation
        for validation in validations[:-1]
        if any(
            other is not validation
            and other.steps <= validation.steps
            and sign * other.metric <= sign * validation.metric
            for other in validations
        )
    ]
    dropped = (
        max(useless, key=lambda validation: sign * validation.metric)
        if useless
        else min(validations[:-1], key=lambda validation: validation.steps)
    )
    return tuple(validation for validation in validations if validation is not dropped)


def _is_better(metric: float, other: float, smaller_is_better: bool) -> bool:
    """Return whether `metric` is better than `other`."""
    return metric < other if smaller_is_better else metric > other
