"""The seam to a checkpoint store: its four verbs, its errors and its keys."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Protocol

from detcloud import DetcloudError

KEY_CHARACTERS_MAX = 1024


class StorageError(DetcloudError):
    """A checkpoint store refused or failed; what it refuses once it refuses again."""


class AlreadyStored(StorageError):
    """The key is taken: nothing in a store is ever overwritten."""


class NotStored(StorageError):
    """There is no such key."""


class CheckpointStore(Protocol):
    """Files under keys like `1/4/2/UUID/state_dict.pth`.

    Every method raises StorageError for a key that `checked_key` refuses and when the store fails.
    Retries of what may pass by itself (a throttle, a lost connection) are the store's own affair.
    """

    def put(self, key: str, source: Path) -> None:
        """Stores a file whole or not at all: a reader never sees a part of it.

        On return it is durable. Raises AlreadyStored where the key exists, even with the same
        bytes, so of several writers exactly one succeeds.
        """

    def get(self, key: str, destination: Path) -> None:
        """Copies a file to `destination`, whose folder exists. Raises NotStored."""

    def list(self, prefix: str) -> dict[str, int]:
        """The size in bytes of every key that is `prefix` or lies below it; empty for none."""

    def delete(self, key: str) -> None:
        """Removes a file; one that is gone already is no error, so a repeat is harmless."""


def checked_key(key: str) -> str:
    """`key` itself where no store and no file system can take it for a way out of its folder.

    Raises StorageError for an absolute key, empty, `.` or `..` parts, backslashes, control
    characters and more than 1024 characters.
    """
    parts = key.split("/")
    if (
        len(key) > KEY_CHARACTERS_MAX
        or any(part in ("", ".", "..") for part in parts)
        or any(character == "\\" or ord(character) < 32 for character in key)
    ):
        raise StorageError(
            f"{key!r:.200} cannot name a stored file: use a relative path of at most "
            f"{KEY_CHARACTERS_MAX} characters with '/' between its parts and no '.' or '..'"
        )
    return key


@contextmanager
def translated(action: str) -> Iterator[None]:
    """Has what a disk or a bucket refuses end in a StorageError that names the action."""
    try:
        yield
    except OSError as error:
        raise StorageError(f"{action} failed: {error}") from error


def build_store(config: Mapping[str, Any]) -> CheckpointStore:
    """The store that a `storage` object of a trial's specification describes.

    Raises StorageError for a type that does not exist and for missing fields.
    """
    match config.get("type"):
        case "directory" | "shared_fs":
            from detcloud.storage.directory import DirectoryStore

            return DirectoryStore(_absolute_path(config))
        case "s3":
            from detcloud.s3 import Bucket, BucketPlace
            from detcloud.storage.s3 import S3Store

            if not config.get("bucket"):
                raise StorageError(f"storage bucket is {config.get('bucket')!r}: a name is needed")
            with translated("using the checkpoint storage"):
                return S3Store(Bucket(BucketPlace.of(config)))
        case other:
            known = "directory, s3, shared_fs"
            raise StorageError(f"storage type {other!r} is unknown; known: {known}")


def _absolute_path(config: Mapping[str, Any]) -> Path:
    path = config.get("path")
    if not isinstance(path, str) or not Path(path).is_absolute():
        raise StorageError(f"storage path is {path!r}: an absolute path was expected")
    return Path(path)
