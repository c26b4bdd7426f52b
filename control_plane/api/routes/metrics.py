"""Routes of metrics: reports, names with summaries, and series for charts."""

from typing import Annotated

from fastapi import Path, Query, Response

from control_plane.access.principals import USER_ROLES
from control_plane.api.dependencies import PageParameters, ServicesParameter
from control_plane.api.responses import json_response
from control_plane.api.route_guards import guarded_router, require_role
from control_plane.errors import invalid
from control_plane.queries import best_curves, charts, metrics
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
    """List a trial's valid reports by group, then in the order of reporting.

    `group` selects a group. `rank` lists the reports that this rank keeps separate from the trial's
    reports. Reports that a later run replaced are left out. A page may have fewer items than
    `limit`. Errors: `not_found` for an unknown trial. `invalid` for a cursor of another list.
    """
    trial = trials.get_trial(services, trial_id)
    return metrics.list_metrics(services, trial, group, page, rank)


@router.get("/trials/{trial_id}/metrics/names", response_model=charts.MetricNames)
@require_role(*USER_ROLES)
def list_names(trial_id: TrialId, services: ServicesParameter, rank: Rank = None) -> Response:
    """List the names of a trial's numeric metrics by group, each with a summary of the values.

    `rank` lists the metrics that this rank keeps separate. At most 100 groups are listed. Error:
    `not_found` for an unknown trial.
    """
    trial = trials.get_trial(services, trial_id)
    return json_response(charts.metric_names_json(services, trial, rank))


@router.get("/trials/{trial_id}/metrics/ranks")
@require_role(*USER_ROLES)
def list_ranks(trial_id: TrialId, services: ServicesParameter) -> charts.MetricRanks:
    """List the ranks that keep metrics separate from the trial's metrics, at most 1,000.

    Error: `not_found` for an unknown trial.
    """
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
    """Return series of a trial's metrics for a chart, each downsampled to at most `points` points.

    `name` may be repeated. Without `name`, the group's first 20 numeric metrics are returned. A
    metric without reports has an empty series. `rank` selects the metrics that this rank keeps
    separate. With `times`, each point also has the time of the report, and the answer has the time
    of the trial's start. Error: `not_found` for an unknown trial.
    """
    trial = trials.get_trial(services, trial_id)
    return json_response(
        charts.trial_series_json(services, trial, group, name, points, rank, times=times)
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
    hparams: bool = False,
) -> Response:
    """Return a metric's series for each of the best `trials` trials, the best trial first.

    Trials without a searcher metric follow by id. A trial without the metric has an empty series.
    `name` defaults to the searcher metric. Each series is downsampled to at most `points` points.
    With `times`, each point also has the time of the report, and each trial the time of the start.
    With `hparams`, each trial also has the hyperparameters and the best searcher metric. Errors:
    `not_found` for an unknown experiment. `invalid` if `points` times `trials` is more than 50,000.
    """
    return json_response(
        charts.experiment_series_json(
            services, experiment_id, group, name, points, count, times=times, hparams=hparams
        )
    )


@router.get("/experiment-curves")
@require_role(*USER_ROLES)
def draw_best(
    services: ServicesParameter,
    experiments: Annotated[str, Query(max_length=2_000)],
    points: Annotated[int, Query(ge=3, le=best_curves.POINTS_MAX)] = 32,
) -> best_curves.BestCurves:
    """Return the searcher metric of each experiment's best trial, for small charts in a list.

    `experiments` are at most 100 ids, separated by commas. Experiments without a best trial, and
    unknown experiments, are left out. Error: `invalid` for another text.
    """
    ids = [int(text) for text in experiments.split(",") if text.isascii() and text.isdecimal()]
    if len(ids) != experiments.count(",") + 1 or len(ids) > best_curves.EXPERIMENTS_MAX:
        expected = f"1 to {best_curves.EXPERIMENTS_MAX} ids, separated by commas, as in 3,5"
        raise invalid("experiments", f"{experiments!a:.80} is not valid; expected {expected}")
    return best_curves.read_best_curves(services, ids, points)
