"""Charts as JSON: metric names, series of a trial, and series of an experiment's best trials.

The JSON text is cached with the metrics, because a page that shows a trial requests the same charts
repeatedly.
"""

from collections.abc import Callable, Iterator, Sequence
from typing import Any

from pydantic_core import to_json

from control_plane.actors import addresses
from control_plane.actors.trial.state import TrialState
from control_plane.agents.metric_rows import (
    RANK_METRICS,
    RANK_METRICS_END,
    group_range,
    rank_range,
    read_first_segment,
)
from control_plane.agents.sessions import ENVIRONMENT
from control_plane.engine.actor_types import parse_json
from control_plane.errors import invalid
from control_plane.metrics.lttb import downsample
from control_plane.metrics.summary import Moments, NameSummary
from control_plane.queries import experiment as experiments
from control_plane.queries.answer import Answer
from control_plane.queries.metric_series import MetricSeries
from control_plane.queries.metric_series_cache import MetricSeriesCache
from control_plane.queries.trial_ranking import TrialRankings
from control_plane.queries.void_reports import run_cuts
from control_plane.services import Services

# The most series of a chart if the request names no metrics.
SERIES_MAX = 20
# The most groups of a trial for which metric names are listed.
GROUPS_MAX = 100
# The most points of an experiment's chart, over all series: an answer of about 1 MB.
POINTS_MAX = 50_000
RANKS_MAX = 1_000


class MetricName(Answer):
    """Summary of the numbers that a trial reported under a metric name, over valid reports.

    `last` is the value at the latest step, `last_steps`.
    """

    group: str
    name: str
    count: int
    last_steps: int
    last: float
    minimum: float
    maximum: float
    mean: float


class MetricNames(Answer):
    """The metric names of a trial, with summaries."""

    items: list[MetricName]


Point = tuple[int, float] | tuple[int, float, int | None]
"""A point: the steps and the value. If the request asks for times, also the time of the report in
epoch ms, or null.
"""


class Series(Answer):
    """The values of a metric by steps.

    `total` is the number of points before downsampling.
    """

    group: str
    name: str
    points: list[Point]
    total: int


class TrialSeries(Answer):
    """Series of a trial.

    `started_ms` is the time at which the trial's first run reported its start, or null. It is only
    set if the request asks for times.
    """

    started_ms: int | None = None
    series: list[Series]


class SeriesOfTrial(Answer):
    """The series of a trial in an experiment's chart.

    `started_ms` is as in `TrialSeries`, `total` as in `Series`. `hparams` and `best_metric`, the
    trial's best searcher metric, are only set if the request asks for hyperparameters.
    """

    trial_id: int
    started_ms: int | None = None
    hparams: dict[str, Any] | None = None
    best_metric: float | None = None
    points: list[Point]
    total: int


class ExperimentSeries(Answer):
    """The series of a metric for the best trials of an experiment, the best trial first."""

    group: str
    name: str
    series: list[SeriesOfTrial]


class MetricRanks(Answer):
    """The first 1,000 ranks that keep metrics separate from the trial's metrics, sorted."""

    items: list[int]


def list_ranks(services: Services, trial_id: int) -> MetricRanks:
    """Return the ranks that keep metrics separate from the trial's metrics, in ascending order.

    Return at most RANKS_MAX ranks. Empty for a trial without separate metrics, and for an unknown
    trial. Each rank costs a query.
    """
    ranks: list[int] = []
    first = RANK_METRICS
    while len(ranks) < RANKS_MAX:
        segment = read_first_segment(services.table, trial_id, first, RANK_METRICS_END)
        if segment is None or segment.stream.rank is None:
            break
        ranks.append(segment.stream.rank)
        first = rank_range(segment.stream.rank)[1]
    return MetricRanks(items=ranks)


