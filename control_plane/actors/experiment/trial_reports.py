"""The reports of trials: validations, progress and reached lengths.

While the experiment is stopping, the search only counts events.
"""

from dataclasses import replace

from control_plane.actors import addresses
from control_plane.actors.experiment.best_events import raise_best_event
from control_plane.actors.experiment.events import raise_threshold_events
from control_plane.actors.experiment.job import begin_new_round
from control_plane.actors.experiment.search import apply_event
from control_plane.actors.experiment.state import ExperimentState
from control_plane.actors.experiment.status import change_status
from control_plane.actors.experiment.trial_summaries import (
    open_summary,
    replace_summary,
    summaries,
    summary_of,
)
from control_plane.actors.messages.experiment import (
    TrialLengthReached,
    TrialMetricsDiscarded,
    TrialProgressReported,
    TrialValidationReported,
)
from control_plane.actors.messages.trial import WorkAssigned
from control_plane.actors.records import Status, worst_metric
from control_plane.actors.step import StepContext
from control_plane.evolve import evolve
from control_plane.searchers import method


def apply_trial_report(
    state: ExperimentState,
    message: TrialValidationReported | TrialProgressReported | TrialLengthReached,
    context: StepContext,
) -> ExperimentState:
    """Apply a report of a trial: a validation, progress or a reached length.

    The report shows that the job runs in its pool, so the present round of moves between pools ends
    (`begin_new_round`). Nothing else happens for a trial that has ended or is unknown.
    """
    state = begin_new_round(state, context)
    match message:
        case TrialValidationReported():
            return _apply_validation(state, message, context)
        case TrialProgressReported():
            return _apply_progress(state, message, context)
        case TrialLengthReached():
            return _apply_length_reached(state, message, context)


def _apply_validation(
    state: ExperimentState, message: TrialValidationReported, context: StepContext
) -> ExperimentState:
    """Record a validation in the trial's summary and the best metric, and pass events to the
    search.

    The search gets the progress if the length has grown, and the validation if the search has a
    time metric. A metric that is missing then counts as the worst. Webhooks announce a new best
    metric and crossed limits. With `missing_metric_reason`,
    the experiment is stopped with STOPPING_ERROR instead. An ended or unknown trial changes
    nothing.
    """
    summary = open_summary(message.number, state.run_generation, context)
    if summary is None:
        return state
    if message.missing_metric_reason:
        return _end_without_metric(
            state, f"trial {summary.trial_id}: {message.missing_metric_reason}", context
        )
    best, metric = summary.metric, message.metric
    if metric is not None and (best is None or _is_better(state, metric, best)):
        best = metric
    units = max(summary.units, message.units)
    replace_summary(message.number, summary._replace(units=units, metric=best), context)
    if metric is not None and (
        state.best_metric is None or _is_better(state, metric, state.best_metric)
    ):
        state = evolve(
            state, best_metric=metric, best_trial=summary.trial_id, best_values=message.values
        )
        state = raise_best_event(state, message, context)
    state = raise_threshold_events(state, summary.trial_id, message, context)
    if units > summary.units:
        state = apply_event(
            state, method.TrialProgressed(message.number, units - summary.units), context
        )
    if message.time is None:
        return state
    if metric is None:
        metric = worst_metric(state.smaller_is_better)
    event = method.TrialValidationReported(message.number, message.time, metric)
    return apply_event(state, event, context)


def _apply_progress(
    state: ExperimentState, message: TrialProgressReported, context: StepContext
) -> ExperimentState:
    """Record a trial's progress, and pass the growth to the search.

    Nothing happens if the progress has not grown, the trial has ended, or batches measure the
    training.
    """
    summary = open_summary(message.number, state.run_generation, context)
    units = message.share if message.units is None else message.units
    is_used = state.is_open_ended or state.counts_epochs
    if summary is None or units <= summary.units or not is_used:
        return state
    replace_summary(message.number, summary._replace(units=units), context)
    event = method.TrialProgressed(message.number, units - summary.units)
    return apply_event(state, event, context)


def _apply_length_reached(
    state: ExperimentState, message: TrialLengthReached, context: StepContext
) -> ExperimentState:
    """Pass a reached length to the search, which may assign work to any trial.

    If the search assigns no work to this trial, a WorkAssigned without a length tells the trial to
    wait, unless the trial expects no answer. With `missing_metric_reason`, the experiment is
    stopped with STOPPING_ERROR instead. An ended or unknown trial changes nothing.
    """
    summary = open_summary(message.number, state.run_generation, context)
    if summary is None:
        return state
    if message.missing_metric_reason:
        return _end_without_metric(
            state, f"trial {summary.trial_id}: {message.missing_metric_reason}", context
        )
    reached = max(summary.reached, message.length)
    replace_summary(message.number, summary._replace(reached=reached), context)
    event = method.TrialLengthReached(message.number, message.length, message.metric, message.value)
    state = apply_event(state, event, context)
    to = addresses.trial(summary.trial_id)
    if not message.closed and all(send.to != to for send in context.sends):
        # The search assigned no work, so the trial is told to wait.
        context.send(to, WorkAssigned(None, False))
    return state


def apply_discarded_metrics(
    state: ExperimentState, message: TrialMetricsDiscarded, context: StepContext
) -> ExperimentState:
    """Replace a trial's best metric by `message.best`, also if the trial has ended.

    If the trial had the experiment's best metric, compare all trials again. `best_metric` and
    `best_trial` may become None, and `best_values` becomes empty. An unknown trial or an unchanged
    metric changes nothing.
    """
    summary = summary_of(message.number, context)
    if summary is None or summary.metric == message.best:
        return state
    replace_summary(message.number, summary._replace(metric=message.best), context)
    if state.best_trial != summary.trial_id:
        return state
    sign = 1 if state.smaller_is_better else -1
    measured = (
        (sign * trial.metric, trial)
        for trial in summaries(state.trials, context)
        if trial.metric is not None
    )
    _, best = min(measured, key=lambda pair: pair[0], default=(0.0, None))
    return evolve(
        state,
        best_metric=best.metric if best else None,
        best_trial=best.trial_id if best else None,
        best_values={},
        best_announcement=replace(state.best_announcement, units=None),
    )


def _end_without_metric(state: ExperimentState, text: str, context: StepContext) -> ExperimentState:
    """Stop the experiment with STOPPING_ERROR and the message `text`, because the search lacks a
    metric.

    All open trials get the status. An experiment that is stopping or has ended stays unchanged.
    """
    if state.status.is_stopping or state.status.is_final:
        return state
    return change_status(evolve(state, message=text), Status.STOPPING_ERROR, context)


def _is_better(state: ExperimentState, metric: float, than: float) -> bool:
    """Return whether `metric` is better than `than`."""
    return metric < than if state.smaller_is_better else metric > than
