"""Files of checkpoints in folders of this machine or in buckets, found by their manifests.

A trial wrote all of it, so nothing is believed: the manifest must have the digest that was
reported, lie at the place that belongs to its allocation, and no part of a path may be a link.
What lies in a bucket is fetched there, by URLs that the bucket's credentials sign.
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

from fastapi.responses import StreamingResponse

from control_plane.actors.trial_checkpoints import CheckpointRecord, CheckpointState
from control_plane.agents.spec import storage_of, stored_config
from control_plane.api.errors import ApiError, Code
from control_plane.api.services import Services
from control_plane.api.signing import LIFE_MS_MAX
from control_plane.api.views import checkpoint as checkpoints
from control_plane.api.views import experiment as experiments
from control_plane.objects.store import Key
from detcloud.archive import ArchiveInvalid, check_name
from detcloud.s3 import Bucket, BucketPlace, KeyMissing, bucket_of

CHECKPOINT_FILES = "checkpoint-files"
MANIFEST_BYTES_MAX = 64 * 1024 * 1024

_SIGNED_SECONDS = LIFE_MS_MAX // 1000
_BLOCK_BYTES = 256 * 1024
_FOLDER = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC
# Without O_NONBLOCK, opening a planted pipe would wait for ever.
_FILE = os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC
_SHA256 = re.compile(r"[0-9a-f]{64}")


@dataclass(frozen=True)
class StoredFile:
    """A file as the manifest has it; `path` is relative to the checkpoint."""

    path: str
    size: int
    sha256: str


@dataclass(frozen=True)
class CheckpointFolder:
    """Where a checkpoint's files are, and which they are, by path."""

    uuid: str
    root: Path | Bucket
    path: str
    files: tuple[StoredFile, ...]


def checkpoint_folder(services: Services, prefix: str) -> CheckpointFolder:
    """The files of the checkpoint whose UUID begins with `prefix`.

    Raises:
        ApiError: not_found; invalid; conflict, if the files are not what was reported.
    """
    record, experiment_id = checkpoints.found(services, prefix)
    reference = record.checkpoint
    if record.state is not CheckpointState.COMPLETED:
        text = f"checkpoint {reference.uuid} was deleted ({record.state}): it has no files any more"
        raise ApiError(Code.NOT_FOUND, text)
    root = _root(services, experiment_id)
    pattern = rf"{experiment_id}/{reference.trial_id}/\d+/{reference.uuid}"
    if not re.fullmatch(pattern, reference.path):
        raise _damaged(record, f"it is recorded at {reference.path}")
    files = _manifest(root, record)
    return CheckpointFolder(reference.uuid, root, reference.path, files)


def file_url(services: Services, folder: CheckpointFolder, place: int) -> str:
    """A signed URL of the file at that place of `folder.files`."""
    if isinstance(folder.root, Bucket):
        return folder.root.signed_get(f"{folder.path}/{folder.files[place].path}", _SIGNED_SECONDS)
    expires_ms = services.now_ms() + LIFE_MS_MAX
    key = Key(f"{CHECKPOINT_FILES}/{folder.uuid}/{place}")
    return services.signer.sign("GET", key, size=None, sha256=None, expires_ms=expires_ms).url


def checkpoint_file(services: Services, key: Key) -> StreamingResponse:
    """The file that `file_url` signed; ApiError as above."""
    _, uuid, place = key.parts
    folder = checkpoint_folder(services, uuid)
    file = folder.files[int(place)]
    assert isinstance(folder.root, Path)
    stream = _opened(folder.root, f"{folder.path}/{file.path}")
    size = os.fstat(stream.fileno()).st_size
    headers = {"Content-Disposition": "attachment", "Content-Length": str(size)}
    blocks = _blocks(stream, size)
    return StreamingResponse(blocks, media_type="application/octet-stream", headers=headers)


def _root(services: Services, experiment_id: int) -> Path | Bucket:
    _, definition = experiments.found(services, experiment_id)
    config = stored_config(definition).checkpoint_storage
    storage = storage_of(config, services.checkpoints)
    if storage is None:
        text = f"checkpoints in a {config.type} store cannot be fetched through the API yet"
        raise ApiError(Code.NOT_FOUND, text)
    return bucket_of(BucketPlace.of(storage)) if storage["type"] == "s3" else Path(storage["path"])


def _manifest(root: Path | Bucket, record: CheckpointRecord) -> tuple[StoredFile, ...]:
    reference = record.checkpoint
    content = _content(root, f"{reference.path}/manifest.json", MANIFEST_BYTES_MAX)
    if sha256(content).hexdigest() != reference.manifest_sha256:
        raise _damaged(record, "its manifest was changed")
    try:
        files = [_checked(name, entry) for name, entry in json.loads(content)["files"].items()]
    except (ValueError, KeyError, TypeError, AttributeError, ArchiveInvalid) as error:
        raise _damaged(record, f"its manifest cannot be read: {error}") from None
    return tuple(sorted(files, key=lambda file: file.path))


def _checked(name: str, entry: dict[str, Any]) -> StoredFile:
    check_name(name)
    size, digest = entry["size"], entry["sha256"]
    if not isinstance(size, int) or size < 0 or not _SHA256.fullmatch(digest):
        raise ValueError(f"{name} has no size and digest")
    return StoredFile(name, size, digest)


def _damaged(record: CheckpointRecord, why: str) -> ApiError:
    return ApiError(Code.CONFLICT, f"checkpoint {record.checkpoint.uuid} is damaged: {why}")


def _content(root: Path | Bucket, path: str, bytes_max: int) -> bytes:
    """The file's beginning; ApiError not_found."""
    if isinstance(root, Path):
        with _opened(root, path) as stream:
            return stream.read(bytes_max)
    try:
        return b"".join(root.read(path, 0, bytes_max))
    except KeyMissing:
        raise _gone(path) from None


def _gone(path: str) -> ApiError:
    return ApiError(Code.NOT_FOUND, f"the checkpoint's file {path} is not there")


def _opened(root: Path, path: str) -> BinaryIO:
    """The regular file below `root`, reached without following a link; ApiError not_found."""
    *folders, name = path.split("/")
    try:
        with _folder(root, folders) as folder:
            descriptor = os.open(name, _FILE, dir_fd=folder)
    except OSError:
        raise _gone(path) from None
    if not stat.S_ISREG(os.fstat(descriptor).st_mode):
        os.close(descriptor)
        raise ApiError(Code.NOT_FOUND, f"the checkpoint's file {path} is no file")
    return os.fdopen(descriptor, "rb")


@contextmanager
def _folder(root: Path, parts: list[str]) -> Iterator[int]:
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
