"""The route of an experiment's rungs."""

from typing import Annotated

from fastapi import Query, Response

from control_plane.access.principals import USER_ROLES
from control_plane.api.dependencies import ExperimentId, ServicesParameter
from control_plane.api.responses import json_response
from control_plane.api.route_guards import guarded_router, require_role
from control_plane.queries import rungs

router = guarded_router("rungs")


@router.get("/experiments/{experiment_id}/rungs", response_model=rungs.Rungs)
@require_role(*USER_ROLES)
def list_rungs(
    experiment_id: ExperimentId,
    services: ServicesParameter,
    shown: Annotated[int, Query(alias="trials", ge=0, le=200)] = 50,
) -> Response:
    """List the brackets of a search, with the rungs and the best trials of each rung.

    `trials` limits the trials of a rung; fewer are listed for a search with many rungs. The rounds
    of population-based training that have begun form a single bracket. The list is empty if the
    searcher does not compare trials at rungs. Errors: `not_found` for an unknown experiment.
    `invalid` for a search of more than 50,000 trials.
    """
    cache = services.cache_of(rungs.RungsCache)
    return json_response(cache.list_rungs_json(services, experiment_id, shown))
