"""Routes of an experiment's history, of the trials' timelines, and of replays of journals."""

from typing import Annotated, Literal

from fastapi import Query

from control_plane.access.principals import USER_ROLES
from control_plane.api.dependencies import ExperimentId, PageParameters, ServicesParameter
from control_plane.api.route_guards import guarded_router, require_role
from control_plane.queries import history, trial_timelines
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
    """List the events of an experiment and of the trials: an event for each processed message.

    The oldest event comes first, or with `order=desc` the newest. Events of trials are included if
    the experiment has at most 100 trials; an event that only repeats another event is then left
    out. `trials=false` lists only the experiment's own events. `actor=trial#7` lists only the
    events of a trial, and `actor=experiment#3` only the experiment's own. A page may be short or
    empty although `next_cursor` is set.

    Errors: `not_found` for an unknown experiment or trial. `invalid` if `trials=true` and the
    experiment has more than 100 trials, if `actor` is not an actor of the experiment, or for a
    cursor of another list.
    """
    descending = order == "desc"
    return history.list_history(services, experiment_id, actor, trials, page, descending=descending)


@router.get("/experiments/{experiment_id}/timelines")
@require_role(*USER_ROLES)
def list_timelines(
    experiment_id: ExperimentId, services: ServicesParameter, page: PageParameters
) -> Page[trial_timelines.TrialTimeline]:
    """List the runs and waits of an experiment's trials with times, machines and prices.

    The trials are sorted by number. A page has at most 100 trials, and ends early after 1,000
    entries of journals. At most 2,000 entries of a trial are read; `is_cut` marks a trial with
    more. Errors: `not_found` for an unknown experiment. `invalid` for a cursor of another list.
    """
    return trial_timelines.list_timelines(services, experiment_id, page)


@router.get("/experiments/{experiment_id}/replay")
@require_role(*USER_ROLES)
def list_replays(
    experiment_id: ExperimentId, services: ServicesParameter, page: PageParameters
) -> Page[history.Replay]:
    """Replay the recorded messages of an experiment and of the trials with the cluster's own code.

    Nothing is changed. The list has an item for each actor, the experiment first, then the trials
    by number. A page ends early after about 2,000 replayed entries. At most 20,000 entries of an
    actor are replayed. Errors: `not_found` for an unknown experiment. `invalid` for a cursor of
    another list.
    """
    return history.list_replays(services, experiment_id, page)
