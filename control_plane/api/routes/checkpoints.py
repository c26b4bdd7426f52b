"""Checkpoints, by any unique beginning of their UUID, their files, and how they go."""

from typing import Annotated

from fastapi import Path, Query, Response

from control_plane.api.bodies import Body
from control_plane.api.checkpoint_files import checkpoint_folder, file_url
from control_plane.api.guarded import PEOPLE, Caller, guarded_router, needs
from control_plane.api.idempotency import AskedOnce
from control_plane.api.services import Given
from control_plane.api.views import checkpoint as checkpoints
from control_plane.api.views import collection
from control_plane.api.views import experiment as experiments

router = guarded_router("checkpoints")

Prefix = Annotated[str, Path(max_length=36)]
ExperimentId = Annotated[int, Path(ge=1, le=10**12 - 1)]
Count = Annotated[int | None, Query(ge=0, le=2**31 - 1)]


class File(Body):
    """`url` may be fetched without a token for 15 minutes."""

    path: str
    size: int
    sha256: str
    url: str


class Files(Body):
    items: list[File]


@router.get("/checkpoints/{uuid}")
@needs(*PEOPLE)
def describe(uuid: Prefix, services: Given) -> checkpoints.Checkpoint:
    return checkpoints.checkpoint(services, uuid)


@router.delete("/checkpoints/{uuid}", response_model=checkpoints.Checkpoint)
@needs(*PEOPLE)
def delete(uuid: Prefix, caller: Caller, once: AskedOnce, services: Given) -> Response:
    """Its files go within seconds; deleting it again is no error."""
    whole = checkpoints.checkpoint(services, uuid).uuid
    return once.carried_out(
        services,
        lambda beside: collection.condemn(services, whole, caller.user, beside),
        lambda _: checkpoints.checkpoint(services, whole),
    )


@router.get("/checkpoints/{uuid}/files")
@needs(*PEOPLE)
def list_files(uuid: Prefix, services: Given) -> Files:
    folder = checkpoint_folder(services, uuid)
    items = [
        File(path=file.path, size=file.size, sha256=file.sha256, url=file_url(services, folder, n))
        for n, file in enumerate(folder.files)
    ]
    return Files(items=items)


@router.get("/experiments/{experiment_id}/checkpoint-gc")
@needs(*PEOPLE)
def preview(
    experiment_id: ExperimentId,
    services: Given,
    save_experiment_best: Count = None,
    save_trial_best: Count = None,
    save_trial_latest: Count = None,
) -> collection.Preview:
    """Changes nothing. Numbers that are absent are the experiment's."""
    wanted = (save_experiment_best, save_trial_best, save_trial_latest)
    return collection.preview(services, experiment_id, *wanted)


@router.delete("/experiments/{experiment_id}/tensorboard", response_model=experiments.Experiment)
@needs(*PEOPLE)
def delete_tensorboard(experiment_id: ExperimentId, once: AskedOnce, services: Given) -> Response:
    """Of an experiment that has ended."""
    return once.carried_out(
        services,
        lambda beside: collection.remove_tensorboard(services, experiment_id, beside),
        lambda _: experiments.experiment(services, experiment_id),
    )
