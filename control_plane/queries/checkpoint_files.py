"""Files of checkpoints, as listed in the checkpoints' manifests.

Trials write the manifest and the files, so that neither is trusted. The manifest must have the
recorded digest and lie in the folder that belongs to the checkpoint's allocation. Where the
checkpoint store signs URLs, clients fetch the files from the store. Files of other stores are read
by this server.
"""

import re
from bisect import bisect_left
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property

from control_plane.actors.trial.checkpoints import CheckpointRecord
from control_plane.agents.spec import parse_stored_config
from control_plane.checkpoint_stores.checkpoint_files import (
    CheckpointFiles,
    FileContent,
    NoSuchFile,
)
from control_plane.checkpoint_stores.manifests import ManifestInvalid, StoredFile
from control_plane.checkpoint_stores.trial_storage import (
    open_checkpoint_files,
    storage_fields,
    storage_location,
)
from control_plane.errors import Code, RequestError, invalid
from control_plane.objects.signing import VALIDITY_MS_MAX
from control_plane.objects.store import ObjectKey
from control_plane.queries import checkpoint as checkpoints
from control_plane.queries import experiment as experiments
from control_plane.queries.answer import Answer
from control_plane.services import Services
from detcloud.shared.bucket_errors import PartsConflict
from detcloud.shared.checkpoint_limits import MANIFEST
from detcloud.shared.file_patterns import matches_any
from detcloud.shared.plurals import count_text

CHECKPOINT_FILES = "checkpoint-files"

_SIGNED_SECONDS = VALIDITY_MS_MAX // 1000


@dataclass(frozen=True)
class CheckpointFolder:
    """The folder of a checkpoint in the checkpoint store, with the files of the manifest."""

    uuid: str
    store: CheckpointFiles
    path: str
    """The folder in the store."""
    manifest: tuple[StoredFile, ...]
    """All files that the manifest lists, sorted by path, deleted files included."""
    deleted_patterns: tuple[str, ...] = ()
    """The patterns of the files that users deleted from the checkpoint."""

    @cached_property
    def files(self) -> tuple[StoredFile, ...]:
        """The files that were not deleted, sorted by path."""
        return tuple(
            file for file in self.manifest if not matches_any(file.path, self.deleted_patterns)
        )


class CheckpointPlace(Answer):
    """The location of a checkpoint, for callers that have credentials for the store.

    `storage` describes the store, without secrets. `path` is the checkpoint's folder in the store.
    """

    uuid: str
    path: str
    storage: dict[str, str]


def checkpoint_folder(services: Services, prefix: str) -> CheckpointFolder:
    """Load the folder and the manifest of a checkpoint by a prefix of the UUID.

    The manifest is read from the store unless cached. The files themselves are not checked.

    Raises:
        RequestError: not_found, if no checkpoint matches, its trial or files were deleted, or the
            manifest is missing. invalid, if several checkpoints match or `prefix` is not the start
            of a UUID. conflict, if the path or the manifest is not the recorded one, or if the
            cluster may not call the store's endpoints. unavailable, if the store does not answer.
        OSError: the store cannot be opened.
    """
    record, experiment_id = _stored_checkpoint(services, prefix)
    reference = record.checkpoint
    store = open_checkpoint_files(experiment_storage(services, experiment_id))
    manifest = _read_manifest(services, store, record)
    return CheckpointFolder(
        reference.uuid, store, reference.path, manifest, record.deleted_patterns
    )


def choose_files(folder: CheckpointFolder, patterns: Sequence[str]) -> tuple[StoredFile, ...]:
    """Return the checkpoint's files that match any of the patterns, sorted by path.

    Deleted files are left out. The store is not called.

    Args:
        folder: the checkpoint.
        patterns: glob patterns of paths in the folder; `**/` stands for any folders.

    Raises:
        RequestError: invalid, if no file matches.
    """
    files = folder.files
    chosen = tuple(file for file in files if matches_any(file.path, patterns))
    if not chosen:
        text = f"no file of checkpoint {folder.uuid} ({count_text(len(files), 'file')}) matches"
        hint = "`detcloud checkpoint files UUID` lists them; '**/' stands for any folders"
        raise invalid("glob", f"{text} {', '.join(patterns):.200}", hint)
    return chosen


