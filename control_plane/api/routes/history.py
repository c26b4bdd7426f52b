"""Routes of an experiment's history, and of the replay of its journals."""

from typing import Annotated, Literal

from fastapi import Query

from control_plane.access.principals import USER_ROLES
from control_plane.api.dependencies import ExperimentId, PageParameters, ServicesParameter
from control_plane.api.route_guards import guarded_router, require_role
from control_plane.queries import history
from control_plane.queries.pages import Page

router = guarded_router("history")


@router.get("/experiments/{experiment_id}/history")
@require_role(*USER_ROLES)
def list_history(
    experiment_id: ExperimentId,
    services: ServicesParameter,
    page: PageParameters,
    actor: Annotated[str | None, Query(max_length=40)] = None,
    trials: bool | None = None,
    order: Literal["asc", "desc"] = "asc",
) -> Page[history.Event]:
    """List events, oldest first or with `order=desc` newest first, one per message: the
    experiment's, and between them its trials' as long as it has at most 100 of them. `trials=false`
    leaves those out, `trials=true` refuses an experiment with more; `actor=trial#7` tells of one
    trial alone, `actor=experiment#3` of the experiment. What one only repeats of the other is left
    out where both are listed.
    """
    descending = order == "desc"
    return history.list_history(services, experiment_id, actor, trials, page, descending=descending)


@router.get("/experiments/{experiment_id}/replay")
@require_role(*USER_ROLES)
def list_replays(
    experiment_id: ExperimentId, services: ServicesParameter, page: PageParameters
) -> Page[history.Replay]:
    """Replay every recorded message with the code that runs here. An item per actor, the experiment
    first; a page ends after some 2,000 entries.
    """
    return history.list_replays(services, experiment_id, page)
