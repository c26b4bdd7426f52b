"""Query of the trials' results at a length, for comparisons of hyperparameters."""

from dataclasses import dataclass
from threading import Lock
from typing import Any

from control_plane.actors import addresses
from control_plane.actors.experiment.state import ExperimentState
from control_plane.actors.experiment.trial_summaries import TrialSummary
from control_plane.bounded_cache import BoundedCache
from control_plane.engine.head import HEAD
from control_plane.errors import invalid
from control_plane.importance.fanova import TRIALS_MIN, TRIALS_SURE
from control_plane.queries.answer import Answer
from control_plane.queries.experiment import get_experiment
from control_plane.queries.pages import Page, PageRequest, page_from_sequence
from control_plane.queries.result_sources import (
    ResultsSource,
    SeriesLimitReached,
    find_source,
    spread_evenly,
)
from control_plane.queries.rungs import read_summaries
from control_plane.services import Services
from control_plane.state.table import Key

# The most results in the cache over all experiments, of about 500 bytes each.
KEPT_RESULTS_MAX = 20_000


class ResultLength(Answer):
    """A length at which results can be compared.

    `trials` is the number of trials that have trained to this length.
    """

    length: int
    trials: int


class TrialResult(Answer):
    """The result of a trial at the length of the answer."""

    trial_id: int
    number: int
    metric: float
    hparams: dict[str, Any]


class BestResult(Answer):
    """The trial with the best result at the length of the answer."""

    trial_id: int
    metric: float


class ResultPage(Page[TrialResult]):
    """A page of the trials' results at a length; docs/api.md describes the fields."""

    metric: str
    smaller_is_better: bool | None
    unit: str
    at: int | None
    lengths: list[ResultLength]
    trials: int
    trials_left_out: int
    best: BestResult | None


@dataclass(frozen=True)
class Results:
    """The results of an experiment's trials at a length."""

    metric: str
    smaller_is_better: bool | None
    """None for another metric than the searcher metric."""
    unit: str
    at: int | None
    """The length. None: no trial has a result."""
    lengths: tuple[ResultLength, ...]
    """The lengths to offer."""
    trials_left_out: int
    """The number of trials that may have a result that was not read."""
    best: BestResult | None
    items: tuple[TrialResult, ...]
    """The results by the trials' numbers."""
    read: dict[int, tuple[TrialSummary, TrialResult | None]]
    """For each trial that was read, by number, the summary at that time and the result."""


class ResultsCache:
    """Cache of the latest results. Safe to share between threads.

    Cached results are used until the experiment's head changes. After a change, only trials with
    changed summaries are read again.
    """

    def __init__(self) -> None:
        self._lock = Lock()
        self._kept: BoundedCache[tuple[int, str | None, int | None], tuple[int, Results]]
        self._kept = BoundedCache(KEPT_RESULTS_MAX)

    def find_results(
        self, services: Services, experiment_id: int, metric: str | None, at: int | None
    ) -> Results:
        """Return an experiment's results; see `read_results`. Other threads wait meanwhile."""
        key = experiment_id, metric, at
        with self._lock:
            # Read the head first. A change after this read is seen by the next call.
            head = services.table.get(Key(addresses.experiment(experiment_id), HEAD))
            revision = head.revision if head else 0
            known = self._kept.find(key)
            if known is None or known[0] != revision:
                previous = known[1] if known else None
                results = read_results(services, experiment_id, metric, at, previous)
                known = revision, results
                self._kept.keep(key, known, len(results.read) + 1)
                # Later pages and charts name the default length.
                self._kept.keep((*key[:2], results.at), known, len(results.read) + 1)
            return known[1]


def list_results(
    services: Services, experiment_id: int, metric: str | None, at: int | None, page: PageRequest
) -> ResultPage:
    """Return a page of an experiment's results at a length, sorted by the trials' numbers.

    Args:
        services: the services that read the experiment and metrics.
        experiment_id: the experiment.
        metric: the name of a validation metric; None for the searcher metric.
        at: the length in the unit of the answer; None for the default length.
        page: the request.

    Raises:
        RequestError: not_found, if the experiment does not exist; invalid, for a cursor of another
            list, or for a metric without results by length.
        OSError: the object store does not answer.
        ValueError: a newer release has encoded a row of metrics.
    """
    results = services.cache_of(ResultsCache).find_results(services, experiment_id, metric, at)
    found = page_from_sequence(results.items, page, "results", lambda place, item: item)
    return ResultPage(
        items=found.items,
        next_cursor=found.next_cursor,
        metric=results.metric,
        smaller_is_better=results.smaller_is_better,
        unit=results.unit,
        at=results.at,
        lengths=list(results.lengths),
        trials=len(results.items),
        trials_left_out=results.trials_left_out,
        best=results.best,
    )


