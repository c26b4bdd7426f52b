"""The routes of the trials' results at a length, and of the importance of hyperparameters."""

from typing import Annotated

from fastapi import Query

from control_plane.access.principals import USER_ROLES
from control_plane.api.dependencies import ExperimentId, PageParameters, ServicesParameter
from control_plane.api.route_guards import guarded_router, require_role
from control_plane.queries import importance, results

METRIC_CHARACTERS_MAX = 1000

router = guarded_router("results")

MetricName = Annotated[str | None, Query(max_length=METRIC_CHARACTERS_MAX)]
LengthParameter = Annotated[int | None, Query(ge=1, le=2**53)]


@router.get("/experiments/{experiment_id}/results")
@require_role(*USER_ROLES)
def list_results(
    experiment_id: ExperimentId,
    services: ServicesParameter,
    page: PageParameters,
    metric: MetricName = None,
    at: LengthParameter = None,
) -> results.ResultPage:
    """List the trials' results at a length of training, with hyperparameters, by number.

    `metric` is a validation metric, by default the searcher metric. `at` is the length in the unit
    of the answer. By default, `at` is the largest length with 40 trials, or else with 20 trials, or
    else the length with the most trials. Trials without a validation at this length are not listed.
    Of more than 2,000 trials, 2,000 are listed. Errors: `not_found` for an unknown experiment.
    `invalid` for a cursor of another list, or for another metric if only the trials can measure
    the unit of lengths.
    """
    return results.list_results(services, experiment_id, metric, at, page)


@router.get("/experiments/{experiment_id}/importance")
@require_role(*USER_ROLES)
def assess_importance(
    experiment_id: ExperimentId,
    services: ServicesParameter,
    metric: MetricName = None,
    at: LengthParameter = None,
) -> importance.Importance:
    """Return the share of a metric's variance that each hyperparameter explains, by fANOVA.

    The trials are those of the route `results` for equal `metric` and `at`. `items` is empty for
    fewer than 20 trials; `note` then has the reason. While a search runs, an answer may be some
    seconds old. Errors: `not_found` for an unknown experiment. `invalid` for another metric if only
    the trials can measure the unit of lengths.
    """
    cache = services.cache_of(importance.ImportanceCache)
    return cache.find_importance(services, experiment_id, metric, at)
