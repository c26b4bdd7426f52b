"""An experiment's history, and the replay of its journals."""

from typing import Annotated

from fastapi import Query

from control_plane.api.guarded import PEOPLE, guarded_router, needs
from control_plane.api.pages import Page, PageParameters
from control_plane.api.routes.experiments import ExperimentId
from control_plane.api.services import Given
from control_plane.api.views import history

router = guarded_router("history")


@router.get("/experiments/{experiment_id}/history")
@needs(*PEOPLE)
def list_history(
    experiment_id: ExperimentId,
    services: Given,
    asked: PageParameters,
    actor: Annotated[str | None, Query(max_length=40)] = None,
    trials: bool | None = None,
) -> Page[history.Event]:
    """Oldest first, a line per message: the experiment's, and between them its trials' as long as
    it has at most 100 of them. `trials=false` leaves those out, `trials=true` refuses an
    experiment with more; `actor=trial#7` tells of one trial alone, `actor=experiment#3` of the
    experiment. What the one only repeats of the other is left out where both are told.
    """
    return history.history(services, experiment_id, actor, trials, asked)


@router.get("/experiments/{experiment_id}/replay")
@needs(*PEOPLE)
def list_replays(
    experiment_id: ExperimentId, services: Given, asked: PageParameters
) -> Page[history.Replay]:
    """Folds every recorded message again with the code that runs here. An item per actor, the
    experiment first; a page ends after some 2,000 entries.
    """
    return history.replays(services, experiment_id, asked)