def read_results(
    services: Services,
    experiment_id: int,
    metric: str | None,
    at: int | None,
    previous: Results | None = None,
) -> Results:
    """Read the results of an experiment's trials at a length.

    At most `result_trials_max` trials are read, spread evenly over all trials with a result.

    Args:
        services: the services that read the experiment and metrics.
        experiment_id: the experiment.
        metric: the name of a validation metric; None for the searcher metric.
        at: the length; None for the largest length at which enough trials have a result.
        previous: earlier results for equal arguments, from which unchanged trials are copied.

    Raises:
        RequestError: not_found, if the experiment does not exist; invalid, for a metric without
            results by length.
        OSError: the object store does not answer.
        ValueError: a newer release has encoded a row of metrics.
    """
    state, definition = get_experiment(services, experiment_id)
    name = state.metric if metric is None else metric
    unit = state.time_metric or definition.settings.lengths.unit
    summaries = read_summaries(services, experiment_id, state.trials)
    source = find_source(services, state, definition, summaries, name)
    if source is None:
        text = f"{name!r} is reported by batch, but lengths of this experiment are in {unit}"
        raise invalid("metric", text, f"omit the metric: only {state.metric!r} has such results")
    lengths = source.lengths()
    length = _default_length(lengths) if at is None else at
    read: dict[int, tuple[TrialSummary, TrialResult | None]] = {}
    left_out = 0
    if length is not None:
        known = previous.read if previous is not None and previous.at == length else {}
        read, left_out = _read_trials(services, state, summaries, source, length, known)
    smaller_is_better = state.smaller_is_better if name == state.metric else None
    items = tuple(result for _, result in read.values() if result is not None)
    return Results(
        metric=name,
        smaller_is_better=smaller_is_better,
        unit=unit,
        at=length,
        lengths=tuple(ResultLength(length=n, trials=count) for n, count in lengths.items()),
        trials_left_out=left_out,
        best=_best_result(items, smaller_is_better),
        items=items,
        read=read,
    )


def _default_length(lengths: dict[int, int]) -> int | None:
    """Return the largest length with TRIALS_SURE trials, or else with TRIALS_MIN trials.

    If no length has enough trials, return the length with the most trials.

    Among equal numbers of trials, return the largest length. Return None without lengths.
    """
    for least in (TRIALS_SURE, TRIALS_MIN):
        if enough := [length for length, count in lengths.items() if count >= least]:
            return max(enough)
    return max(lengths, key=lambda length: (lengths[length], length), default=None)


def _read_trials(
    services: Services,
    state: ExperimentState,
    summaries: list[TrialSummary],
    source: ResultsSource,
    length: int,
    known: dict[int, tuple[TrialSummary, TrialResult | None]],
) -> tuple[dict[int, tuple[TrialSummary, TrialResult | None]], int]:
    """Return the results by the trials' numbers, in order, and the number of trials left out.

    Results in `known` are copied if the trial's summary is unchanged.
    """
    candidates = source.candidates(length)
    chosen = set(spread_evenly(candidates, services.limits.result_trials_max))
    chosen |= {n for n in candidates if summaries[n].trial_id == state.best_trial}
    left_out = len(candidates) - len(chosen)
    read: dict[int, tuple[TrialSummary, TrialResult | None]] = {}
    for number in sorted(chosen):
        kept = known.get(number)
        read[number] = kept if kept and kept[0] == summaries[number] else (summaries[number], None)
    new = [number for number in read if known.get(number) is not read[number]]
    trials = services.experiments.read_trials(summaries[number].trial_id for number in new)
    for number, trial in zip(new, trials, strict=True):
        if trial is None or trial.deleted:
            continue
        try:
            metric = source.result_at(trial, length)
        except SeriesLimitReached:
            left_out += 1
            del read[number]
            continue
        if metric is not None:
            hparams = dict(trial.hparams)
            result = TrialResult(
                trial_id=trial.trial_id, number=number, metric=metric, hparams=hparams
            )
            read[number] = summaries[number], result
    return read, left_out


def _best_result(
    items: tuple[TrialResult, ...], smaller_is_better: bool | None
) -> BestResult | None:
    """Return the best result, of equal results the first.

    Return None without results, or if the direction is unknown.
    """
    if not items or smaller_is_better is None:
        return None
    sign = 1 if smaller_is_better else -1
    best = min(items, key=lambda item: sign * item.metric)
    return BestResult(trial_id=best.trial_id, metric=best.metric)
