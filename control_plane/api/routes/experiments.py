"""Experiments: submitted, listed, described, and told to pause, go on or end."""

from typing import Annotated

from fastapi import Path, Query, Response
from fastapi.responses import JSONResponse

from control_plane.actors import addresses
from control_plane.actors.messages import (
    ActivateRequested,
    CancelRequested,
    KillRequested,
    PauseRequested,
)
from control_plane.api.guarded import PEOPLE, Caller, guarded_router, needs
from control_plane.api.idempotency import AskedOnce, Once
from control_plane.api.pages import Page, PageParameters
from control_plane.api.services import Given, Services
from control_plane.api.submission import Create, accepted, preview, submit
from control_plane.api.views import checkpoint as checkpoints
from control_plane.api.views import experiment as experiments
from control_plane.api.views import trial as trials

router = guarded_router("experiments")

ExperimentId = Annotated[int, Path(ge=1, le=10**12 - 1)]


@router.post("/experiments", status_code=201, response_model=experiments.Experiment)
@needs(*PEOPLE)
def create(asked: Create, caller: Caller, once: AskedOnce, services: Given) -> Response:
    """With `validate_only` nothing is created: 200 and what would be."""
    submitted = accepted(services, asked, caller)
    if asked.validate_only:
        return JSONResponse(preview(services, submitted).model_dump(mode="json"))
    return once.carried_out(
        services,
        lambda beside: submit(services, submitted, beside),
        lambda experiment_id: experiments.experiment(services, experiment_id),
        status=201,
    )


@router.get("/experiments")
@needs(*PEOPLE)
def list_experiments(
    services: Given,
    asked: PageParameters,
    state: Annotated[str | None, Query(max_length=200)] = None,
    user: Annotated[str | None, Query(max_length=200)] = None,
) -> Page[experiments.Experiment]:
    """Newest first. `state` is a comma list."""
    return experiments.experiments(services, asked, state, user)


@router.get("/experiments/{experiment_id}")
@needs(*PEOPLE)
def describe(experiment_id: ExperimentId, services: Given) -> experiments.ExperimentWithConfig:
    return experiments.experiment_with_config(services, experiment_id)


@router.post("/experiments/{experiment_id}/pause", response_model=experiments.Experiment)
@needs(*PEOPLE)
def pause(experiment_id: ExperimentId, once: AskedOnce, services: Given) -> Response:
    return _told(services, experiment_id, once, PauseRequested())


@router.post("/experiments/{experiment_id}/activate", response_model=experiments.Experiment)
@needs(*PEOPLE)
def activate(experiment_id: ExperimentId, once: AskedOnce, services: Given) -> Response:
    return _told(services, experiment_id, once, ActivateRequested())


@router.post("/experiments/{experiment_id}/cancel", response_model=experiments.Experiment)
@needs(*PEOPLE)
def cancel(experiment_id: ExperimentId, once: AskedOnce, services: Given) -> Response:
    return _told(services, experiment_id, once, CancelRequested())


@router.post("/experiments/{experiment_id}/kill", response_model=experiments.Experiment)
@needs(*PEOPLE)
def kill(experiment_id: ExperimentId, once: AskedOnce, services: Given) -> Response:
    return _told(services, experiment_id, once, KillRequested())


@router.get("/experiments/{experiment_id}/trials")
@needs(*PEOPLE)
def list_trials(
    experiment_id: ExperimentId, services: Given, asked: PageParameters
) -> Page[trials.Trial]:
    return trials.trials(services, experiment_id, asked)


@router.get("/experiments/{experiment_id}/checkpoints")
@needs(*PEOPLE)
def list_checkpoints(
    experiment_id: ExperimentId, services: Given, asked: PageParameters
) -> Page[checkpoints.Checkpoint]:
    return checkpoints.of_experiment(services, experiment_id, asked)


def _told(services: Services, experiment_id: int, once: Once, message: object) -> Response:
    address = addresses.experiment(experiment_id)
    return once.carried_out(
        services,
        lambda beside: services.engine.command(address, message, beside=beside),
        lambda reply: experiments.experiment(services, reply),
    )
