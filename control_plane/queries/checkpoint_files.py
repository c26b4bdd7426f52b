"""Files of checkpoints, in folders of this machine or in buckets, listed by their manifests.

A trial wrote all of it, so nothing is trusted: the manifest must have the digest that was reported,
lie at the place that belongs to its allocation, and no part of a path may be a link. Files in a
bucket are fetched there, by URLs that the bucket's credentials sign.
"""

import json
import os
import re
import stat
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from hashlib import sha256
from pathlib import Path
from typing import Any, BinaryIO

from control_plane.actors.trial.checkpoints import CheckpointRecord, CheckpointState
from control_plane.agents.spec import parse_stored_config, storage_fields
from control_plane.errors import Code, RequestError
from control_plane.objects.signing import VALIDITY_MS_MAX
from control_plane.objects.store import ObjectKey
from control_plane.queries import checkpoint as checkpoints
from control_plane.queries import experiment as experiments
from control_plane.services import Services
from detcloud.shared.archive import ArchiveInvalid, check_name
from detcloud.shared.s3 import Bucket, BucketPlace, NoSuchKey, bucket_of

CHECKPOINT_FILES = "checkpoint-files"
MANIFEST_BYTES_MAX = 64 * 1024 * 1024

_SIGNED_SECONDS = VALIDITY_MS_MAX // 1000
_BLOCK_BYTES = 256 * 1024
_FOLDER = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC
# Without O_NONBLOCK, opening a planted pipe would wait for ever.
_FILE = os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC
_SHA256 = re.compile(r"[0-9a-f]{64}")


@dataclass(frozen=True)
class StoredFile:
    """A file that a manifest lists; `path` is relative to the checkpoint."""

    path: str
    size: int
    sha256: str


@dataclass(frozen=True)
class CheckpointFolder:
    """The place of a checkpoint's files, and the files by path."""

    uuid: str
    root: Path | Bucket
    path: str
    files: tuple[StoredFile, ...]


@dataclass(frozen=True)
class FileContent:
    """The content of a file, in blocks, and its size in bytes."""

    size: int
    blocks: Iterator[bytes]


def checkpoint_folder(services: Services, prefix: str) -> CheckpointFolder:
    """List the files of the checkpoint whose UUID begins with `prefix`.

    Raises:
        RequestError: not_found; invalid; conflict, if the files are not what was reported.
    """
    record, experiment_id = checkpoints.get_checkpoint(services, prefix)
    reference = record.checkpoint
    if record.state is not CheckpointState.COMPLETED:
        text = f"checkpoint {reference.uuid} was deleted ({record.state}): it has no files any more"
        raise RequestError(Code.NOT_FOUND, text)
    root = _storage_root(services, experiment_id)
    pattern = rf"{experiment_id}/{reference.trial_id}/\d+/{reference.uuid}"
    if not re.fullmatch(pattern, reference.path):
        raise _damage_error(record, f"it is recorded at {reference.path}")
    files = _read_manifest(root, record)
    return CheckpointFolder(reference.uuid, root, reference.path, files)


def file_url(services: Services, folder: CheckpointFolder, place: int) -> str:
    """Sign a URL of the file at that place of `folder.files`."""
    if isinstance(folder.root, Bucket):
        return folder.root.signed_get_url(
            f"{folder.path}/{folder.files[place].path}", _SIGNED_SECONDS
        )
    expires_ms = services.now_ms() + VALIDITY_MS_MAX
    key = ObjectKey(f"{CHECKPOINT_FILES}/{folder.uuid}/{place}")
    return services.signer.sign("GET", key, size=None, sha256=None, expires_ms=expires_ms).url


def open_checkpoint_file(services: Services, key: ObjectKey) -> FileContent:
    """Open the file that `file_url` signed; RequestError as `checkpoint_folder`, or not_found."""
    _, uuid, place = key.parts
    folder = checkpoint_folder(services, uuid)
    file = folder.files[int(place)]
    assert isinstance(folder.root, Path)
    stream = _open_file(folder.root, f"{folder.path}/{file.path}")
    size = os.fstat(stream.fileno()).st_size
    return FileContent(size, _blocks(stream, size))


def _storage_root(services: Services, experiment_id: int) -> Path | Bucket:
    _, definition = experiments.get_experiment(services, experiment_id)
    config = parse_stored_config(definition).checkpoint_storage
    storage = storage_fields(config, services.checkpoints)
    if storage is None:
        text = f"checkpoints in a {config.type} store cannot be fetched through the API yet"
        raise RequestError(Code.NOT_FOUND, text)
    return (
        bucket_of(BucketPlace.from_storage(storage))
        if storage["type"] == "s3"
        else Path(storage["path"])
    )


def _read_manifest(root: Path | Bucket, record: CheckpointRecord) -> tuple[StoredFile, ...]:
    reference = record.checkpoint
    content = _read_file(root, f"{reference.path}/manifest.json", MANIFEST_BYTES_MAX)
    if sha256(content).hexdigest() != reference.manifest_sha256:
        raise _damage_error(record, "its manifest was changed")
    try:
        files = [
            _manifest_file(name, entry) for name, entry in json.loads(content)["files"].items()
        ]
    except (ValueError, KeyError, TypeError, AttributeError, ArchiveInvalid) as error:
        raise _damage_error(record, f"its manifest cannot be read: {error}") from None
    return tuple(sorted(files, key=lambda file: file.path))


def _manifest_file(name: str, entry: dict[str, Any]) -> StoredFile:
    check_name(name)
    size, digest = entry["size"], entry["sha256"]
    if not isinstance(size, int) or size < 0 or not _SHA256.fullmatch(digest):
        raise ValueError(f"{name} has no size and digest")
    return StoredFile(name, size, digest)


def _damage_error(record: CheckpointRecord, why: str) -> RequestError:
    return RequestError(Code.CONFLICT, f"checkpoint {record.checkpoint.uuid} is damaged: {why}")


def _read_file(root: Path | Bucket, path: str, bytes_max: int) -> bytes:
    """Read the first bytes of a file; RequestError not_found."""
    if isinstance(root, Path):
        with _open_file(root, path) as stream:
            return stream.read(bytes_max)
    try:
        return b"".join(root.read(path, 0, bytes_max))
    except NoSuchKey:
        raise _missing_file_error(path) from None


def _missing_file_error(path: str) -> RequestError:
    return RequestError(Code.NOT_FOUND, f"the checkpoint's file {path} is not there")


def _open_file(root: Path, path: str) -> BinaryIO:
    """Open a regular file below `root` without following a link; RequestError not_found."""
    *folders, name = path.split("/")
    try:
        with _open_folder(root, folders) as folder:
            descriptor = os.open(name, _FILE, dir_fd=folder)
    except OSError:
        raise _missing_file_error(path) from None
    if not stat.S_ISREG(os.fstat(descriptor).st_mode):
        os.close(descriptor)
        raise RequestError(Code.NOT_FOUND, f"the checkpoint's file {path} is no file")
    return os.fdopen(descriptor, "rb")


@contextmanager
def _open_folder(root: Path, parts: list[str]) -> Iterator[int]:
    descriptor = os.open(root, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        for part in parts:
            below = os.open(part, _FOLDER, dir_fd=descriptor)
            os.close(descriptor)
            descriptor = below
        yield descriptor
    finally:
        os.close(descriptor)


def _blocks(stream: BinaryIO, size: int) -> Iterator[bytes]:
    with stream:
        while size > 0 and (block := stream.read(min(_BLOCK_BYTES, size))):
            size -= len(block)
            yield block
