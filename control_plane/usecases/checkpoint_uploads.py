"""Uploads of checkpoints by users: begin, store file by file, and complete.

Completing an upload checks that the store has every file of the manifest, and records the
checkpoint. Until then the checkpoint is not listed. The client derives the UUID from the content.
An interrupted upload can therefore be resumed, and repeating a completed upload yields the same
checkpoint.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from json import JSONDecodeError
from pathlib import Path
from typing import Any

from pydantic_core import to_json

from control_plane.access.principals import Principal
from control_plane.actors import addresses
from control_plane.actors.messages.trial import CheckpointUploaded
from control_plane.actors.records import CheckpointRef, Status
from control_plane.actors.trial.checkpoints import (
    CHECKPOINT_PARTS,
    CheckpointRecord,
    CheckpointState,
)
from control_plane.agents.reports import METADATA_BYTES_MAX
from control_plane.agents.sessions import INTENTS
from control_plane.checkpoint_gc.upload_sessions import UPLOADS_EPOCH, UploadSessions
from control_plane.checkpoint_stores.checkpoint_files import (
    CheckpointFiles,
    FileDigests,
    LargeFile,
    NoSuchFile,
    PartsUpload,
    SignedUpload,
)
from control_plane.checkpoint_stores.manifests import ManifestInvalid, StoredFile, parse_manifest
from control_plane.checkpoint_stores.trial_storage import open_checkpoint_files
from control_plane.engine.head import HEAD
from control_plane.errors import Code, RequestError, invalid
from control_plane.json_gate import JsonRefused, check_size, check_value, parse_body
from control_plane.objects.signing import VALIDITY_MS_MAX
from control_plane.queries import experiment as experiments
from control_plane.queries import trial as trials
from control_plane.queries.checkpoint import Checkpoint, describe_checkpoint
from control_plane.queries.checkpoint_files import (
    experiment_storage,
    find_missing_file,
    store_error,
)
from control_plane.services import Services
from control_plane.state.table import Check, Conflict, Expect, Key, Put
from detcloud.shared.archive_limits import ArchiveInvalid
from detcloud.shared.archive_names import check_name
from detcloud.shared.checkpoint_limits import MANIFEST, MANIFEST_BYTES_MAX
from detcloud.shared.upload_parts import PartSizes

# The largest object in S3 and in Google Cloud Storage.
FILE_BYTES_MAX = 5 << 40

_STEPS_MAX = 2**53
_DELETED = (Status.DELETING, Status.DELETE_FAILED)


@dataclass(frozen=True)
class OfferedParts:
    """How a client uploads a file in parts."""

    part_bytes: int
    """The size of each part; the last part may be shorter."""
    is_in_order: bool
    """Whether the parts must be sent one after another."""
    stored: list[int]
    """The numbers of the parts that are already stored."""
    uploads: list[SignedUpload | None]
    """The signed request for each requested part; None for a part to send to the API."""


@dataclass(frozen=True)
class Upload:
    """An upload of a checkpoint."""

    experiment_id: int
    trial_id: int
    """The trial that the checkpoint will belong to."""
    uuid: str
    """The UUID of the checkpoint."""
    state: CheckpointState | None
    """The checkpoint's state; None if the checkpoint is not recorded yet."""

    @property
    def parts(self) -> tuple[str, ...]:
        """The names of the nested folders of the checkpoint's files in the store."""
        return str(self.experiment_id), str(self.trial_id), str(UPLOADS_EPOCH), self.uuid

    @property
    def path(self) -> str:
        """The folder of the checkpoint's files in the store: EXPERIMENT/TRIAL/EPOCH/UUID.

        The epoch of every upload is UPLOADS_EPOCH.
        """
        return "/".join(self.parts)


