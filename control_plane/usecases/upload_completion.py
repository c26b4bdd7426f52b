"""The completion of a user's checkpoint upload: the check of the files, and the record.

The store must have every file of the manifest. The client derives the UUID from the content, so
that repeating a completed upload yields the same checkpoint.
"""

from collections.abc import Sequence
from json import JSONDecodeError
from typing import Any

from control_plane.access.principals import Principal
from control_plane.actors import addresses
from control_plane.actors.messages.trial import CheckpointUploaded
from control_plane.actors.records import CheckpointRef
from control_plane.actors.trial.checkpoints import CheckpointState
from control_plane.agents.reports import METADATA_BYTES_MAX
from control_plane.checkpoint_stores.checkpoint_files import CheckpointFiles, NoSuchFile
from control_plane.checkpoint_stores.manifests import ManifestInvalid, StoredFile, parse_manifest
from control_plane.errors import Code, RequestError, invalid
from control_plane.json_gate import JsonRefused, check_size, check_value, parse_body
from control_plane.queries.checkpoint import Checkpoint, describe_checkpoint
from control_plane.queries.checkpoint_files import find_missing_file, store_error
from control_plane.services import Services
from control_plane.state.table import Conflict
from control_plane.usecases.checkpoint_uploads import Upload, open_store, stored_files
from control_plane.usecases.experiment_deletion import deletion_checks
from detcloud.shared.checkpoint_limits import MANIFEST, MANIFEST_BYTES_MAX

_STEPS_MAX = 2**53


def complete_upload(
    services: Services, upload: Upload, manifest_sha256: str, caller: Principal
) -> Checkpoint:
    """Check the uploaded files and record the checkpoint; return the checkpoint.

    The trial's actor commits the record, and from then on the checkpoint is listed. The trial's
    latest checkpoint stays the same. If the checkpoint is already recorded and complete, only
    return it.

    Args:
        services: the services with the engine and the state table.
        upload: the upload.
        manifest_sha256: the SHA-256 of the uploaded manifest.
        caller: the user.

    Raises:
        RequestError: invalid, if the manifest is wrong, has another digest, or belongs to another
            upload. conflict, if a file or the manifest is missing, or the checkpoint has another
            state or trial. conflict also if the store cannot be opened, or the experiment is being
            deleted or was changed. not_found, if the experiment does not exist. unavailable, if the
            store does not answer or the trial is too busy.
    """
    if upload.state is not CheckpointState.COMPLETED:
        _record_upload(services, upload, manifest_sha256, caller)
    return describe_checkpoint(services, upload.uuid)


def _record_upload(
    services: Services, upload: Upload, manifest_sha256: str, caller: Principal
) -> None:
    """Check the manifest and the stored files of an upload, and record the checkpoint.

    Raises:
        RequestError: invalid, if the manifest is wrong, has another digest, or belongs to another
            upload. conflict, if a file or the manifest is missing, the checkpoint has a record
            already, or another trial has the UUID. conflict also if the store cannot be opened, or
            the experiment is being deleted or was changed. not_found, if the experiment does not
            exist. unavailable, if the store does not answer or the trial is too busy.
    """
    checks = deletion_checks(services, upload.experiment_id)
    store = open_store(services, upload)
    content = _read_manifest(store, f"{upload.path}/{MANIFEST}")
    try:
        files = parse_manifest(content, manifest_sha256)
        steps, metadata = _checked_fields(services, upload, parse_body(content))
    except ManifestInvalid as error:
        raise invalid("manifest_sha256", str(error)) from None
    except JSONDecodeError as error:
        text = f"is not JSON in UTF-8 at character {error.pos}: {error.msg}"
        raise invalid(MANIFEST, text) from None
    except JsonRefused as refused:
        place = f"{MANIFEST}: {refused.place}" if refused.place else MANIFEST
        raise invalid(place, refused.message) from None
    _check_stored(files, dict(stored_files(services, upload)))
    message = CheckpointUploaded(
        CheckpointRef(upload.uuid, upload.trial_id, steps, upload.path, manifest_sha256),
        size_bytes=sum(file.size for file in files),
        files=len(files),
        user=caller.user,
        metadata=metadata,
    )
    address = addresses.trial(upload.trial_id)
    try:
        state = services.engine.execute_command(
            address, message, by=caller.user, extra_writes=lambda reply: checks
        )
    except Conflict:
        text = f"experiment {upload.experiment_id} was changed in the meantime; try again"
        raise RequestError(Code.CONFLICT, text) from None
    if state != CheckpointState.COMPLETED:
        text = f"is {state} already" if state else "belongs to another trial"
        raise RequestError(Code.CONFLICT, f"checkpoint {upload.uuid} {text}")


def _read_manifest(store: CheckpointFiles, path: str) -> bytes:
    """Return the bytes of a manifest in the store.

    A manifest above MANIFEST_BYTES_MAX is cut shortly after the limit, so that the caller can
    refuse the manifest.

    Raises:
        RequestError: conflict, if the manifest is missing; unavailable, if the store does not
            answer.
    """
    content = bytearray()
    try:
        for block in store.open_file(path).blocks:
            content += block
            if len(content) > MANIFEST_BYTES_MAX:
                break
    except NoSuchFile:
        raise RequestError(Code.CONFLICT, f"{MANIFEST} is missing: upload it last") from None
    except OSError as error:
        raise store_error(error) from None
    return bytes(content)


def _checked_fields(
    services: Services, upload: Upload, manifest: dict[str, Any]
) -> tuple[int, dict[str, object]]:
    """Check that a parsed manifest belongs to the upload; return the steps and the metadata.

    Raises:
        RequestError: invalid, for a wrong or missing version, UUID, cluster, trial, number of steps
            or metadata.
        JsonRefused: the metadata cannot be stored in a row, or have more than METADATA_BYTES_MAX
            bytes.
    """
    own = {
        "version": 1,
        "uuid": upload.uuid,
        "cluster_id": services.cluster_id,
        "trial_id": upload.trial_id,
    }
    for name, value in own.items():
        if manifest.get(name) != value:
            raise invalid(f"{MANIFEST}: {name}", f"must be {value!r}")
    steps, metadata = manifest.get("steps_completed"), manifest.get("metadata")
    if type(steps) is not int or not 0 <= steps < _STEPS_MAX:
        raise invalid(f"{MANIFEST}: steps_completed", "must be a number of batches")
    if not isinstance(metadata, dict):
        raise invalid(f"{MANIFEST}: metadata", "must be an object")
    check_value(metadata, at=("metadata",))
    check_size(metadata, METADATA_BYTES_MAX, "metadata")
    return steps, metadata


def _check_stored(files: Sequence[StoredFile], stored: dict[str, int]) -> None:
    """Check that each file is stored with the right size.

    `stored` has the sizes in bytes of the stored files, by path. Files that the manifest lacks do
    not matter.

    Raises:
        RequestError: conflict, naming the first file that is missing or has another size.
    """
    if problem := find_missing_file(files, stored):
        raise RequestError(Code.CONFLICT, f"{problem}; upload it again")
