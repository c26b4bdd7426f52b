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
    """List the brackets of a search with their rungs, and of each rung its best trials; of
    population-based training the rounds that have begun, as one bracket.
    """
    return json_response(services.rungs.list_rungs_json(services, experiment_id, shown))