def check_stored(folder: CheckpointFolder) -> None:
    """Check that the store has every file of the checkpoint with the size in the manifest.

    Deleted files are left out, and contents are not read. Return nothing if all files are stored.

    Raises:
        RequestError: conflict, if a file is missing or has another size; the message names the
            first such file.
        OSError: the store does not answer.
    """
    stored = dict(folder.store.list_files(tuple(folder.path.split("/"))))
    if problem := find_missing_file(folder.files, stored):
        text = f"checkpoint {folder.uuid} is damaged: {problem}"
        raise RequestError(Code.CONFLICT, text)


def find_missing_file(files: Iterable[StoredFile], stored: Mapping[str, int]) -> str:
    """Describe the first file that is missing in the store or has another size.

    Args:
        files: the expected files.
        stored: the sizes in bytes of the stored files, by path.

    Returns:
        The difference as text, or "" if every file is stored with its size.
    """
    for file in files:
        size = stored.get(file.path)
        if size != file.size:
            actual = "is not there" if size is None else f"has {size} bytes there"
            return f"{file.path} {actual}, {file.size} bytes are listed"
    return ""


def store_error(error: OSError) -> RequestError:
    """Convert an error of a checkpoint store to the request's error, which the caller raises.

    Returns:
        RequestError conflict, if the store has other parts of a file than the request names;
        otherwise unavailable.
    """
    if isinstance(error, PartsConflict):
        return RequestError(Code.CONFLICT, str(error))
    text = f"the checkpoint store does not respond: {error.strerror or error}"
    return RequestError(Code.UNAVAILABLE, text)


def locate_checkpoint(services: Services, prefix: str) -> CheckpointPlace:
    """Return the location of a checkpoint, given a prefix of the UUID. The store is not called.

    Raises:
        RequestError: not_found, if no checkpoint matches, or its trial or files were deleted.
            invalid, if several checkpoints match or `prefix` is not the start of a UUID. conflict,
            if only the cluster can reach the store, if the cluster may not call the store's
            endpoints, or if the recorded path is not the checkpoint's.
    """
    record, experiment_id = _stored_checkpoint(services, prefix)
    storage = storage_location(experiment_storage(services, experiment_id))
    if not storage:
        text = (
            f"the store of checkpoint {record.checkpoint.uuid} can be reached by the cluster only"
        )
        raise RequestError(Code.CONFLICT, text)
    return CheckpointPlace(
        uuid=record.checkpoint.uuid, path=record.checkpoint.path, storage=storage
    )


def file_url(services: Services, folder: CheckpointFolder, file: StoredFile) -> str:
    """Return a URL that fetches a file of the checkpoint without a token for 15 minutes.

    The store signs the URL if it can; otherwise the URL leads to this server. Raises OSError if the
    store cannot sign at the moment.
    """
    path = f"{folder.path}/{file.path}"
    if url := folder.store.signed_url(path, _SIGNED_SECONDS):
        return url
    expires_ms = services.now_ms() + VALIDITY_MS_MAX
    # The index counts deleted files too, so that deleting another file does not change the URL's
    # file.
    place = bisect_left(folder.manifest, file.path, key=lambda item: item.path)
    key = ObjectKey(f"{CHECKPOINT_FILES}/{folder.uuid}/{place}")
    return services.signer.sign("GET", key, size=None, sha256=None, expires_ms=expires_ms).url


