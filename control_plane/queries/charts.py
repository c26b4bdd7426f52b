"""Charts as JSON: names of metrics, series of one trial, and series of an experiment's best trials.

The bytes are cached with the metrics they were drawn from: a page that shows a trial asks for the
same charts again and again.
"""

from collections.abc import Callable, Iterator, Sequence

from pydantic_core import to_json

from control_plane.actors import addresses
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
from control_plane.services import Services

# Series in one chart, and groups of a trial that are looked through for names.
SERIES_MAX = 20
GROUPS_MAX = 100
# Points of all curves of an experiment's chart: an answer of about 1 MB.
POINTS_MAX = 50_000
RANKS_MAX = 1_000


class MetricName(Answer):
    """A summary of the numbers that a trial reported under a name, over the reports that count."""

    group: str
    name: str
    count: int
    last_steps: int
    last: float
    minimum: float
    maximum: float
    mean: float


class MetricNames(Answer):
    """All names of a trial."""

    items: list[MetricName]


# Steps and a value; and a time, where times are asked for, null where none was reported.
Point = tuple[int, float] | tuple[int, float, int | None]


class Series(Answer):
    """The numbers of one name over the steps; `total` points before the downsampling."""

    group: str
    name: str
    points: list[Point]
    total: int


class TrialSeries(Answer):
    """The series of some names of one trial. With times `started_ms`, when its first run said
    that it began, or null.
    """

    started_ms: int | None = None
    series: list[Series]


class SeriesOfTrial(Answer):
    """The series of one trial of an experiment, with `started_ms` as in TrialSeries."""

    trial_id: int
    started_ms: int | None = None
    points: list[Point]
    total: int


class ExperimentSeries(Answer):
    """One name of an experiment's trials, the best trials first."""

    group: str
    name: str
    series: list[SeriesOfTrial]


class MetricRanks(Answer):
    """The ranks that keep metrics apart from their trial's, in order: 1,000 at most."""

    items: list[int]


def list_ranks(services: Services, trial_id: int) -> MetricRanks:
    """List the ranks of a trial that keep metrics apart."""
    ranks: list[int] = []
    first = RANK_METRICS
    while len(ranks) < RANKS_MAX:
        segment = read_first_segment(services.table, trial_id, first, RANK_METRICS_END)
        if segment is None or segment.stream.rank is None:
            break
        ranks.append(segment.stream.rank)
        first = rank_range(segment.stream.rank)[1]
    return MetricRanks(items=ranks)


def metric_names_json(services: Services, trial_id: int, rank: int | None = None) -> bytes:
    """Encode the MetricNames of a trial, or of what a rank keeps apart."""
    parts = [
        _group_names_json(services, trial_id, group, rank)
        for group in _groups(services, trial_id, rank)
    ]
    return b'{"items":[%s]}' % b",".join(filter(None, parts))


def trial_series_json(
    services: Services,
    trial_id: int,
    group: str,
    names: Sequence[str],
    points: int,
    rank: int | None = None,
    *,
    times: bool = False,
) -> bytes:
    """Encode the TrialSeries of the names; without any, of all up to SERIES_MAX. With a rank, of
    what it keeps apart.
    """
    started = _started_json(services, trial_id) if times else b""

    def draw(series: MetricSeries) -> bytes:
        chosen = list(dict.fromkeys(names)) or list(series.summaries())[:SERIES_MAX]
        named = (
            b'{"group":%s,"name":%s,%s}'
            % (to_json(group), to_json(name), _points_json(series, name, points, times))
            for name in chosen
        )
        return b'{%s"series":[%s]}' % (started, b",".join(named))

    return _draw_chart(services, trial_id, group, draw, rank)


def experiment_series_json(
    services: Services,
    experiment_id: int,
    group: str,
    name: str | None,
    points: int,
    trials: int,
    *,
    times: bool = False,
) -> bytes:
    """Encode the ExperimentSeries; without a name, of the searcher's metric. RequestError
    not_found, or invalid for too many points in all.
    """
    if points * trials > POINTS_MAX:
        text = f"{points} points of {trials} trials are more than {POINTS_MAX} in all"
        raise invalid("points", text, f"ask for at most {POINTS_MAX // trials}")
    state, _ = experiments.get_experiment(services, experiment_id)
    metric = state.metric if name is None else name
    best = services.rankings.best(
        services.table, experiment_id, trials, smaller_is_better=state.smaller_is_better
    )
    series = (
        b'{"trial_id":%d,%s%s}'
        % (
            trial_id,
            _started_json(services, trial_id) if times else b"",
            _draw_chart(
                services,
                trial_id,
                group,
                lambda series: _points_json(series, metric, points, times),
            ),
        )
        for trial_id in best
    )
    return b'{"group":%s,"name":%s,"series":[%s]}' % (
        to_json(group),
        to_json(metric),
        b",".join(series),
    )


def _groups(services: Services, trial_id: int, rank: int | None) -> Iterator[str]:
    first, last = rank_range(rank)
    for _ in range(GROUPS_MAX):
        segment = read_first_segment(services.table, trial_id, first, last)
        if segment is None:
            return
        yield segment.stream.group
        first = group_range(segment.stream.group, rank)[1]


def _group_names_json(services: Services, trial_id: int, group: str, rank: int | None) -> bytes:
    def draw(series: MetricSeries) -> bytes:
        return series.cached_chart("names", lambda: _names_json(group, series))

    return _draw_chart(services, trial_id, group, draw, rank)


def _draw_chart(
    services: Services,
    trial_id: int,
    group: str,
    draw: Callable[[MetricSeries], bytes],
    rank: int | None = None,
) -> bytes:
    return services.metric_series.draw_chart(
        services.table, services.objects, trial_id, group, draw, rank
    )


def _names_json(group: str, series: MetricSeries) -> bytes:
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
    """Encode when the first run of a trial said that it began, as a field of an object."""
    address = addresses.trial(trial_id)
    rows = services.table.query(address, ENVIRONMENT, f"{ENVIRONMENT}~", limit=1).rows
    fields = parse_json(rows[0].body) if rows else {}
    time_ms = fields.get("time_ms")
    return b'"started_ms":%s,' % to_json(time_ms if isinstance(time_ms, int) else None)


def _points_json(series: MetricSeries, name: str, points: int, times: bool) -> bytes:
    def draw() -> bytes:
        moments = series.moments() if times else None
        return _downsampled_json(series.summaries().get(name), points, moments)

    return series.cached_chart((name, points, times), draw)


def _downsampled_json(summary: NameSummary | None, points: int, moments: Moments | None) -> bytes:
    """Encode the points, with the times of these moments, and their total, as fields of an
    object.
    """
    if summary is None:
        return b'"points":[],"total":0'
    steps, values = summary.steps, summary.values
    chosen = downsample(steps, values, points)
    pairs: list[Point] = [(steps[n], values[n]) for n in chosen]
    if moments is not None:
        pairs = [(steps[n], values[n], moments.time_at(steps[n])) for n in chosen]
    return b'"points":%s,"total":%d' % (to_json(pairs), summary.count)
