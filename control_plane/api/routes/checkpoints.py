"""Routes of checkpoints, named by a unique prefix of their UUID: describe, change, delete, pin."""

from collections.abc import Callable
from typing import Annotated, Any

from fastapi import Path, Query, Response
from pydantic import StringConstraints

from control_plane.access.principals import USER_ROLES, Principal
from control_plane.api.dependencies import (
    ExperimentId,
    IdempotencyParameter,
    PageParameters,
    ServicesParameter,
)
from control_plane.api.metadata import OWN_METADATA_BYTES_MAX, MetadataBody, check_metadata
from control_plane.api.responses import answer_response
from control_plane.api.route_guards import Caller, guarded_router, require_role
from control_plane.checkpoint_stores.manifests import StoredFile
from control_plane.queries import checkpoint as checkpoints
from control_plane.queries import experiment as experiments
from control_plane.queries.answer import Answer
from control_plane.queries.checkpoint_files import (
    CheckpointPlace,
    checkpoint_folder,
    file_url,
    locate_checkpoint,
)
from control_plane.queries.collection import (
    CollectionPreview,
    DeletionPreview,
    preview_collection,
    preview_deletion,
    preview_partial_deletion,
)
from control_plane.queries.pages import Page, page_from_sequence
from control_plane.queries.unrecorded_checkpoints import (
    UnrecordedCheckpointAnswer,
    list_unrecorded,
)
from control_plane.services import Services
from control_plane.usecases.checkpoint_damage import clear_damage
from control_plane.usecases.checkpoint_deletion import (
    delete_checkpoint,
    delete_checkpoint_files,
    delete_tensorboard_files,
)
from control_plane.usecases.checkpoint_pins import (
    PinChange,
    PinExtraWrites,
    pin_checkpoint,
    unpin_checkpoint,
)
from control_plane.usecases.idempotency import ExtraWrites, IdempotentRequest
from control_plane.usecases.metadata_edits import set_checkpoint_metadata
from detcloud.shared.file_patterns import PATTERN_LENGTH_MAX, PATTERNS_MAX

router = guarded_router("checkpoints")

_FILES_LIST = "checkpoint-files"

Prefix = Annotated[str, Path(max_length=36)]
FilePatterns = Annotated[
    list[Annotated[str, StringConstraints(min_length=1, max_length=PATTERN_LENGTH_MAX)]] | None,
    Query(max_length=PATTERNS_MAX),
]
Count = Annotated[int | None, Query(ge=0, le=2**31 - 1)]


class CheckpointFile(Answer):
    """A file of a checkpoint. `url` may be fetched without a token for 15 minutes."""

    path: str
    size: int
    sha256: str
    url: str


class CheckpointPin(checkpoints.CheckpointHolders):
    """The holders of the checkpoint with this UUID."""

    uuid: str


@router.get("/checkpoints/{uuid}")
@require_role(*USER_ROLES)
def describe(uuid: Prefix, services: ServicesParameter) -> checkpoints.Checkpoint:
    return checkpoints.describe_checkpoint(services, uuid)


@router.patch("/checkpoints/{uuid}", response_model=checkpoints.Checkpoint)
@require_role(*USER_ROLES)
def change(
    uuid: Prefix,
    body: MetadataBody,
    caller: Caller,
    request: IdempotencyParameter,
    services: ServicesParameter,
) -> Response:
    """Set the metadata of a checkpoint. With `revision` only if they are of that still."""
    check_metadata(body.metadata, OWN_METADATA_BYTES_MAX)

    def set_metadata(
        services: Services, uuid: str, caller: Principal, extra_writes: ExtraWrites
    ) -> str:
        return set_checkpoint_metadata(services, uuid, body.metadata, body.revision, extra_writes)

    return _change_checkpoint(services, request, uuid, caller, set_metadata)


@router.delete("/checkpoints/{uuid}", response_model=checkpoints.Checkpoint)
@require_role(*USER_ROLES)
def delete(
    uuid: Prefix,
    caller: Caller,
    request: IdempotencyParameter,
    services: ServicesParameter,
    glob: FilePatterns = None,
) -> Response:
    """Delete the checkpoint's files, within seconds; deleting them again is no error. With `glob`
    only those that one of the patterns chooses.
    """

    def delete_chosen(
        services: Services, uuid: str, caller: Principal, extra_writes: ExtraWrites
    ) -> int:
        if glob is None:
            return delete_checkpoint(services, uuid, caller, extra_writes)
        return delete_checkpoint_files(services, uuid, tuple(glob), caller, extra_writes)

    return _change_checkpoint(services, request, uuid, caller, delete_chosen)


@router.get("/checkpoints/{uuid}/deletion")
@require_role(*USER_ROLES)
def preview_one(
    uuid: Prefix, services: ServicesParameter, glob: FilePatterns = None
) -> DeletionPreview:
    """Preview the checkpoint's deletion, or with `glob` that of a part, which changes nothing."""
    if glob is None:
        return preview_deletion(services, uuid)
    return preview_partial_deletion(services, uuid, tuple(glob))


