"""The server's side of a store type in memory; `memory_store.py` has the trial's side."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Literal

from control_plane.checkpoint_stores.checkpoint_files import (
    FileContent,
    FileDigests,
    LargeFile,
    NoSuchFile,
    PartsUpload,
    SignedUpload,
)
from control_plane.checkpoint_stores.folder_files import check_parts
from control_plane.checkpoint_stores.store_type import StorageFields, StoreType
from control_plane.config.storage import CheckpointStorage
from control_plane.field_types import Text
from detcloud.shared.upload_parts import SessionMemory
from tests.unit.storage import memory_store


class Memory(CheckpointStorage):
    """Options of a store in the memory of the process."""

    type: Literal["memory"]
    shelf: Text
    """The shelf."""


class MemoryFiles:
    """The CheckpointFiles of a shelf."""

    def __init__(self, shelf: str) -> None:
        self._shelf = shelf
        self._files = memory_store.shelves.setdefault(shelf, {})

    def remove_folder(self, parts: tuple[str, ...], *, prune: bool = False) -> Iterator[int]:
        check_parts(parts)
        for key in [key for key in self._files if key.startswith("/".join((*parts, "")))]:
            del self._files[key]
            yield 1

    def remove_file(self, parts: tuple[str, ...], name: str) -> int:
        check_parts(parts)
        return int(self._files.pop("/".join((*parts, name)), None) is not None)

    def sync_folder(self, parts: tuple[str, ...]) -> None:
        pass

    def remove_empty_folders(self, parts: tuple[str, ...]) -> None:
        pass

    def list_checkpoints(self, experiment_id: int, trial_id: int) -> Iterator[tuple[str, str]]:
        prefix = f"{experiment_id}/{trial_id}/"
        names = [key.removeprefix(prefix) for key in self._files if key.startswith(prefix)]
        folders = sorted({tuple(name.split("/")[:2]) for name in names if name.count("/") >= 2})
        return ((epoch, uuid) for epoch, uuid in folders)

    def location_text(self, parts: tuple[str, ...]) -> str:
        return f"{'/'.join(parts)} on {self._shelf}"

    def open_file(self, path: str) -> FileContent:
        if path not in self._files:
            raise NoSuchFile("is not there")
        content = self._files[path]
        return FileContent(len(content), iter([content]))

    def signed_url(self, path: str, seconds: int) -> str | None:
        return None

    def list_files(self, parts: tuple[str, ...]) -> Iterator[tuple[str, int]]:
        prefix = "/".join((*parts, ""))
        for key, content in list(self._files.items()):
            if key.startswith(prefix):
                yield key.removeprefix(prefix), len(content)

    def store_file(self, path: str, source: str) -> bool:
        is_new = path not in self._files
        self._files.setdefault(path, Path(source).read_bytes())
        return is_new

    def sign_upload(self, path: str, seconds: int, digests: FileDigests) -> SignedUpload | None:
        return None

    def upload_in_parts(self, file: LargeFile, memory: SessionMemory) -> PartsUpload | None:
        return None

    def end_session(self, session: str) -> None:
        pass


def _open_files(fields: StorageFields) -> MemoryFiles:
    return MemoryFiles(fields["shelf"])


SPEC = StoreType[Memory](
    name="memory",
    options=Memory,
    storage_fields=lambda options: {"type": "memory", "shelf": options.shelf},
    open_files=_open_files,
    display_name=lambda fields: f"shelf {fields['shelf']}",
)