def begin_upload(services: Services, trial_id: int, uuid: str) -> Upload:
    """Begin or resume an upload. Store its intent, unless the checkpoint is already recorded.

    A later collection removes the files of an upload that is never completed.

    Raises:
        RequestError: not_found, if the trial does not exist; conflict, if the experiment is being
            deleted or its store cannot be opened.
    """
    upload = find_upload(services, trial_id, uuid)
    if upload.state is None:
        open_store(services, upload)
        sort = f"{INTENTS}{UPLOADS_EPOCH:08d}#upload#{uuid}"
        body = to_json({"uuid": uuid, "begun_ms": services.now_ms()})
        services.table.commit(
            (Put(Key(addresses.trial(trial_id), sort), 1, body, Expect.ANYTHING),)
        )
    return upload


def find_upload(services: Services, trial_id: int, uuid: str) -> Upload:
    """Return the upload of a checkpoint to a trial, without writing anything.

    The upload need not have begun. `state` of the result is the state of the checkpoint's record,
    or None without a record.

    Raises:
        RequestError: not_found, if the trial does not exist; conflict, if the experiment is being
            deleted.
    """
    experiment_id = trials.get_trial(services, trial_id).experiment_id
    state, _ = experiments.get_experiment(services, experiment_id)
    if state.status in _DELETED:
        raise RequestError(Code.CONFLICT, f"experiment {experiment_id} is being deleted")
    record = services.engine.read_part(addresses.trial(trial_id), CHECKPOINT_PARTS + uuid)
    known = record.state if isinstance(record, CheckpointRecord) else None
    return Upload(experiment_id, trial_id, uuid, known)


def open_store(services: Services, upload: Upload) -> CheckpointFiles:
    """Open the checkpoint store of an upload.

    Raises:
        RequestError: conflict, if the checkpoint is already recorded or the store cannot be opened.
    """
    if upload.state is not None:
        text = f"checkpoint {upload.uuid} is {upload.state} already"
        raise RequestError(Code.CONFLICT, text)
    try:
        return open_checkpoint_files(experiment_storage(services, upload.experiment_id))
    except OSError as error:
        raise RequestError(Code.CONFLICT, str(error)) from None


def stored_files(services: Services, upload: Upload) -> list[tuple[str, int]]:
    """Return the path and size in bytes of each stored file of an upload, sorted by path.

    Raises:
        RequestError: conflict, if the checkpoint is already recorded or the store cannot be opened;
            unavailable, if the store does not answer.
    """
    try:
        return sorted(open_store(services, upload).list_files(upload.parts))
    except FileNotFoundError:
        return []
    except OSError as error:
        raise store_error(error) from None