@router.delete("/checkpoints/{uuid}/damage", response_model=checkpoints.Checkpoint)
@require_role(*USER_ROLES)
def clear_damage_mark(
    uuid: Prefix, caller: Caller, request: IdempotencyParameter, services: ServicesParameter
) -> Response:
    """Clear the damage mark of a checkpoint; the caller has verified all of its files."""
    return _change_checkpoint(services, request, uuid, caller, clear_damage)


@router.post("/checkpoints/{uuid}/pin", response_model=CheckpointPin)
@require_role(*USER_ROLES)
def pin(
    uuid: Prefix, caller: Caller, request: IdempotencyParameter, services: ServicesParameter
) -> Response:
    """Keep the checkpoint until the caller unpins it; pinning it again is no error."""
    return _change_pin(
        services, request, lambda writes: pin_checkpoint(services, uuid, caller, writes)
    )


@router.delete("/checkpoints/{uuid}/pin", response_model=CheckpointPin)
@require_role(*USER_ROLES)
def unpin(
    uuid: Prefix, caller: Caller, request: IdempotencyParameter, services: ServicesParameter
) -> Response:
    """Remove the caller's pin, or every user's for an admin; the next collection decides."""
    return _change_pin(
        services, request, lambda writes: unpin_checkpoint(services, uuid, caller, writes)
    )


@router.get("/checkpoints/{uuid}/files")
@require_role(*USER_ROLES)
def list_files(
    uuid: Prefix, services: ServicesParameter, page: PageParameters
) -> Page[CheckpointFile]:
    """List the files by path."""
    folder = checkpoint_folder(services, uuid)

    def to_item(_: int, file: StoredFile) -> CheckpointFile:
        url = file_url(services, folder, file)
        return CheckpointFile(path=file.path, size=file.size, sha256=file.sha256, url=url)

    return page_from_sequence(folder.files, page, _FILES_LIST, to_item)


@router.get("/checkpoints/{uuid}/storage")
@require_role(*USER_ROLES)
def locate(uuid: Prefix, services: ServicesParameter) -> CheckpointPlace:
    """Locate the checkpoint for callers that have their own credentials for its store."""
    return locate_checkpoint(services, uuid)


@router.get("/experiments/{experiment_id}/checkpoint-gc")
@require_role(*USER_ROLES)
def preview(
    experiment_id: ExperimentId,
    services: ServicesParameter,
    save_experiment_best: Count = None,
    save_trial_best: Count = None,
    save_trial_latest: Count = None,
    delete_experiment: bool = False,
) -> CollectionPreview:
    """Preview a collection, or the experiment's deletion, which changes nothing. Absent numbers are
    the experiment's.
    """
    numbers = (save_experiment_best, save_trial_best, save_trial_latest)
    return preview_collection(
        services, experiment_id, *numbers, delete_experiment=delete_experiment
    )


@router.get("/experiments/{experiment_id}/unrecorded-checkpoints")
@require_role(*USER_ROLES)
def list_unrecorded_checkpoints(
    experiment_id: ExperimentId, services: ServicesParameter, page: PageParameters
) -> Page[UnrecordedCheckpointAnswer]:
    """List checkpoints in an experiment's folders that are not recorded, by trial."""
    return list_unrecorded(services, experiment_id, page)


@router.delete("/experiments/{experiment_id}/tensorboard", response_model=experiments.Experiment)
@require_role(*USER_ROLES)
def delete_tensorboard(
    experiment_id: ExperimentId,
    caller: Caller,
    request: IdempotencyParameter,
    services: ServicesParameter,
) -> Response:
    """Delete the TensorBoard files of an experiment that has ended."""
    answer = request.execute(
        services,
        lambda extra_writes: delete_tensorboard_files(
            services, experiment_id, caller, extra_writes
        ),
        lambda _: experiments.describe_experiment(services, experiment_id),
    )
    return answer_response(answer)


def _change_checkpoint(
    services: Services,
    request: IdempotentRequest,
    uuid: str,
    caller: Principal,
    change: Callable[[Services, str, Principal, ExtraWrites], object],
) -> Response:
    """Change a checkpoint once, and answer what it is now."""
    full_uuid = checkpoints.describe_checkpoint(services, uuid).uuid
    answer = request.execute(
        services,
        lambda extra_writes: change(services, full_uuid, caller, extra_writes),
        lambda _: checkpoints.describe_checkpoint(services, full_uuid),
    )
    return answer_response(answer)


def _change_pin(
    services: Services,
    request: IdempotentRequest,
    change: Callable[[PinExtraWrites], PinChange],
) -> Response:
    """Change a pin once, and answer what keeps its checkpoint now."""

    def effect(extra_writes: ExtraWrites) -> object:
        return _pin_reply(change(lambda changed: extra_writes(_pin_reply(changed))))

    return answer_response(request.execute(services, effect, lambda reply: CheckpointPin(**reply)))


def _pin_reply(change: PinChange) -> dict[str, Any]:
    holders = checkpoints.pin_holders(change.pin)
    return CheckpointPin(uuid=change.uuid, **holders.model_dump()).model_dump()
