"""Uploads of checkpoints by users: begun, filled file by file, and recorded when complete.

A checkpoint is not listed before the last step, which checks that every file of its manifest is in
the store. The client derives the UUID of an upload from the content, so an interrupted upload is
resumed, and a completed one that is repeated yields the same checkpoint.
"""

import json
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
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
from control_plane.usecases.experiment_deletion import check_is_owner
from detcloud.shared.archive_limits import ArchiveInvalid
from detcloud.shared.archive_names import check_name
from detcloud.shared.checkpoint_limits import MANIFEST, MANIFEST_BYTES_MAX
from detcloud.shared.upload_parts import PartSizes

# The largest object of S3 and of Google's.
FILE_BYTES_MAX = 5 << 40

_STEPS_MAX = 2**53
_DELETED = (Status.DELETING, Status.DELETE_FAILED)


@dataclass(frozen=True)
class OfferedParts:
    """Parts of `part_bytes`, the last one shorter, to be sent one after the other if `is_in_order`:
    the numbers of those that are there already, and the requests that upload those which were asked
    for, None for one that the API takes.
    """

    part_bytes: int
    is_in_order: bool
    stored: list[int]
    uploads: list[SignedUpload | None]


@dataclass(frozen=True)
class Upload:
    """An upload that its caller may make: the experiment, the trial and the checkpoint's UUID.

    `state` is the checkpoint's state if it is already recorded.
    """

    experiment_id: int
    trial_id: int
    uuid: str
    state: CheckpointState | None

    @property
    def parts(self) -> tuple[str, ...]:
        """The folders that lead to its files."""
        return str(self.experiment_id), str(self.trial_id), str(UPLOADS_EPOCH), self.uuid

    @property
    def path(self) -> str:
        """The folder of its files in the store."""
        return "/".join(self.parts)


def begin_upload(services: Services, trial_id: int, uuid: str, caller: Principal) -> Upload:
    """Begin an upload, or go on with it; what is never completed is removed by a later collection.

    Raises:
        RequestError: not_found; forbidden, for another's; conflict, where nothing may be stored.
    """
    upload = find_upload(services, trial_id, uuid, caller)
    if upload.state is None:
        open_store(services, upload)
        sort = f"{INTENTS}{UPLOADS_EPOCH:08d}#upload#{uuid}"
        body = to_json({"uuid": uuid, "begun_ms": services.now_ms()})
        services.table.commit(
            (Put(Key(addresses.trial(trial_id), sort), 1, body, Expect.ANYTHING),)
        )
    return upload


def find_upload(services: Services, trial_id: int, uuid: str, caller: Principal) -> Upload:
    """Find where an upload of the caller belongs; RequestError not_found, forbidden or conflict."""
    experiment_id = trials.get_trial(services, trial_id).experiment_id
    check_is_owner(services, experiment_id, caller, "upload checkpoints to it")
    state, _ = experiments.get_experiment(services, experiment_id)
    if state.status in _DELETED:
        raise RequestError(Code.CONFLICT, f"experiment {experiment_id} is being deleted")
    record = services.engine.read_part(addresses.trial(trial_id), CHECKPOINT_PARTS + uuid)
    known = record.state if isinstance(record, CheckpointRecord) else None
    return Upload(experiment_id, trial_id, uuid, known)


def open_store(services: Services, upload: Upload) -> CheckpointFiles:
    """Open the store of an upload that is not recorded yet; RequestError conflict."""
    if upload.state is not None:
        text = f"checkpoint {upload.uuid} is {upload.state} already"
        raise RequestError(Code.CONFLICT, text)
    try:
        return open_checkpoint_files(experiment_storage(services, upload.experiment_id))
    except OSError as error:
        raise RequestError(Code.CONFLICT, str(error)) from None


def stored_files(services: Services, upload: Upload) -> list[tuple[str, int]]:
    """The path and size of each stored file of an upload, by path."""
    try:
        return sorted(open_store(services, upload).list_files(upload.parts))
    except FileNotFoundError:
        return []
    except OSError as error:
        raise store_error(error) from None


