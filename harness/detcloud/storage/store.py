"""The interface of a checkpoint store: its four operations, its errors and its keys."""

from __future__ import annotations

import errno
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Protocol

from detcloud.shared.archive_limits import ArchiveInvalid
from detcloud.shared.archive_names import check_name
from detcloud.shared.errors import DetcloudError

# A disk without room, and a quota or a limit on files that is reached.
_NO_ROOM = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)


class StorageError(DetcloudError):
    """A checkpoint store refused a request, for good, or failed."""


class KeyExists(StorageError):
    """A file is stored under the key already; nothing in a store is ever overwritten."""


class KeyNotFound(StorageError):
    """No file is stored under the key."""


class CheckpointStore(Protocol):
    """Files under keys like `1/4/2/UUID/state_dict.pth`.

    Every method raises StorageError for a key that `checked_key` refuses and when the store fails.
    The store itself repeats what may pass (a throttle, a lost connection).
    """

    @property
    def root(self) -> Path | None:
        """The folder of this machine's file system that holds the files, None without one.

        Event files for TensorBoard are kept in it.
        """

    def put(self, key: str, source: Path) -> None:
        """Store a file whole or not at all: a reader never sees a part of it.

        On return it is durable. Raises KeyExists where the key exists, even with the same
        bytes, so of several writers exactly one succeeds.
        """

    def get(self, key: str, destination: Path) -> None:
        """Copy a file to `destination`, whose folder exists. Raises KeyNotFound."""

    def list(self, prefix: str) -> dict[str, int]:
        """The size in bytes of every key that is `prefix` or lies below it; empty for none."""

    def delete(self, key: str) -> None:
        """Remove a file; one that is gone already is no error, so a repeat is harmless."""


def checked_key(key: str) -> str:
    """The key itself, if no store and no file system can take it for a way out of its folder, and
    every machine can read the file back under its name.

    Raises StorageError for any other, by the rules of the names in archives.
    """
    try:
        check_name(key)
    except ArchiveInvalid as error:
        raise StorageError(
            f"{key!r:.200} is not a valid name of a stored file: {error.reason}"
        ) from None
    return key


@contextmanager
def translate_errors(action: str) -> Iterator[None]:
    """Turn the OSError of a disk or a bucket into a StorageError that names the action."""
    try:
        yield
    except OSError as error:
        remedy = "; make room there" if error.errno in _NO_ROOM else ""
        raise StorageError(f"{action} failed: {error}{remedy}") from error
