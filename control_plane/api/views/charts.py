"""Charts: names, series of one trial and series of an experiment's best trials, as JSON.

They are written as bytes and kept with what they were drawn from: a page that looks at a trial asks
for the same again and again.
"""

from collections.abc import Callable, Iterator, Sequence

from pydantic_core import to_json

from control_plane.agents.segments import METRICS, METRICS_END, first_segment, of_group
from control_plane.api.bodies import Body
from control_plane.api.services import Services
from control_plane.api.views import experiment as experiments
from control_plane.api.views.courses import Course
from control_plane.metrics.lttb import downsampled
from control_plane.metrics.summary import NameSummary

# Series in one chart, and groups of a trial that are looked through for names.
SERIES_MAX = 20
GROUPS_MAX = 100


class MetricName(Body):
    """The numbers that a trial reported under a name, over the reports that count."""

    group: str
    name: str
    count: int
    last_steps: int
    last: float
    minimum: float
    maximum: float
    mean: float


class MetricNames(Body):
    """All names of a trial."""

    items: list[MetricName]


class Series(Body):
    """One name over the steps; `total` points before the downsampling."""

    group: str
    name: str
    points: list[tuple[int, float]]
    total: int


class TrialSeries(Body):
    """See docs/api.md."""

    series: list[Series]


class SeriesOfTrial(Body):
    """The series of one trial of an experiment."""

    trial_id: int
    points: list[tuple[int, float]]
    total: int


class ExperimentSeries(Body):
    """Best trials first."""

    group: str
    name: str
    series: list[SeriesOfTrial]


def names(services: Services, trial_id: int) -> bytes:
    """MetricNames."""
    found = [_names_in(services, trial_id, group) for group in _groups(services, trial_id)]
    return b'{"items":[%s]}' % b",".join(filter(None, found))


def series(
    services: Services, trial_id: int, group: str, wanted: Sequence[str], points: int
) -> bytes:
    """TrialSeries of the names, of all up to SERIES_MAX without any."""

    def draw(course: Course) -> bytes:
        chosen = list(dict.fromkeys(wanted)) or list(course.summaries())[:SERIES_MAX]
        named = (
            b'{"group":%s,"name":%s,%s}'
            % (to_json(group), to_json(name), _drawn(course, name, points))
            for name in chosen
        )
        return b'{"series":[%s]}' % b",".join(named)

    return _looked(services, trial_id, group, draw)


def experiment_series(
    services: Services, experiment_id: int, group: str, name: str | None, points: int, trials: int
) -> bytes:
    """ExperimentSeries; without a name, of the searcher's metric. ApiError not_found."""
    state, _ = experiments.found(services, experiment_id)
    shown = state.metric if name is None else name
    best = services.rankings.best(
        services.table, experiment_id, trials, smaller_is_better=state.smaller_is_better
    )
    found = (
        b'{"trial_id":%d,%s}'
        % (
            trial_id,
            _looked(services, trial_id, group, lambda course: _drawn(course, shown, points)),
        )
        for trial_id in best
    )
    listed = b",".join(found)
    return b'{"group":%s,"name":%s,"series":[%s]}' % (to_json(group), to_json(shown), listed)


def _groups(services: Services, trial_id: int) -> Iterator[str]:
    first = METRICS
    for _ in range(GROUPS_MAX):
        found = first_segment(services.table, trial_id, first, METRICS_END)
        if found is None:
            return
        yield found.stream.group
        first = of_group(found.stream.group)[1]


def _names_in(services: Services, trial_id: int, group: str) -> bytes:
    def draw(course: Course) -> bytes:
        return course.drawn("names", lambda: _names(group, course))

    return _looked(services, trial_id, group, draw)


def _looked(
    services: Services, trial_id: int, group: str, draw: Callable[[Course], bytes]
) -> bytes:
    return services.courses.look(services.table, services.objects, trial_id, group, draw)


def _names(group: str, course: Course) -> bytes:
    return b",".join(
        to_json(
            {
                "group": group,
                "name": name,
                "count": found.count,
                "last_steps": found.last_steps,
                "last": found.last,
                "minimum": found.minimum,
                "maximum": found.maximum,
                "mean": found.mean,
            }
        )
        for name, found in course.summaries().items()
    )


def _drawn(course: Course, name: str, points: int) -> bytes:
    return course.drawn((name, points), lambda: _line(course.summaries().get(name), points))


def _line(found: NameSummary | None, points: int) -> bytes:
    """The points and their total, as fields of an object."""
    if found is None:
        return b'"points":[],"total":0'
    steps, values = found.steps, found.values
    kept = downsampled(steps, values, points)
    drawn = [(steps[n], values[n]) for n in kept]
    return b'"points":%s,"total":%d' % (to_json(drawn), found.count)
