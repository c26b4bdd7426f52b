"""Files of checkpoints, listed by their manifests.

A trial wrote all of it, so nothing is trusted: the manifest must have the digest that was reported,
and lie at the place that belongs to its allocation. A store that signs URLs hands out its files
itself, by URLs that its credentials sign; those of other stores are read here.
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
from detcloud.shared.checkpoint_limits import MANIFEST
from detcloud.shared.file_patterns import matches_any

CHECKPOINT_FILES = "checkpoint-files"

_SIGNED_SECONDS = VALIDITY_MS_MAX // 1000


@dataclass(frozen=True)
class CheckpointFolder:
    """The folder of a checkpoint in its store, and the files of its manifest by path, of which a
    user deleted those that `deleted_patterns` choose.
    """

    uuid: str
    store: CheckpointFiles
    path: str
    manifest: tuple[StoredFile, ...]
    deleted_patterns: tuple[str, ...] = ()

    @cached_property
    def files(self) -> tuple[StoredFile, ...]:
        """The files that are left, by path."""
        return tuple(
            file for file in self.manifest if not matches_any(file.path, self.deleted_patterns)
        )


class CheckpointPlace(Answer):
    """The location of a checkpoint, for callers with their own credentials: `storage` describes the
    store, without secrets, and `path` is the folder in it.
    """

    uuid: str
    path: str
    storage: dict[str, str]


def checkpoint_folder(services: Services, prefix: str) -> CheckpointFolder:
    """List the files of the checkpoint whose UUID begins with `prefix`.

    Raises:
        RequestError: not_found; invalid; conflict, if the files are not what was reported.
    """
    record, experiment_id = _stored_checkpoint(services, prefix)
    reference = record.checkpoint
    store = open_checkpoint_files(experiment_storage(services, experiment_id))
    manifest = _read_manifest(services, store, record)
    return CheckpointFolder(
        reference.uuid, store, reference.path, manifest, record.deleted_patterns
    )


def choose_files(folder: CheckpointFolder, patterns: Sequence[str]) -> tuple[StoredFile, ...]:
    """Choose files of a checkpoint by patterns; RequestError invalid where they choose none."""
    files = folder.files
    chosen = tuple(file for file in files if matches_any(file.path, patterns))
    if not chosen:
        text = f"none of the {len(files)} files of checkpoint {folder.uuid} matches"
        hint = "`detcloud checkpoint files UUID` lists them; '**/' stands for any folders"
        raise invalid("glob", f"{text} {', '.join(patterns):.200}", hint)
    return chosen


def check_stored(folder: CheckpointFolder) -> None:
    """Check that each file of the manifest is in the store with its size.

    Raises:
        RequestError: conflict, naming the first that is not.
        OSError: the store does not answer.
    """
    stored = dict(folder.store.list_files(tuple(folder.path.split("/"))))
    if problem := find_missing_file(folder.files, stored):
        text = f"checkpoint {folder.uuid} is damaged: {problem}"
        raise RequestError(Code.CONFLICT, text)


def find_missing_file(files: Iterable[StoredFile], stored: Mapping[str, int]) -> str:
    """Find a file that is not among the `stored` ones, sizes by path, or has another size there;
    "" for none.
    """
    for file in files:
        size = stored.get(file.path)
        if size != file.size:
            found = "is not there" if size is None else f"has {size} bytes there"
            return f"{file.path} {found}, {file.size} bytes are listed"
    return ""


def store_error(error: OSError) -> RequestError:
    """The answer to a request whose checkpoint store does not answer."""
    text = f"the checkpoint store does not respond: {error.strerror or error}"
    return RequestError(Code.UNAVAILABLE, text)


def locate_checkpoint(services: Services, prefix: str) -> CheckpointPlace:
    """Locate the checkpoint whose UUID begins with `prefix`; RequestError as `checkpoint_folder`,
    and conflict where the cluster alone reaches its store.
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
    """Sign a URL of one of the folder's files."""
    path = f"{folder.path}/{file.path}"
    if url := folder.store.signed_url(path, _SIGNED_SECONDS):
        return url
    expires_ms = services.now_ms() + VALIDITY_MS_MAX
    # Which file is meant stays the same while others are deleted.
    place = bisect_left(folder.manifest, file.path, key=lambda item: item.path)
    key = ObjectKey(f"{CHECKPOINT_FILES}/{folder.uuid}/{place}")
    return services.signer.sign("GET", key, size=None, sha256=None, expires_ms=expires_ms).url


def open_checkpoint_file(services: Services, key: ObjectKey) -> FileContent:
    """Open the file that `file_url` signed; RequestError as `checkpoint_folder`, or not_found."""
    _, uuid, place = key.parts
    folder = checkpoint_folder(services, uuid)
    file = folder.manifest[int(place)]
    return _open_file(folder.store, f"{folder.path}/{file.path}")


def _stored_checkpoint(services: Services, prefix: str) -> tuple[CheckpointRecord, int]:
    """The record of a checkpoint that has files at its own place, and its experiment's id."""
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
    """The `storage` of an experiment's trials, which the cluster may call."""
    _, definition = experiments.get_experiment(services, experiment_id)
    config = parse_stored_config(definition).checkpoint_storage
    if problem := services.endpoints(config):
        raise RequestError(Code.CONFLICT, f"{problem.message}; {problem.hint}")
    return storage_fields(config, services.checkpoints)


def _read_manifest(
    services: Services, store: CheckpointFiles, record: CheckpointRecord
) -> tuple[StoredFile, ...]:
    reference = record.checkpoint
    path = f"{reference.path}/{MANIFEST}"
    try:
        return services.manifests.load_files(
            reference.manifest_sha256, lambda bytes_max: _read_start(store, path, bytes_max)
        )
    except ManifestInvalid as error:
        raise _damage_error(record, str(error)) from None


def _damage_error(record: CheckpointRecord, why: str) -> RequestError:
    return RequestError(Code.CONFLICT, f"checkpoint {record.checkpoint.uuid} is damaged: {why}")


def _read_start(store: CheckpointFiles, path: str, bytes_max: int) -> bytes:
    """Read so many bytes of a file, if it has them; RequestError not_found."""
    content = bytearray()
    for block in _open_file(store, path).blocks:
        content += block
        if len(content) >= bytes_max:
            break
    return bytes(content[:bytes_max])


def _open_file(store: CheckpointFiles, path: str) -> FileContent:
    try:
        return store.open_file(path)
    except NoSuchFile as error:
        raise RequestError(Code.NOT_FOUND, f"the checkpoint's file {path} {error}") from None