def open_checkpoint_file(services: Services, key: ObjectKey) -> FileContent:
    """Open the file at the key of a URL that `file_url` signed.

    Raises:
        RequestError: not_found, if the checkpoint, its files or the file do not exist. conflict, if
            the path or the manifest is not the recorded one, or if the cluster may not call the
            store's endpoints. unavailable, if the store does not answer.
        OSError: the store cannot be opened.
    """
    _, uuid, place = key.parts
    folder = checkpoint_folder(services, uuid)
    file = folder.manifest[int(place)]
    return _open_file(folder.store, f"{folder.path}/{file.path}")


def _stored_checkpoint(services: Services, prefix: str) -> tuple[CheckpointRecord, int]:
    """Load the record of a checkpoint that still has files, by a prefix of the UUID. Return the
    record and the experiment's id.

    Raises:
        RequestError: not_found, if no checkpoint matches, or its trial or files were deleted.
            invalid, if several checkpoints match or `prefix` is not the start of a UUID. conflict,
            if the recorded path is not the path of the checkpoint's trial.
    """
    record, experiment_id = checkpoints.get_checkpoint(services, prefix)
    reference = record.checkpoint
    if not record.state.has_files:
        text = f"checkpoint {reference.uuid} was deleted ({record.state}): its files are gone"
        raise RequestError(Code.NOT_FOUND, text)
    pattern = rf"{experiment_id}/{reference.trial_id}/\d+/{reference.uuid}"
    if not re.fullmatch(pattern, reference.path):
        raise _damage_error(record, f"it is recorded at {reference.path}")
    return record, experiment_id


def experiment_storage(services: Services, experiment_id: int) -> dict[str, str]:
    """Return the `storage` fields of an experiment's checkpoint store, secrets included.

    An experiment without a store of its own has the cluster's store.

    Raises:
        RequestError: not_found, if the experiment does not exist; conflict, if the cluster is not
            allowed to call the store's endpoints.
        ValueError, KeyError: the stored configuration is not valid for this release.
    """
    _, definition = experiments.get_experiment(services, experiment_id)
    config = parse_stored_config(definition).checkpoint_storage
    if problem := services.endpoints(config):
        raise RequestError(Code.CONFLICT, f"{problem.message}; {problem.hint}")
    return storage_fields(config, services.checkpoints)


def _read_manifest(
    services: Services, store: CheckpointFiles, record: CheckpointRecord
) -> tuple[StoredFile, ...]:
    """Read the manifest of a checkpoint, or return the cached files of the recorded digest.

    Raises:
        RequestError: conflict, if the manifest does not have the recorded digest or cannot be
            parsed; not_found, if the manifest does not exist; unavailable, if the store does not
            answer.
    """
    reference = record.checkpoint
    path = f"{reference.path}/{MANIFEST}"
    try:
        return services.manifests.load_files(
            reference.manifest_sha256, lambda bytes_max: _read_start(store, path, bytes_max)
        )
    except ManifestInvalid as error:
        raise _damage_error(record, str(error)) from None


def _damage_error(record: CheckpointRecord, why: str) -> RequestError:
    """Return the error conflict for a damaged checkpoint. `why` says what is wrong."""
    return RequestError(Code.CONFLICT, f"checkpoint {record.checkpoint.uuid} is damaged: {why}")


def _read_start(store: CheckpointFiles, path: str, bytes_max: int) -> bytes:
    """Read the first `bytes_max` bytes of a file, or all of a shorter file.

    Raises:
        RequestError: not_found, if the file does not exist; unavailable, if the store does not
            answer.
    """
    content = bytearray()
    try:
        for block in _open_file(store, path).blocks:
            content += block
            if len(content) >= bytes_max:
                break
    except OSError as error:
        raise store_error(error) from None
    return bytes(content[:bytes_max])


def _open_file(store: CheckpointFiles, path: str) -> FileContent:
    """Open a file of the store.

    Raises:
        RequestError: not_found, if the file does not exist; unavailable, if the store does not
            answer.
    """
    try:
        return store.open_file(path)
    except NoSuchFile as error:
        raise RequestError(Code.NOT_FOUND, f"the checkpoint's file {path} {error}") from None
    except OSError as error:
        raise store_error(error) from None