def metric_names_json(services: Services, trial: TrialState, rank: int | None = None) -> bytes:
    """Return the JSON text of the trial's `MetricNames`, with the first GROUPS_MAX groups.

    With a `rank`, these are the names of the metrics that this rank keeps separate. Names without a
    finite number are left out. The series of each group are read and cached. Raises OSError if the
    object store does not answer, and ValueError if a newer release has encoded a row of metrics.
    """
    parts = [
        _group_names_json(services, trial, group, rank)
        for group in _groups(services, trial.trial_id, rank)
    ]
    return b'{"items":[%s]}' % b",".join(filter(None, parts))


def trial_series_json(
    services: Services,
    trial: TrialState,
    group: str,
    names: Sequence[str],
    points: int,
    rank: int | None = None,
    *,
    times: bool = False,
) -> bytes:
    """Return the JSON text of the trial's `TrialSeries`.

    An unknown name has a series without points. The list of series is empty for a group without
    numbers if the request names no metrics. The group's series is read and cached.

    Args:
        services: the services that read metrics.
        trial: the trial's state.
        group: the group of metrics.
        names: the metric names; empty stands for the group's first SERIES_MAX names.
        points: the most points of each series; longer series are downsampled.
        rank: None for the trial's own metrics, or the rank that keeps the metrics separate.
        times: add the time of each point and `started_ms`.

    Raises:
        OSError: the object store does not answer.
        ValueError: a newer release has encoded a row of metrics.
    """
    started = _started_json(services, trial.trial_id) if times else b""

    def draw(series: MetricSeries) -> bytes:
        chosen = list(dict.fromkeys(names)) or list(series.summaries())[:SERIES_MAX]
        named = (
            b'{"group":%s,"name":%s,%s}'
            % (to_json(group), to_json(name), _points_json(series, name, points, times))
            for name in chosen
        )
        return b'{%s"series":[%s]}' % (started, b",".join(named))

    return _draw_chart(services, trial, group, draw, rank)


def experiment_series_json(
    services: Services,
    experiment_id: int,
    group: str,
    name: str | None,
    points: int,
    trials: int,
    *,
    times: bool = False,
    hparams: bool = False,
) -> bytes:
    """Return the JSON text of the experiment's `ExperimentSeries`.

    The trials are the best by the searcher metric; trials without a searcher metric follow by id. A
    trial without numbers of the requested metric has a series without points. Each trial's series
    is read and cached.

    Args:
        services: the services that read the experiment and metrics.
        experiment_id: the experiment.
        group: the group of metrics.
        name: the metric; None for the searcher metric.
        points: the most points of each series; longer series are downsampled.
        trials: the most trials, at most BEST_MAX, which the caller checks.
        times: add the time of each point and `started_ms`.
        hparams: add the hyperparameters and the best searcher metric of each trial.

    Raises:
        RequestError: not_found, if the experiment does not exist; invalid, if `points * trials` is
            more than POINTS_MAX.
        OSError: the object store does not answer.
        ValueError: a newer release has encoded a row of metrics.
    """
    if points * trials > POINTS_MAX:
        text = f"{points} points of {trials} trials are more than {POINTS_MAX} in all"
        raise invalid("points", text, f"ask for at most {POINTS_MAX // trials}")
    state, _ = experiments.get_experiment(services, experiment_id)
    metric = state.metric if name is None else name
    best = services.cache_of(TrialRankings).best(
        services.table, experiment_id, trials, smaller_is_better=state.smaller_is_better
    )
    heads = services.experiments.read_trials(best)
    series = (
        b'{"trial_id":%d,%s%s%s}'
        % (
            trial.trial_id,
            _started_json(services, trial.trial_id) if times else b"",
            _hparams_json(trial) if hparams else b"",
            _draw_chart(
                services,
                trial,
                group,
                lambda series: _points_json(series, metric, points, times),
            ),
        )
        for trial in heads
        if trial is not None
    )
    return b'{"group":%s,"name":%s,"series":[%s]}' % (
        to_json(group),
        to_json(metric),
        b",".join(series),
    )


