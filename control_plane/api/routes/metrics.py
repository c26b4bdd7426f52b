"""Metrics: reports listed, names with their bounds, and series to draw."""

from typing import Annotated

from fastapi import Path, Query, Response

from control_plane.api.guarded import PEOPLE, guarded_router, needs
from control_plane.api.pages import Page, PageParameters
from control_plane.api.services import Given
from control_plane.api.views import charts, metrics
from control_plane.api.views import trial as trials

NAME_CHARACTERS_MAX = 1000

router = guarded_router("metrics")

TrialId = Annotated[int, Path(ge=1, le=10**12 - 1)]
Group = Annotated[str, Query(min_length=1, max_length=64)]
Name = Annotated[str, Query(max_length=NAME_CHARACTERS_MAX)]


@router.get("/trials/{trial_id}/metrics")
@needs(*PEOPLE)
def list_metrics(
    trial_id: TrialId, services: Given, asked: PageParameters, group: Group | None = None
) -> Page[metrics.Metrics]:
    """By group, then in the order of reporting."""
    epoch = trials.found(services, trial_id).epoch
    return metrics.metrics(services, trial_id, epoch, group, asked)


@router.get("/trials/{trial_id}/metrics/names", response_model=charts.MetricNames)
@needs(*PEOPLE)
def list_names(trial_id: TrialId, services: Given) -> Response:
    """By group; numbers only."""
    trials.found(services, trial_id)
    return _json(charts.names(services, trial_id))


@router.get("/trials/{trial_id}/metrics/series", response_model=charts.TrialSeries)
@needs(*PEOPLE)
def draw_trial(
    trial_id: TrialId,
    services: Given,
    group: Group,
    name: Annotated[list[Name], Query(max_length=charts.SERIES_MAX)] = [],  # noqa: B006
    points: Annotated[int, Query(ge=3, le=2_000)] = 500,
) -> Response:
    """Without a name, all numeric names of the group, 20 at most."""
    trials.found(services, trial_id)
    return _json(charts.series(services, trial_id, group, name, points))


@router.get("/experiments/{experiment_id}/metrics", response_model=charts.ExperimentSeries)
@needs(*PEOPLE)
def draw_experiment(
    experiment_id: Annotated[int, Path(ge=1, le=10**12 - 1)],
    services: Given,
    group: Group = "validation",
    name: Name | None = None,
    points: Annotated[int, Query(ge=3, le=1_000)] = 200,
    count: Annotated[int, Query(alias="trials", ge=1, le=50)] = 10,
) -> Response:
    """The best trials first; without a name, the searcher's metric."""
    return _json(charts.experiment_series(services, experiment_id, group, name, points, count))


def _json(content: bytes) -> Response:
    return Response(content, media_type="application/json")
