"""Routes of metrics: reports, names with their bounds, and series to draw."""

from typing import Annotated

from fastapi import Path, Query, Response

from control_plane.access.principals import USER_ROLES
from control_plane.api.dependencies import PageParameters, ServicesParameter
from control_plane.api.responses import json_response
from control_plane.api.route_guards import guarded_router, require_role
from control_plane.queries import charts, metrics
from control_plane.queries import trial as trials
from control_plane.queries.pages import Page
from control_plane.queries.trial_ranking import BEST_MAX

NAME_CHARACTERS_MAX = 1000

router = guarded_router("metrics")

TrialId = Annotated[int, Path(ge=1, le=10**12 - 1)]
Group = Annotated[str, Query(min_length=1, max_length=64)]
Name = Annotated[str, Query(max_length=NAME_CHARACTERS_MAX)]
Rank = Annotated[int | None, Query(ge=0, le=99_999)]


@router.get("/trials/{trial_id}/metrics")
@require_role(*USER_ROLES)
def list_metrics(
    trial_id: TrialId,
    services: ServicesParameter,
    page: PageParameters,
    group: Group | None = None,
    rank: Rank = None,
) -> Page[metrics.Metrics]:
    """List reports by group, then in the order of reporting; with a rank, what it keeps apart."""
    epoch = trials.get_trial(services, trial_id).epoch
    return metrics.list_metrics(services, trial_id, epoch, group, page, rank)


@router.get("/trials/{trial_id}/metrics/names", response_model=charts.MetricNames)
@require_role(*USER_ROLES)
def list_names(trial_id: TrialId, services: ServicesParameter, rank: Rank = None) -> Response:
    """List the names of a trial's numeric metrics, by group; with a rank, of what it keeps
    apart.
    """
    trials.get_trial(services, trial_id)
    return json_response(charts.metric_names_json(services, trial_id, rank))


@router.get("/trials/{trial_id}/metrics/ranks")
@require_role(*USER_ROLES)
def list_ranks(trial_id: TrialId, services: ServicesParameter) -> charts.MetricRanks:
    """List the ranks that keep metrics apart from the trial's own."""
    trials.get_trial(services, trial_id)
    return charts.list_ranks(services, trial_id)


@router.get("/trials/{trial_id}/metrics/series", response_model=charts.TrialSeries)
@require_role(*USER_ROLES)
def draw_trial(
    trial_id: TrialId,
    services: ServicesParameter,
    group: Group,
    name: Annotated[list[Name], Query(max_length=charts.SERIES_MAX)] = [],  # noqa: B006
    points: Annotated[int, Query(ge=3, le=2_000)] = 500,
    rank: Rank = None,
    times: bool = False,
) -> Response:
    """Draw series of a trial; without a name, of all numeric names of the group, 20 at most. With a
    rank, of what it keeps apart; with `times`, each point has the time of its report, too.
    """
    trials.get_trial(services, trial_id)
    return json_response(
        charts.trial_series_json(services, trial_id, group, name, points, rank, times=times)
    )


@router.get("/experiments/{experiment_id}/metrics", response_model=charts.ExperimentSeries)
@require_role(*USER_ROLES)
def draw_experiment(
    experiment_id: Annotated[int, Path(ge=1, le=10**12 - 1)],
    services: ServicesParameter,
    group: Group = "validation",
    name: Name | None = None,
    points: Annotated[int, Query(ge=3, le=1_000)] = 200,
    count: Annotated[int, Query(alias="trials", ge=1, le=BEST_MAX)] = 10,
    times: bool = False,
) -> Response:
    """Draw a series of each of the best trials, best first; without a name, of the searcher's
    metric. With `times`, each point has the time of its report, too.
    """
    return json_response(
        charts.experiment_series_json(
            services, experiment_id, group, name, points, count, times=times
        )
    )
