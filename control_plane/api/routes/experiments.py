"""Experiments: submitted, listed, described, and told to pause, go on or end."""

from collections.abc import Callable
from dataclasses import replace
from typing import Annotated, Literal

from fastapi import Path, Query, Response
from fastapi.responses import JSONResponse
from pydantic import Field

from control_plane.actors import addresses
from control_plane.actors.experiment_messages import (
    ActivateRequested,
    ArchiveRequested,
    CancelRequested,
    ContinueRequested,
    DeleteRequested,
    KillRequested,
    PauseRequested,
    SettingsChanged,
    UnarchiveRequested,
)
from control_plane.actors.records import Retention
from control_plane.api.bodies import RequestBody
from control_plane.api.continuation import Continue, continuation
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
Words = Annotated[str | None, Query(max_length=200)]
Kept = Annotated[int, Field(ge=0, le=2**31 - 1)]


class Changes(RequestBody):
    """What to change of an experiment; what is absent stays."""

    name: Annotated[str, Field(min_length=1, max_length=1_000)] | None = None
    description: Annotated[str, Field(max_length=10_000)] | None = None
    labels: (
        Annotated[list[Annotated[str, Field(min_length=1, max_length=200)]], Field(max_length=100)]
        | None
    ) = None
    max_slots: Kept | None = None
    weight: float | None = None
    priority: int | None = None
    max_cost: Annotated[float, Field(gt=0, lt=1e9, allow_inf_nan=False)] | None = None
    save_experiment_best: Kept | None = None
    save_trial_best: Kept | None = None
    save_trial_latest: Kept | None = None


@router.post("/experiments", status_code=201, response_model=experiments.Experiment)
@needs(*PEOPLE)
def create(asked: Create, caller: Caller, once: AskedOnce, services: Given) -> Response:
    """With `validate_only` nothing is created: 200 and what would be."""
    submitted = accepted(services, asked, caller)
    if asked.validate_only:
        return JSONResponse(preview(services, submitted).model_dump(mode="json"))
    warnings = list(submitted.warnings)
    return once.carried_out(
        services,
        lambda beside: submit(services, submitted, caller.user, beside),
        lambda experiment_id: experiments.experiment(services, experiment_id, warnings),
        status=201,
    )


@router.get("/experiments")
@needs(*PEOPLE)
def list_experiments(
    services: Given,
    asked: PageParameters,
    state: Words = None,
    user: Words = None,
    label: Words = None,
    name: Words = None,
    archived: Literal["false", "true", "all"] = "false",
) -> Page[experiments.Experiment]:
    """Newest first. `state` is a comma list, `name` a part of the name."""
    wanted = experiments.Wanted(state, user, label, name, archived)
    return experiments.experiments(services, asked, wanted)


@router.get("/experiments/{experiment_id}")
@needs(*PEOPLE)
def describe(experiment_id: ExperimentId, services: Given) -> experiments.ExperimentWithConfig:
    return experiments.experiment_with_config(services, experiment_id)


@router.post("/experiments/{experiment_id}/pause", response_model=experiments.Experiment)
@needs(*PEOPLE)
def pause(experiment_id: ExperimentId, once: AskedOnce, services: Given) -> Response:
    return _told(services, experiment_id, PauseRequested, once)


@router.post("/experiments/{experiment_id}/activate", response_model=experiments.Experiment)
@needs(*PEOPLE)
def activate(experiment_id: ExperimentId, once: AskedOnce, services: Given) -> Response:
    return _told(services, experiment_id, ActivateRequested, once)


@router.post("/experiments/{experiment_id}/cancel", response_model=experiments.Experiment)
@needs(*PEOPLE)
def cancel(experiment_id: ExperimentId, once: AskedOnce, services: Given) -> Response:
    return _told(services, experiment_id, CancelRequested, once)


@router.post("/experiments/{experiment_id}/kill", response_model=experiments.Experiment)
@needs(*PEOPLE)
def kill(experiment_id: ExperimentId, once: AskedOnce, services: Given) -> Response:
    return _told(services, experiment_id, KillRequested, once)


@router.post("/experiments/{experiment_id}/archive", response_model=experiments.Experiment)
@needs(*PEOPLE)
def archive(experiment_id: ExperimentId, once: AskedOnce, services: Given) -> Response:
    return _told(services, experiment_id, ArchiveRequested, once)


@router.post("/experiments/{experiment_id}/unarchive", response_model=experiments.Experiment)
@needs(*PEOPLE)
def unarchive(experiment_id: ExperimentId, once: AskedOnce, services: Given) -> Response:
    return _told(services, experiment_id, UnarchiveRequested, once)


@router.post("/experiments/{experiment_id}/continue", response_model=experiments.Experiment)
@needs(*PEOPLE)
def resume(
    experiment_id: ExperimentId,
    asked: Continue,
    once: AskedOnce,
    services: Given,
) -> Response:
    """Its trials that did not complete go on from their latest checkpoints."""

    def message() -> ContinueRequested:
        _, definition = experiments.found(services, experiment_id)
        return continuation(definition, asked)

    return _told(services, experiment_id, message, once)


@router.patch("/experiments/{experiment_id}", response_model=experiments.Experiment)
@needs(*PEOPLE)
def change(
    experiment_id: ExperimentId,
    asked: Changes,
    once: AskedOnce,
    services: Given,
) -> Response:
    """A null `max_slots` or `max_cost` lifts the limit; other nulls change nothing."""

    def message() -> SettingsChanged:
        return SettingsChanged(
            name=asked.name,
            description=asked.description,
            labels=None if asked.labels is None else tuple(dict.fromkeys(asked.labels)),
            max_slots=asked.max_slots,
            max_slots_given="max_slots" in asked.model_fields_set,
            weight=asked.weight,
            priority=asked.priority,
            max_cost=asked.max_cost,
            max_cost_given="max_cost" in asked.model_fields_set,
            retention=_retention(services, experiment_id, asked),
        )

    return _told(services, experiment_id, message, once)


@router.delete("/experiments/{experiment_id}", response_model=experiments.Experiment)
@needs(*PEOPLE)
def delete(experiment_id: ExperimentId, once: AskedOnce, services: Given) -> Response:
    """What it made goes in the background."""

    def message() -> DeleteRequested:
        experiments.check_unpinned(services, experiment_id)
        return DeleteRequested()

    return _told(services, experiment_id, message, once)


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


def _retention(services: Services, experiment_id: int, asked: Changes) -> Retention | None:
    names = ("save_experiment_best", "save_trial_best", "save_trial_latest")
    given = {name: getattr(asked, name) for name in names if getattr(asked, name) is not None}
    if not given:
        return None
    now = experiments.settings(services, *experiments.found(services, experiment_id)).retention
    return replace(now, **given)


def _told(
    services: Services, experiment_id: int, message: Callable[[], object], once: Once
) -> Response:
    """Has a command carried out once. It is made when it is needed: a repeat asks for nothing."""
    address = addresses.experiment(experiment_id)
    return once.carried_out(
        services,
        lambda beside: services.engine.command(address, message(), by=once.by, beside=beside),
        lambda reply: experiments.experiment(services, reply),
    )