def sign_files(
    services: Services, upload: Upload, files: Iterable[tuple[str, FileDigests]]
) -> list[SignedUpload | None]:
    """Sign the upload of each file; None for one that the API takes. RequestError invalid."""
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
    """Say how to upload parts of a file, each a number from 1 and an MD5; None where the store
    takes files whole. RequestError invalid.
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
    """Store a part that the API took; again is no error. RequestError."""
    opened = _open_file_parts(services, upload, file)
    if opened is None:
        raise invalid("path", "the store takes files whole: send it so")
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
    """Make a file of its parts, which are all there; again is no error. RequestError."""
    opened = _open_file_parts(services, upload, file)
    if opened is None:
        raise invalid("path", "the store takes files whole: send it so")
    try:
        opened.join()
    except OSError as error:
        raise store_error(error) from None


def store_upload_file(services: Services, upload: Upload, path: str, source: Path) -> None:
    """Store a file that the API received; if it exists already, do nothing. RequestError."""
    _check_file(path, source.stat().st_size)
    try:
        open_store(services, upload).store_file(f"{upload.path}/{path}", str(source))
    except OSError as error:
        raise store_error(error) from None


def complete_upload(
    services: Services, upload: Upload, manifest_sha256: str, caller: Principal
) -> Checkpoint:
    """Record the checkpoint whose files are all there; again is no error.

    Raises:
        RequestError: invalid, for a manifest that is not one of this upload; conflict, if a file is
            missing, or the checkpoint was deleted.
    """
    if upload.state is not CheckpointState.COMPLETED:
        _record_upload(services, upload, manifest_sha256, caller)
    return describe_checkpoint(services, upload.uuid)


def _record_upload(
    services: Services, upload: Upload, manifest_sha256: str, caller: Principal
) -> None:
    checks = deletion_checks(services, upload.experiment_id)
    store = open_store(services, upload)
    content = _read_manifest(store, f"{upload.path}/{MANIFEST}")
    try:
        files = parse_manifest(content, manifest_sha256)
    except ManifestInvalid as error:
        raise invalid("manifest_sha256", str(error)) from None
    steps, metadata = _checked_fields(services, upload, json.loads(content))
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
    """Conditions under which the experiment is not being deleted, which begins with one that has
    ended. RequestError conflict.
    """
    head = services.table.get(Key(addresses.experiment(experiment_id), HEAD))
    # After the head's row, so that its revision is no later one than the state's.
    state, _ = experiments.get_experiment(services, experiment_id)
    if head is None or state.status in _DELETED:
        raise RequestError(Code.CONFLICT, f"experiment {experiment_id} is being deleted")
    return (Check(head.key, head.revision),) if state.status.is_final else ()


def _read_manifest(store: CheckpointFiles, path: str) -> bytes:
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
    """The steps and the metadata that a manifest tells, which must be this upload's own."""
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
    if not isinstance(metadata, dict) or len(to_json(metadata)) > METADATA_BYTES_MAX:
        text = f"must be an object of at most {METADATA_BYTES_MAX} bytes as JSON"
        raise invalid(f"{MANIFEST}: metadata", text, "store large values in a file")
    return steps, metadata


def _check_stored(files: Sequence[StoredFile], stored: dict[str, int]) -> None:
    """Raise RequestError conflict unless each file is stored with its size."""
    if problem := find_missing_file(files, stored):
        raise RequestError(Code.CONFLICT, f"{problem}; upload it again")


def _check_file(path: str, size: int) -> None:
    try:
        check_name(path)
    except ArchiveInvalid as error:
        raise invalid("path", error.reason) from None
    if size > FILE_BYTES_MAX:
        text = f"{path} has {size} bytes, the limit of an upload is {FILE_BYTES_MAX} a file"
        raise RequestError(Code.TOO_LARGE, text)


def _open_file_parts(services: Services, upload: Upload, file: LargeFile) -> PartsUpload | None:
    """Open the upload in parts of a file of an upload. RequestError."""
    _check_file(file.path, file.size)
    place = LargeFile(f"{upload.path}/{file.path}", file.size, file.md5)
    return _open_parts(services, upload, open_store(services, upload), place)


def _open_parts(
    services: Services, upload: Upload, store: CheckpointFiles, place: LargeFile
) -> PartsUpload | None:
    memory = UploadSessions(services.table, upload.trial_id, upload.uuid, place.path)
    try:
        return store.upload_in_parts(place, memory)
    except OSError as error:
        raise store_error(error) from None


def _check_part(path: str, number: int, sizes: PartSizes) -> None:
    if number not in sizes.numbers:
        raise invalid("parts", f"{number} is none of {path}, which has {sizes.count}")


def _check_whole(path: str, size: int, opened: PartsUpload | None) -> None:
    """Raise RequestError for a file that the store takes in parts alone."""
    if opened is None or opened.whole_bytes_max is None or size <= opened.whole_bytes_max:
        return
    text = f"{path} has {size} bytes, one request takes {opened.whole_bytes_max}"
    raise RequestError(Code.TOO_LARGE, f"{text}: upload it in parts")