def sign_files(
    services: Services, upload: Upload, files: Iterable[tuple[str, FileDigests]]
) -> list[SignedUpload | None]:
    """Return a signed request that uploads each file whole. None for a file to send to the API.

    Args:
        services: the services with the state table.
        upload: the upload.
        files: the path below the checkpoint's folder, and the digests, of each file.

    Raises:
        RequestError: conflict, if the checkpoint is already recorded or the store cannot be opened;
            invalid, for a wrong path; too_large, for a file that exceeds FILE_BYTES_MAX or the
            store's limit of whole files; unavailable, if the store does not answer.
    """
    store = open_store(services, upload)
    signed = []
    for path, digests in files:
        _check_file(path, digests.size)
        place = f"{upload.path}/{path}"
        large = LargeFile(place, digests.size, digests.md5)
        _check_whole(path, digests.size, _open_parts(services, upload, store, large))
        try:
            signed.append(store.sign_upload(place, VALIDITY_MS_MAX // 1000, digests))
        except OSError as error:
            raise store_error(error) from None
    return signed


def offer_parts(
    services: Services, upload: Upload, file: LargeFile, parts: Sequence[tuple[int, str]]
) -> OfferedParts | None:
    """Begin or resume the upload of a file in parts, and return how to upload parts.

    Return None, and begin nothing, if the store accepts only whole files.

    Args:
        services: the services with the state table.
        upload: the upload.
        file: the file.
        parts: the parts to sign, each the number, counted from 1, and the MD5.

    Raises:
        RequestError: conflict, if the checkpoint is already recorded or the store cannot be opened;
            invalid, for a wrong path or number; too_large, for a file above FILE_BYTES_MAX;
            unavailable, if the store does not answer.
    """
    opened = _open_file_parts(services, upload, file)
    if opened is None:
        return None
    sizes = opened.sizes
    for number, _ in parts:
        _check_part(file.path, number, sizes)
    seconds = VALIDITY_MS_MAX // 1000
    try:
        stored = opened.stored_parts()
        signed = [opened.sign_part(*part, seconds) for part in parts]
    except OSError as error:
        raise store_error(error) from None
    uploads = [None if item is None else SignedUpload(*item) for item in signed]
    return OfferedParts(sizes.part_bytes, opened.is_in_order, stored, uploads)


def store_part(
    services: Services, upload: Upload, file: LargeFile, part: tuple[int, str], source: Path
) -> None:
    """Store a part that the client sent to the API. Storing a part again is not an error.

    Args:
        services: the services with the state table.
        upload: the upload.
        file: the file.
        part: the number of the part, counted from 1, and the MD5.
        source: the local file with the part's content.

    Raises:
        RequestError: as `offer_parts`; invalid also if the store accepts only whole files or the
            content has the wrong size.
    """
    opened = _open_file_parts(services, upload, file)
    if opened is None:
        raise invalid("path", "the store accepts only whole files: send the file in one request")
    number, md5 = part
    _check_part(file.path, number, opened.sizes)
    size, expected = source.stat().st_size, opened.sizes.size_of(number)
    if size != expected:
        raise invalid("", f"the body has {size} bytes, and part {number} has {expected}")
    try:
        opened.store_part(number, md5, str(source))
    except OSError as error:
        raise store_error(error) from None


def join_parts(services: Services, upload: Upload, file: LargeFile) -> None:
    """Join the stored parts to the file. Joining again is not an error.

    Raises:
        RequestError: conflict, if a part is missing, the joined file has another size or MD5, the
            checkpoint is already recorded, or the store cannot be opened; invalid, for a wrong
            path, or if the store accepts only whole files; too_large, for a file above
            FILE_BYTES_MAX; unavailable, if the store does not answer.
    """
    opened = _open_file_parts(services, upload, file)
    if opened is None:
        raise invalid("path", "the store accepts only whole files: send the file in one request")
    try:
        opened.join()
    except OSError as error:
        raise store_error(error) from None


def store_upload_file(services: Services, upload: Upload, path: str, source: Path) -> None:
    """Store a file that the client sent to the API. Do nothing if the store already has the file.

    Raises:
        RequestError: conflict, if the checkpoint is already recorded or the store cannot be opened;
            invalid, for a wrong path; too_large, above FILE_BYTES_MAX; unavailable, if the store
            does not answer.
    """
    _check_file(path, source.stat().st_size)
    try:
        open_store(services, upload).store_file(f"{upload.path}/{path}", str(source))
    except OSError as error:
        raise store_error(error) from None


def complete_upload(
    services: Services, upload: Upload, manifest_sha256: str, caller: Principal
) -> Checkpoint:
    """Check the uploaded files and record the checkpoint; return the checkpoint.

    If the checkpoint is already recorded and complete, only return it.

    Args:
        services: the services with the engine and the state table.
        upload: the upload.
        manifest_sha256: the SHA-256 of the uploaded manifest.
        caller: the user.

    Raises:
        RequestError: invalid, if the manifest is wrong or belongs to another upload; conflict, if a
            file is missing, the checkpoint has another state or trial, or the experiment is being
            deleted or was changed; unavailable, if the store does not answer.
    """
    if upload.state is not CheckpointState.COMPLETED:
        _record_upload(services, upload, manifest_sha256, caller)
    return describe_checkpoint(services, upload.uuid)


def _record_upload(
    services: Services, upload: Upload, manifest_sha256: str, caller: Principal
) -> None:
    """Check the manifest and the stored files of an upload, and record the checkpoint.

    Raises:
        RequestError: invalid, if the manifest is wrong or belongs to another upload; conflict,
            if a file is missing, the checkpoint has a record already, another trial has the
            UUID, or the experiment is being deleted or was changed; not_found, if the
            experiment does not exist; unavailable, if the store does not answer.
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


def deletion_checks(services: Services, experiment_id: int) -> tuple[Check, ...]:
    """Return checks that make a commit fail if the experiment's deletion begins before the commit.

    Empty for an experiment that has not ended, because only ended experiments can be deleted.

    Raises:
        RequestError: not_found, if the experiment does not exist; conflict, if the experiment is
            being deleted.
    """
    head = services.table.get(Key(addresses.experiment(experiment_id), HEAD))
    # Read the state after the head's row, so that the checked revision is not newer than the state.
    state, _ = experiments.get_experiment(services, experiment_id)
    if head is None or state.status in _DELETED:
        raise RequestError(Code.CONFLICT, f"experiment {experiment_id} is being deleted")
    return (Check(head.key, head.revision),) if state.status.is_final else ()


def _read_manifest(store: CheckpointFiles, path: str) -> bytes:
    """Read a manifest; of a manifest above MANIFEST_BYTES_MAX, read slightly more than the limit.

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
    """Check that the manifest belongs to the upload; return the steps and the metadata.

    Raises:
        RequestError: invalid, for a wrong or missing field.
        JsonRefused: the metadata cannot be stored in a row.
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
    """Check that each file is stored with the right size; RequestError conflict otherwise.

    `stored` has the sizes in bytes of the stored files, by path.
    """
    if problem := find_missing_file(files, stored):
        raise RequestError(Code.CONFLICT, f"{problem}; upload it again")


def _check_file(path: str, size: int) -> None:
    """Check the path and size of an uploaded file; RequestError invalid or too_large."""
    try:
        check_name(path)
    except ArchiveInvalid as error:
        raise invalid("path", error.reason) from None
    if size > FILE_BYTES_MAX:
        text = f"{path} has {size} bytes; the limit of a file is {FILE_BYTES_MAX}"
        raise RequestError(Code.TOO_LARGE, text)


def _open_file_parts(services: Services, upload: Upload, file: LargeFile) -> PartsUpload | None:
    """Check the path and size of a file, and open the upload in parts; begin nothing in the store.

    None if the store accepts only whole files.

    Raises:
        RequestError: conflict, if the checkpoint is already recorded or the store cannot be opened;
            invalid, for a wrong path; too_large, for a file above FILE_BYTES_MAX; unavailable, if
            the store does not answer.
    """
    _check_file(file.path, file.size)
    place = LargeFile(f"{upload.path}/{file.path}", file.size, file.md5)
    return _open_parts(services, upload, open_store(services, upload), place)


def _open_parts(
    services: Services, upload: Upload, store: CheckpointFiles, place: LargeFile
) -> PartsUpload | None:
    """Open the upload in parts of the file at `place.path`, a path in the store.

    Begin nothing in the store: the first call of `PartsUpload.stored_parts` begins the upload. None
    if the store accepts only whole files. RequestError unavailable if the store does not answer.
    """
    memory = UploadSessions(services.table, upload.trial_id, upload.uuid, place.path)
    try:
        return store.upload_in_parts(place, memory)
    except OSError as error:
        raise store_error(error) from None


def _check_part(path: str, number: int, sizes: PartSizes) -> None:
    """Check that a file has a part with this number; RequestError invalid otherwise."""
    if number not in sizes.numbers:
        raise invalid("parts", f"{path} has no part {number}; it has {sizes.count} parts")


def _check_whole(path: str, size: int, opened: PartsUpload | None) -> None:
    """Check that the store accepts a whole file of this size; RequestError too_large otherwise."""
    if opened is None or opened.whole_bytes_max is None or size <= opened.whole_bytes_max:
        return
    text = f"{path} has {size} bytes; a request accepts at most {opened.whole_bytes_max}"
    raise RequestError(Code.TOO_LARGE, f"{text}: upload it in parts")
