"""Sources of the trials' results at a length: validations at a batch, rungs, or ended trainings.

A result at a length is the metric of a validation after exactly this length of training. A trial's
best metric is no such result, because longer trainings have more validations to choose from.
"""

from collections import Counter
from collections.abc import Sequence
from math import isfinite
from typing import Protocol, TypeVar

from control_plane.actors.experiment.state import Definition, ExperimentState
from control_plane.actors.experiment.trial_summaries import TrialSummary
from control_plane.actors.lengths import Lengths
from control_plane.actors.trial.lost_work import VALIDATIONS_MAX
from control_plane.actors.trial.state import TrialState
from control_plane.queries.metric_series import MetricSeries
from control_plane.queries.metric_series_cache import MetricSeriesCache
from control_plane.queries.rungs import StoredBlobs
from control_plane.queries.void_reports import run_cuts
from control_plane.searchers.bracket_progress import SearchedTrial
from control_plane.searchers.registry import spec_of_plan
from control_plane.services import Services
from control_plane.state.table import GET_MAX

Item = TypeVar("Item")

GROUP = "validation"
"""The group of metrics in which validations are reported."""
LENGTHS_MAX = 12
"""The most lengths that are offered for a search without rungs."""
_COMMON_SHARE = 10
"""A length is offered if at least a tenth as many trials have a result as at the best length."""


class ResultsSource(Protocol):
    """The results of an experiment's trials for a metric."""

    def lengths(self) -> dict[int, int]:
        """Return the lengths to offer, in increasing order, with the number of trials that have
        trained to each length.
        """
        ...

    def candidates(self, length: int) -> Sequence[int]:
        """Return the numbers of all trials that may have a result at a length, in order."""
        ...

    def result_at(self, trial: TrialState, length: int) -> float | None:
        """Return a trial's finite result at a length. Return None without a result.

        Raises:
            SeriesLimitReached: the result could only be found by reading one series too many.
            OSError: the object store does not answer.
            ValueError: a newer release has encoded a row of metrics.
        """
        ...


class SeriesLimitReached(Exception):
    """The source has read as many series of metrics as a request may read."""


def find_source(
    services: Services,
    state: ExperimentState,
    definition: Definition,
    summaries: Sequence[TrialSummary],
    metric: str,
) -> ResultsSource | None:
    """Return the source of an experiment's results.

    Return None for another metric than the searcher metric, if lengths cannot be converted to
    batches. Metrics are only reported by batch.

    Args:
        services: the services that read the experiment and metrics.
        state: the experiment's state.
        definition: the experiment's definition.
        summaries: the summaries of all trials, by number.
        metric: the name of a validation metric.
    """
    lengths = definition.settings.lengths
    if not state.time_metric and not lengths.counts_epochs:
        return _Validations(services, state, definition, summaries, metric)
    if metric != state.metric:
        return None
    if spec_of_plan(definition.plan.method).read_brackets is not None:
        return _RungResults(services, state, definition, summaries)
    return _EndResults(summaries)


class _Validations:
    """The results of trials for lengths that can be converted to batches."""

    def __init__(
        self,
        services: Services,
        state: ExperimentState,
        definition: Definition,
        summaries: Sequence[TrialSummary],
        metric: str,
    ) -> None:
        self._services = services
        self._state = state
        self._definition = definition
        self._plan = definition.plan.method
        self._lengths = definition.settings.lengths
        self._summaries = summaries
        self._metric = metric
        self._series_left = services.limits.result_series_max
        self._rungs: _RungResults | None = None

    def lengths(self) -> dict[int, int]:
        read_lengths = spec_of_plan(self._plan).rung_lengths
        offered = self._common_lengths() if read_lengths is None else read_lengths(self._plan)
        # Records and epochs are rounded down to batches, so that a training may be a little short.
        share = 1.0 if self._lengths.unit in ("steps", "batches") else 0.9
        counts = {length: len(self._find_trained_trials(length, share)) for length in offered}
        return {length: count for length, count in counts.items() if count}

    def candidates(self, length: int) -> Sequence[int]:
        # A length of at least a batch, rounded down to batches, is more than half of the length.
        share = 1.0 if self._lengths.unit in ("steps", "batches") else 0.5
        return self._find_trained_trials(length, share)

    def result_at(self, trial: TrialState, length: int) -> float | None:
        steps = self._lengths.batches(length, trial.hparams)
        if self._metric == self._state.metric:
            found = _recorded_metric(trial, steps)
            if found is None:
                # A run that trained again from an earlier batch has made the validation void, but
                # the search has compared this result.
                found = self._rung_result(trial, length)
            if found is not None or steps > trial.steps or _has_all_validations(trial):
                return found
        if self._series_left == 0:
            raise SeriesLimitReached
        self._series_left -= 1
        return self._reported_metric(trial, steps)

    def _rung_result(self, trial: TrialState, length: int) -> float | None:
        """Return the result that the search compared at a rung. Return None for the last rung."""
        read_lengths = spec_of_plan(self._plan).rung_lengths
        if read_lengths is None or length not in read_lengths(self._plan)[:-1]:
            return None
        if self._rungs is None:
            self._rungs = _RungResults(
                self._services, self._state, self._definition, self._summaries
            )
        return self._rungs.result_at(trial, length)

    def _find_trained_trials(self, length: int, share: float) -> list[int]:
        """Return the numbers of the trials with a metric and at least a share of a length."""
        return [
            number
            for number, summary in enumerate(self._summaries)
            if summary.metric is not None
            and (summary.reached >= length or summary.units >= share * length)
        ]

    def _common_lengths(self) -> list[int]:
        """Return lengths at which many trials have validated, in increasing order.

        Up to GET_MAX trials, spread evenly, stand for all trials.
        """
        measured = [summary for summary in self._summaries if summary.metric is not None]
        chosen = [summary.trial_id for summary in spread_evenly(measured, GET_MAX)]
        counts = Counter(
            length
            for trial in self._services.experiments.read_trials(chosen)
            if trial is not None
            for length in _validated_lengths(trial, self._lengths)
        )
        least = max(counts.values(), default=0) / _COMMON_SHARE
        common = sorted(length for length, count in counts.items() if count >= least)
        # The longest training is always offered.
        return spread_evenly(common[::-1], LENGTHS_MAX)[::-1]

    def _reported_metric(self, trial: TrialState, steps: int) -> float | None:
        """Return the metric that the trial's valid reports have at a batch. Reads rows."""

        def find(series: MetricSeries) -> float | None:
            summary = series.summaries().get(self._metric)
            points = [] if summary is None else zip(summary.steps, summary.values, strict=True)
            # The last report at a batch counts.
            return dict(points).get(steps)

        cache = self._services.cache_of(MetricSeriesCache)
        table, objects = self._services.table, self._services.objects
        return cache.draw_chart(table, objects, trial.trial_id, GROUP, run_cuts(trial), find)


