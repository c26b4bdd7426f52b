"""Routes of checkpoints: describe, change, delete, pin. A UUID's prefix names a checkpoint."""

from collections.abc import Callable
from functools import partial
from typing import Annotated, Any

from fastapi import Path, Query, Response
from pydantic import StringConstraints

from control_plane.access.ownership import Action, FindOwned
from control_plane.access.principals import USER_ROLES, Principal
from control_plane.api.dependencies import (
    ExperimentId,
    IdempotencyParameter,
    PageParameters,
    ServicesParameter,
)
from control_plane.api.metadata import OWN_METADATA_BYTES_MAX, MetadataBody, check_metadata
from control_plane.api.owned_objects import experiment_in_path, only_own
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


def _checkpoint_in_path(uuid: Prefix, services: ServicesParameter) -> FindOwned:
    return partial(checkpoints.find_owned_checkpoint, services, uuid)


class CheckpointFile(Answer):
    """A file of a checkpoint.

    `size` is in bytes. `url` downloads the file without a token for 15 minutes.
    """

    path: str
    size: int
    sha256: str
    url: str


class CheckpointPin(checkpoints.CheckpointHolders):
    """The reasons for keeping the checkpoint `uuid`, after a change of a pin."""

    uuid: str


@router.get("/checkpoints/{uuid}")
@require_role(*USER_ROLES)
def describe(uuid: Prefix, services: ServicesParameter) -> checkpoints.Checkpoint:
    return checkpoints.describe_checkpoint(services, uuid)


@router.patch("/checkpoints/{uuid}", response_model=checkpoints.Checkpoint)
@require_role(*USER_ROLES, changes=_checkpoint_in_path)
def change(
    uuid: Prefix,
    body: MetadataBody,
    caller: Caller,
    request: IdempotencyParameter,
    services: ServicesParameter,
) -> Response:
    """Replace the metadata of a checkpoint, and return the checkpoint.

    Metadata in the checkpoint's files do not change. Errors: `not_found` or `invalid` unless `uuid`
    is the start of exactly one UUID. `forbidden` for another user's experiment. `invalid` for
    metadata of more than 16 KiB, or with values that cannot be stored. `conflict` if `revision` is
    given and the metadata have another revision, or if the experiment is being deleted.
    `unavailable` if other requests keep changing the metadata.
    """
    check_metadata(body.metadata, OWN_METADATA_BYTES_MAX)

    def set_metadata(
        services: Services, uuid: str, caller: Principal, extra_writes: ExtraWrites
    ) -> str:
        return set_checkpoint_metadata(services, uuid, body.metadata, body.revision, extra_writes)

    return _change_checkpoint(services, request, uuid, caller, set_metadata)


