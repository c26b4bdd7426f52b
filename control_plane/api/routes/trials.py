"""Trials: described, killed, with their checkpoints."""

from typing import Annotated

from fastapi import Path, Response

from control_plane.actors import addresses
from control_plane.actors.trial_messages import TrialKillRequested
from control_plane.api.guarded import PEOPLE, Caller, guarded_router, needs
from control_plane.api.idempotency import AskedOnce
from control_plane.api.pages import Page, PageParameters
from control_plane.api.services import Given
from control_plane.api.views import checkpoint as checkpoints
from control_plane.api.views import trial as trials

router = guarded_router("trials")

TrialId = Annotated[int, Path(ge=1, le=10**12 - 1)]


@router.get("/trials/{trial_id}")
@needs(*PEOPLE)
def describe(trial_id: TrialId, services: Given) -> trials.TrialWithEnvironment:
    return trials.trial_with_environment(services, trial_id)


@router.post("/trials/{trial_id}/kill", response_model=trials.TrialWithEnvironment)
@needs(*PEOPLE)
def kill(trial_id: TrialId, caller: Caller, once: AskedOnce, services: Given) -> Response:
    """Ends this trial; the search goes on without it."""
    address = addresses.trial(trial_id)
    return once.carried_out(
        services,
        lambda beside: services.engine.command(
            address, TrialKillRequested(), by=caller.user, beside=beside
        ),
        lambda reply: trials.trial_with_environment(services, reply),
    )


@router.get("/trials/{trial_id}/checkpoints")
@needs(*PEOPLE)
def list_checkpoints(
    trial_id: TrialId, services: Given, asked: PageParameters
) -> Page[checkpoints.Checkpoint]:
    return checkpoints.of_trial(services, trial_id, asked)