class _RungResults:
    """The results of the search in the rungs, for lengths that only the trial can measure: a time
    metric, or epochs without `records_per_epoch`.
    """

    def __init__(
        self,
        services: Services,
        state: ExperimentState,
        definition: Definition,
        summaries: Sequence[TrialSummary],
    ) -> None:
        plan = definition.plan.method
        read_brackets = spec_of_plan(plan).read_brackets
        assert read_brackets is not None
        trials = [
            SearchedTrial(summary.metric, summary.is_open(state.run_generation))
            for summary in summaries
        ]
        blobs = StoredBlobs(services, state.experiment_id)
        progress = read_brackets(plan, state.search.method, blobs, trials, len(trials))
        self._results: dict[int, dict[int, float]] = {}
        for rung in (rung for bracket in progress for rung in bracket.rungs):
            of_length = self._results.setdefault(rung.length, {})
            for entry in rung.trials:
                if entry.metric is not None and isfinite(entry.metric):
                    of_length[entry.trial] = entry.metric

    def lengths(self) -> dict[int, int]:
        return {length: len(found) for length, found in sorted(self._results.items()) if found}

    def candidates(self, length: int) -> Sequence[int]:
        return sorted(self._results.get(length, ()))

    def result_at(self, trial: TrialState, length: int) -> float | None:
        metric = self._results.get(length, {}).get(trial.number)
        if metric is not None and length == max(self._results):
            # The last rung has the best metric of the whole training. The latest is at its end.
            return _finite(trial.metric)
        return metric


class _EndResults:
    """The results of trials that count epochs without rungs: the metric at the assigned length."""

    def __init__(self, summaries: Sequence[TrialSummary]) -> None:
        self._reached = [0 if summary.metric is None else summary.reached for summary in summaries]

    def lengths(self) -> dict[int, int]:
        return dict(sorted(Counter(filter(None, self._reached)).items()))

    def candidates(self, length: int) -> Sequence[int]:
        return [number for number, reached in enumerate(self._reached) if reached == length]

    def result_at(self, trial: TrialState, length: int) -> float | None:
        return _finite(trial.metric) if trial.reached == length else None


def spread_evenly(items: Sequence[Item], count_max: int) -> list[Item]:
    """Return at most `count_max` evenly spread items, beginning with the first item."""
    if len(items) <= count_max:
        return list(items)
    return [items[place * len(items) // count_max] for place in range(count_max)]


def _recorded_metric(trial: TrialState, steps: int) -> float | None:
    """Return the searcher metric that the trial's state has for a validation at a batch."""
    for validation in reversed(trial.validations):
        if validation.steps == steps:
            return _finite(validation.metric)
    return _finite(trial.metric) if trial.metric_steps == steps else None


def _has_all_validations(trial: TrialState) -> bool:
    """Return whether the trial's state has every validation. False if some may be left out."""
    keeps_validations = trial.settings.discards_lost_metrics and trial.epoch <= 1
    return keeps_validations and len(trial.validations) < VALIDATIONS_MAX


def _validated_lengths(trial: TrialState, lengths: Lengths) -> set[int]:
    """Return the whole lengths, in the configured unit, at which the trial has validated."""
    steps = {validation.steps for validation in trial.validations}
    if trial.metric_steps is not None:
        steps.add(trial.metric_steps)
    found = {(round(lengths.units(batches, trial.hparams)), batches) for batches in steps}
    return {
        length
        for length, batches in found
        if length > 0 and lengths.batches(length, trial.hparams) == batches
    }


def _finite(metric: float | None) -> float | None:
    return metric if metric is not None and isfinite(metric) else None
