"""The files of checkpoints in a store that knows each by its key, the whole path."""

from abc import ABC, abstractmethod
from collections.abc import Iterator
from pathlib import Path
from typing import Protocol

from control_plane.checkpoint_stores.checkpoint_files import FileContent, NoSuchFile
from control_plane.checkpoint_stores.folder_files import check_parts
from detcloud.shared.bucket_errors import NoSuchKey


class KeyedStore(Protocol):
    """A store of files by their keys. Methods raise OSError; `open` raises NoSuchKey."""

    @property
    def place(self) -> object:
        """The store in words for users."""

    def open(self, key: str) -> tuple[int, Iterator[bytes]]:
        """Open a file: its size in bytes, and its content in blocks."""

    def send(self, key: str, source: Path) -> bool:
        """Store a file unless there is one at the key already; whether it was stored."""

    def delete(self, key: str) -> None:
        """Delete a file, or none."""


class KeyedFiles(ABC):
    """A part of the CheckpointFiles of such a store."""

    def __init__(self, store: KeyedStore) -> None:
        self._store = store

    @abstractmethod
    def list_keys(self, prefix: str) -> Iterator[tuple[str, int]]:
        """The keys that begin with a prefix, which ends with a slash, and their sizes in bytes."""

    def remove_file(self, parts: tuple[str, ...], name: str) -> int:
        """Remove one file of a checkpoint, as described in CheckpointFiles."""
        check_parts(parts)
        self._store.delete("/".join((*parts, name)))
        return 1

    def sync_folder(self, parts: tuple[str, ...]) -> None:
        """Do nothing: such a store removes durably."""
        return

    def location_text(self, parts: tuple[str, ...]) -> str:
        """A folder's location in words for users."""
        return f"{'/'.join(parts)} in {self._store.place}"

    def open_file(self, path: str) -> FileContent:
        """Open the file at a path. Raises NoSuchFile."""
        try:
            return FileContent(*self._store.open(path))
        except NoSuchKey:
            raise NoSuchFile("is not there") from None

    def list_files(self, parts: tuple[str, ...]) -> Iterator[tuple[str, int]]:
        """List the files of a checkpoint by their paths within it, and their sizes in bytes."""
        check_parts(parts)
        prefix = "/".join((*parts, ""))
        for key, size in self.list_keys(prefix):
            yield key.removeprefix(prefix), size

    def store_file(self, path: str, source: str) -> bool:
        """Store a file of this machine at a path, as described in CheckpointFiles."""
        return self._store.send(path, Path(source))
