"""The interface of a checkpoint store: four operations, the errors and the keys."""

from __future__ import annotations

import errno
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Protocol, runtime_checkable

from detcloud.shared.archive_limits import ArchiveInvalid
from detcloud.shared.archive_names import check_name
from detcloud.shared.errors import DetcloudError

# A full disk, a reached quota, and a reached limit on the size of files.
_NO_ROOM = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)


class StorageError(DetcloudError):
    """Raised if a checkpoint store refuses a request permanently, or fails."""


class KeyExists(StorageError):
    """Raised if a file is stored under the key already. Stores never overwrite a file."""


class KeyNotFound(StorageError):
    """Raised if no file is stored under the key."""


class StoreReplaced(StorageError):
    """Raised by `put` if files of earlier requests may be missing, because the bucket was lost.

    The store works again. The caller stores all files again, with the file of the failed request.
    """


class CheckpointStore(Protocol):
    """Files under keys like `1/4/2/UUID/state_dict.pth`.

    Every method raises StorageError for a key that `checked_key` refuses, and if the store fails.
    The store itself repeats requests after temporary failures, such as a throttle or a lost
    connection.
    """

    @property
    def root(self) -> Path | None:
        """The folder of this machine that contains the files. None for a store that is no folder.

        Event files for TensorBoard are written into this folder.
        """

    def put(self, key: str, source: Path) -> None:
        """Store the file `source` completely or not at all. Readers never see a part of a file.

        After the return, the file is durable. Raises KeyExists, and changes nothing, if the key
        exists, even with equal content; of several concurrent writers exactly one succeeds.
        """

    def get(self, key: str, destination: Path) -> None:
        """Copy a file to `destination`, in an existing folder. Replace an existing `destination`.

        Raises KeyNotFound for a missing file; `destination` then stays unchanged. After another
        error, `destination` may contain a part of the file, and the old content may be lost.
        """

    def list(self, prefix: str) -> dict[str, int]:
        """Return the size in bytes of every file whose key is `prefix` or begins with `prefix/`.

        The result maps keys to sizes. Return an empty dict if no file exists. An empty prefix is
        refused like an empty key.
        """

    def delete(self, key: str) -> None:
        """Delete a file. A missing file is no error, so a deletion may be repeated.

        In a folder, also of HDFS, folders that become empty are deleted as well.
        """


@runtime_checkable
class HashingStore(CheckpointStore, Protocol):
    """A store that hashes a file during the transfer, and that several threads may read.

    Other stores remain valid. Their files are fetched one at a time, and hashed afterwards.
    """

    def get_hashed(self, key: str, destination: Path) -> str:
        """Copy a file as `get` does, and return the SHA-256 of the copy in hexadecimal digits."""


def checked_key(key: str) -> str:
    """Return the key, after a check that every store and machine can use the key as a path.

    Raises StorageError if `archive_names.check_name` refuses the key. Refused are for example an
    empty, absolute or too long key, `..`, a backslash and a control character.
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
    """Convert an OSError of the block into a StorageError: "`action` failed: ...".

    Other exceptions pass unchanged.
    """
    try:
        yield
    except OSError as error:
        remedy = "; make room there" if error.errno in _NO_ROOM else ""
        raise StorageError(f"{action} failed: {error}{remedy}") from error