@router.delete("/checkpoints/{uuid}", response_model=checkpoints.Checkpoint)
@require_role(*USER_ROLES, changes=_checkpoint_in_path)
def delete(
    uuid: Prefix,
    caller: Caller,
    request: IdempotencyParameter,
    services: ServicesParameter,
    glob: FilePatterns = None,
) -> Response:
    """Delete the files of a checkpoint, or with `glob` the files that match any of the patterns.

    Return the checkpoint. A collection deletes the files within seconds. If the checkpoint is the
    trial's latest, the newest other complete checkpoint becomes the latest. Without `glob`,
    deleting a deleted checkpoint changes nothing. A checkpoint without some files can only be
    downloaded: no trial can start from the checkpoint. If all files match, the whole checkpoint is
    deleted. Errors: `not_found` or `invalid` unless `uuid` is the start of exactly one UUID.
    `forbidden` for another user's experiment. `conflict` if the checkpoint is pinned, or if a trial
    that has not ended needs the checkpoint. Further errors with `glob`: `not_found` for a deleted
    checkpoint. `invalid` if no file matches, or the checkpoint would have too many patterns.
    `conflict` for a damaged checkpoint, or one that other requests changed. `unavailable` if the
    store does not answer.
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
    """Preview the deletion of a checkpoint, or with `glob` of the matching files.

    Nothing is deleted. `problem` in the answer is the reason why the deletion would be refused. For
    a deleted checkpoint, all numbers are 0. Errors: `not_found` or `invalid` unless `uuid` is the
    start of exactly one UUID. With `glob`, also `not_found` if the files were deleted, `invalid` if
    no file matches, `conflict` if the manifest is damaged, and `unavailable` if the store does not
    answer.
    """
    if glob is None:
        return preview_deletion(services, uuid)
    return preview_partial_deletion(services, uuid, tuple(glob))


@router.delete("/checkpoints/{uuid}/damage", response_model=checkpoints.Checkpoint)
@require_role(*USER_ROLES, changes=_checkpoint_in_path, action=Action.CHANGE)
def clear_damage_mark(
    uuid: Prefix, caller: Caller, request: IdempotencyParameter, services: ServicesParameter
) -> Response:
    """Clear the damage mark of a checkpoint, and return the checkpoint.

    Read and verify all files before: the cluster only checks the manifest, and that the store has
    each file with the right size. After these checks, nothing changes for a checkpoint without a
    mark. Errors: `not_found` or `invalid` unless `uuid` is the start of exactly one UUID.
    `not_found` if the files were deleted. `forbidden` for another user's experiment. `conflict` if
    the manifest is damaged, or a file is missing or has another size. `unavailable` if the store
    does not answer.
    """
    return _change_checkpoint(services, request, uuid, caller, clear_damage)


@router.post("/checkpoints/{uuid}/pin", response_model=CheckpointPin)
@require_role(*USER_ROLES, changes=only_own)
def pin(
    uuid: Prefix, caller: Caller, request: IdempotencyParameter, services: ServicesParameter
) -> Response:
    """Pin a checkpoint for the caller, so that the checkpoint is kept until the caller unpins it.

    Any user may pin any checkpoint. Pinning again changes nothing. Return all holders of the
    checkpoint. Errors: `not_found` or `invalid` unless `uuid` is the start of exactly one UUID.
    `conflict` if files of the checkpoint were deleted, or if 100 users have pinned the checkpoint.
    `unavailable` if other requests keep changing the pin.
    """
    return _change_pin(
        services, request, lambda writes: pin_checkpoint(services, uuid, caller, writes)
    )


@router.delete("/checkpoints/{uuid}/pin", response_model=CheckpointPin)
@require_role(*USER_ROLES, changes=only_own)
def unpin(
    uuid: Prefix, caller: Caller, request: IdempotencyParameter, services: ServicesParameter
) -> Response:
    """Remove the caller's pin from a checkpoint. An admin removes the pins of all users.

    The pins of model versions and of experiments stay. Without other holders, the next collection
    may delete the checkpoint. Nothing changes if no user has pinned the checkpoint. Return the
    remaining holders. Errors: `not_found` or `invalid` unless `uuid` is the start of exactly one
    UUID. `forbidden` if only other users have pinned the checkpoint. `unavailable` if other
    requests keep changing the pin.
    """
    return _change_pin(
        services, request, lambda writes: unpin_checkpoint(services, uuid, caller, writes)
    )


@router.get("/checkpoints/{uuid}/files")
@require_role(*USER_ROLES)
def list_files(
    uuid: Prefix, caller: Caller, services: ServicesParameter, page: PageParameters
) -> Page[CheckpointFile]:
    """List the files of a checkpoint by path, each with a URL for the download.

    Errors: `forbidden` for a snapshot of another user's notebook or shell. `not_found` or `invalid`
    unless `uuid` is the start of exactly one UUID. `not_found` if the files were deleted.
    `conflict` if the manifest is damaged, or the cluster may not call the
    store. `invalid` for a cursor of another list. `unavailable` if the store does not answer.
    """
    checkpoints.check_may_read(services, uuid, caller)
    folder = checkpoint_folder(services, uuid)

    def to_item(_: int, file: StoredFile) -> CheckpointFile:
        url = file_url(services, folder, file)
        return CheckpointFile(path=file.path, size=file.size, sha256=file.sha256, url=url)

    return page_from_sequence(folder.files, page, _FILES_LIST, to_item)


@router.get("/checkpoints/{uuid}/storage")
@require_role(*USER_ROLES)
def locate(uuid: Prefix, caller: Caller, services: ServicesParameter) -> CheckpointPlace:
    """Return the folder and the store of a checkpoint, for callers with credentials for the store.

    Errors: `forbidden` for a snapshot of another user's notebook or shell. `not_found` or `invalid`
    unless `uuid` is the start of exactly one UUID. `not_found` if the files were deleted.
    `conflict` if only the cluster can reach the store, if the cluster may
    not call the store, or if the recorded folder is wrong.
    """
    checkpoints.check_may_read(services, uuid, caller)
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
    """Preview a collection of an experiment's checkpoints, or the deletion of the experiment.

    Nothing is deleted. The three numbers of checkpoints to keep default to the experiment's
    settings, and are ignored with `delete_experiment`. Error: `not_found` for an unknown
    experiment.
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
    """List the checkpoints in the store of an experiment that the cluster has not recorded.

    Checkpoints that a trial or a user is still storing are listed as well. Deleted checkpoints have
    records and are not listed. The list is sorted by trial. A page covers up to 20 trials and
    ignores `limit`. Errors: `not_found` for an unknown experiment. `conflict` if the store cannot
    be read. `invalid` for a cursor of another list.
    """
    return list_unrecorded(services, experiment_id, page)


@router.delete("/experiments/{experiment_id}/tensorboard", response_model=experiments.Experiment)
@require_role(*USER_ROLES, changes=experiment_in_path)
def delete_tensorboard(
    experiment_id: ExperimentId,
    request: IdempotencyParameter,
    services: ServicesParameter,
) -> Response:
    """Delete the TensorBoard files of an experiment that has ended, and return the experiment.

    Errors: `not_found` for an unknown experiment. `forbidden` for another user's experiment.
    `conflict` if the experiment has not ended. `unavailable` if the store fails, or if files remain
    after 20 seconds: repeat the request to delete the rest.
    """
    answer = request.execute(
        services,
        lambda extra_writes: delete_tensorboard_files(services, experiment_id, extra_writes),
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
    """Change a checkpoint once per idempotency key, and answer with the changed checkpoint.

    The first answer is stored. A repetition with the key gets this answer, even if the checkpoint
    has changed in the meantime.

    Args:
        services: the services that `change` gets.
        request: the request with the idempotency key.
        uuid: a prefix of the checkpoint's UUID.
        caller: the user that `change` gets.
        change: changes the checkpoint, given the full UUID, and commits the extra writes. Its
            result is the reply that is stored for the key.

    Raises:
        RequestError: not_found or invalid, if no checkpoint or several have the prefix. Errors of
            `change` pass on.
    """
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
    """Change a pin once per idempotency key, and answer with the checkpoint's holders.

    The first answer is stored. A repetition with the key gets this answer.

    `change` changes the pin and commits the extra writes. Errors of `change` pass on.
    """

    def effect(extra_writes: ExtraWrites) -> object:
        return _pin_reply(change(lambda changed: extra_writes(_pin_reply(changed))))

    return answer_response(request.execute(services, effect, lambda reply: CheckpointPin(**reply)))


def _pin_reply(change: PinChange) -> dict[str, Any]:
    holders = checkpoints.pin_holders(change.pin)
    return CheckpointPin(uuid=change.uuid, **holders.model_dump()).model_dump()