def _groups(services: Services, trial_id: int, rank: int | None) -> Iterator[str]:
    """Yield the first GROUPS_MAX groups of the trial's metrics, or of the rank's, in order of the
    keys.

    Each group costs a query.
    """
    first, last = rank_range(rank)
    for _ in range(GROUPS_MAX):
        segment = read_first_segment(services.table, trial_id, first, last)
        if segment is None:
            return
        yield segment.stream.group
        first = group_range(segment.stream.group, rank)[1]


def _group_names_json(services: Services, trial: TrialState, group: str, rank: int | None) -> bytes:
    """Return the JSON objects of a group's `MetricName`s, joined by commas; b"" without numbers.

    The objects are cached with the group's series.
    """

    def draw(series: MetricSeries) -> bytes:
        return series.cached_chart("names", lambda: _names_json(group, series))

    return _draw_chart(services, trial, group, draw, rank)


def _draw_chart(
    services: Services,
    trial: TrialState,
    group: str,
    draw: Callable[[MetricSeries], bytes],
    rank: int | None = None,
) -> bytes:
    """Return `draw` of the current series of the trial's group, or of the rank's.

    New reports are read first, and the series stays cached. `draw` is called under the series'
    lock. Raises OSError if the object store does not answer, and ValueError if a newer release has
    encoded a row of metrics.
    """
    return services.cache_of(MetricSeriesCache).draw_chart(
        services.table, services.objects, trial.trial_id, group, run_cuts(trial), draw, rank
    )


def _names_json(group: str, series: MetricSeries) -> bytes:
    """Return the JSON objects of a series' `MetricName`s, joined by commas; b"" without numbers.

    The caller holds the series' lock.
    """
    return b",".join(
        to_json(
            {
                "group": group,
                "name": name,
                "count": summary.count,
                "last_steps": summary.last_steps,
                "last": summary.last,
                "minimum": summary.minimum,
                "maximum": summary.maximum,
                "mean": summary.mean,
            }
        )
        for name, summary in series.summaries().items()
    )


def _started_json(services: Services, trial_id: int) -> bytes:
    """Return the JSON field `started_ms` with a comma: the reported start of the trial's first run.

    The value is null without a report. Reads one row.
    """
    address = addresses.trial(trial_id)
    rows = services.table.query(address, ENVIRONMENT, f"{ENVIRONMENT}~", limit=1).rows
    fields = parse_json(rows[0].body) if rows else {}
    time_ms = fields.get("time_ms")
    return b'"started_ms":%s,' % to_json(time_ms if isinstance(time_ms, int) else None)


def _hparams_json(trial: TrialState) -> bytes:
    """Return the JSON fields `hparams` and `best_metric` of a trial, with a comma."""
    fields = to_json(dict(trial.hparams)), to_json(trial.best_metric)
    return b'"hparams":%s,"best_metric":%s,' % fields


def _points_json(series: MetricSeries, name: str, points: int, times: bool) -> bytes:
    """Return the JSON fields `points` and `total` of a metric, without braces.

    `points` has at most `points` points, with a time in each if `times` is true. For an unknown
    metric, the list is empty and `total` is 0. The result is cached in the series until the series
    changes.
    """

    def draw() -> bytes:
        moments = series.moments() if times else None
        return _downsampled_json(series.summaries().get(name), points, moments)

    return series.cached_chart((name, points, times), draw)


def _downsampled_json(summary: NameSummary | None, points: int, moments: Moments | None) -> bytes:
    """Return a fragment of a JSON object: the fields `points` and `total`, without braces.

    `points` has at most `points` points of the summary, as pairs of step and value. With `moments`,
    each point also has a time. `total` is the number of values before downsampling. Without a
    summary, the list is empty and `total` is 0.
    """
    if summary is None:
        return b'"points":[],"total":0'
    steps, values = summary.steps, summary.values
    chosen = downsample(steps, values, points)
    pairs: list[Point] = [(steps[n], values[n]) for n in chosen]
    if moments is not None:
        pairs = [(steps[n], values[n], moments.time_at(steps[n])) for n in chosen]
    return b'"points":%s,"total":%d' % (to_json(pairs), summary.count)
