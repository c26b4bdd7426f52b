"""The checkpoint files of a store that addresses each file by a key, the whole path."""

from abc import ABC, abstractmethod
from collections.abc import Iterator
from pathlib import Path
from typing import Protocol

from control_plane.checkpoint_stores.checkpoint_files import FileContent, NoSuchFile
from control_plane.checkpoint_stores.folder_files import check_parts
from detcloud.shared.bucket_errors import NoSuchKey


class KeyedStore(Protocol):
    """A store of files by key. Every method raises OSError."""

    @property
    def place(self) -> object:
        """The place of the store. `str` of the place is the store's name for users."""

    def open(self, key: str) -> tuple[int, Iterator[bytes]]:
        """Open a file. Return the size in bytes and the content in blocks. Raises NoSuchKey."""

    def send(self, key: str, source: Path) -> bool:
        """Store a copy of a local file at a key. Return False if the key is taken."""

    def delete(self, key: str) -> None:
        """Delete the file at a key, and in HDFS the folders that are then empty.

        A missing file is not an error.
        """


class KeyedFiles(ABC):
    """The methods of CheckpointFiles that all keyed stores share."""

    def __init__(self, store: KeyedStore) -> None:
        self._store = store

    @abstractmethod
    def list_keys(self, prefix: str) -> Iterator[tuple[str, int]]:
        """Yield the key and the size in bytes of each file below a prefix, which ends with a slash.

        Raises OSError.
        """

    def remove_file(self, parts: tuple[str, ...], name: str) -> int:
        """Remove a file of a checkpoint; return 1, also for a missing file.

        `name` is the path within the folder and is not checked. Raises OSError, and ValueError if
        `parts` are not the names of a checkpoint's folder.
        """
        check_parts(parts)
        self._store.delete("/".join((*parts, name)))
        return 1

    def sync_folder(self, parts: tuple[str, ...]) -> None:
        """Do nothing, because keyed stores remove durably."""
        return

    def location_text(self, parts: tuple[str, ...]) -> str:
        """Return the location of a folder for users, like "1/2/3/UUID in s3://bucket"."""
        return f"{'/'.join(parts)} in {self._store.place}"

    def open_file(self, path: str) -> FileContent:
        """Open the file at a path for reading.

        Raises NoSuchFile for a missing file. Raises OSError if the store cannot be read.
        """
        try:
            return FileContent(*self._store.open(path))
        except NoSuchKey:
            raise NoSuchFile("is not there") from None

    def list_files(self, parts: tuple[str, ...]) -> Iterator[tuple[str, int]]:
        """Yield the path within the folder and the size in bytes of each file of a checkpoint.

        Raises OSError, and ValueError if `parts` are not the names of a checkpoint's folder.
        """
        check_parts(parts)
        prefix = "/".join((*parts, ""))
        for key, size in self.list_keys(prefix):
            yield key.removeprefix(prefix), size

    def store_file(self, path: str, source: str) -> bool:
        """Store a copy of the local file `source` at `path`. Return False if `path` is taken.

        Raises OSError.
        """
        return self._store.send(path, Path(source))
