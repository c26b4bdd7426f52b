"""The checkpoint store in a folder of this machine, or mounted on several machines."""

from __future__ import annotations

import os
import shutil
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any

from detcloud.shared.checkpoint_limits import STAGING_FOLDER
from detcloud.shared.staged_files import claim_name, staged_name
from detcloud.storage.store import (
    KeyExists,
    KeyNotFound,
    StorageError,
    checked_key,
    translate_errors,
)

# A write without a change for this time was killed.
_ABANDONED_SECONDS = 24 * 3600


def build_store(config: Mapping[str, Any]) -> DirectoryStore:
    """Return the store in the folder `path` of the configuration. No folder is created yet.

    Raises StorageError unless the path is absolute.
    """
    path = config.get("path")
    if not isinstance(path, str) or not Path(path).is_absolute():
        raise StorageError(f"storage path is {path!r}: expected an absolute path")
    return DirectoryStore(Path(path))


class DirectoryStore:
    """A store with keys that are paths below `root`. Implements CheckpointStore.

    The folder is created when the first file is stored. `delete` also removes folders that become
    empty. `put` also removes files in STAGING_FOLDER that killed writers left a day ago or earlier.
    """

    def __init__(self, root: Path) -> None:
        self.root = root

    def put(self, key: str, source: Path) -> None:
        with translate_errors(f"storing {key!r} in {self.root}"):
            destination = self._path(key)
            _make_folder_durably(destination.parent)
            staged = self.root / STAGING_FOLDER / staged_name(key)
            staged.parent.mkdir(exist_ok=True)
            try:
                staged.touch(exist_ok=False)
                _remove_abandoned_files(staged)
                _copy_durably(source, staged)
                _publish_file(staged, destination, staged.with_name(claim_name(key)))
            finally:
                staged.unlink(missing_ok=True)
            _sync_folder(destination.parent)

    def get(self, key: str, destination: Path) -> None:
        with translate_errors(f"reading {key!r} from {self.root}"):
            source = self._path(key)
            if not source.is_file():
                raise KeyNotFound(f"{source} does not exist")
            shutil.copyfile(source, destination)

    def list(self, prefix: str) -> dict[str, int]:
        with translate_errors(f"listing {prefix!r} in {self.root}"):
            start = self._path(prefix)
            if start.is_file():
                return {prefix: start.stat().st_size}
            return {
                path.relative_to(self.root).as_posix(): path.stat().st_size
                for path in sorted(start.rglob("*"))
                if path.is_file() and not path.is_symlink()
            }

    def delete(self, key: str) -> None:
        with translate_errors(f"deleting {key!r} from {self.root}"):
            path = self._path(key)
            path.unlink(missing_ok=True)
            self._remove_empty_folders(path.parent)

    def _path(self, key: str) -> Path:
        """Return the path of a key below the root, with links as they are.

        Raises StorageError if the key is invalid, begins with STAGING_FOLDER, or leads out of the
        store through a link.
        """
        if checked_key(key).split("/")[0] == STAGING_FOLDER:
            raise StorageError(
                f"{key!r} is not a valid name of a stored file: {STAGING_FOLDER} is taken"
            )
        path = self.root / key
        # A link in the store must not lead out of the store.
        if not _real_path(path).is_relative_to(_real_path(self.root)):
            raise StorageError(f"{path} leads out of the store {self.root}")
        return path

    def _remove_empty_folders(self, folder: Path) -> None:
        """Delete `folder` and the parents below the root, up to the first that cannot be deleted.

        A folder with files and a missing folder cannot be deleted. The root stays. Raises nothing.
        """
        while folder != self.root and folder.is_relative_to(self.root):
            try:
                folder.rmdir()
            except OSError:
                return
            folder = folder.parent


def _real_path(path: Path) -> Path:
    """Return the path with all links resolved. Missing parts are no error.

    Raises StorageError if the links form a circle. From Python 3.13 on, return the path of a circle
    unresolved.
    """
    try:
        return path.resolve()
    except RuntimeError:
        # From Python 3.13 on, opening the path raises OSError instead.
        raise StorageError(f"{path} has links that lead to each other: remove them") from None


def _make_folder_durably(folder: Path) -> None:
    if folder.is_dir():
        return
    _make_folder_durably(folder.parent)
    folder.mkdir(exist_ok=True)
    _sync_folder(folder.parent)


def _remove_abandoned_files(staged: Path) -> None:
    """Delete all files in the folder of `staged` that are unchanged for _ABANDONED_SECONDS, a day.

    The writers of these files were killed. `staged` was just created: its time is the present,
    because the clock of the file system may differ from this machine's clock. Missing files are
    skipped. Raises OSError for other failures.
    """
    now = staged.stat().st_mtime
    for file in staged.parent.iterdir():
        # Another writer may have finished or removed the file in the meantime.
        with suppress(FileNotFoundError):
            if now - file.stat().st_mtime > _ABANDONED_SECONDS:
                file.unlink()


def _copy_durably(source: Path, staged: Path) -> None:
    with source.open("rb") as reader, staged.open("wb") as writer:
        shutil.copyfileobj(reader, writer, 1 << 20)
        writer.flush()
        os.fsync(writer.fileno())


def _publish_file(staged: Path, destination: Path, claim: Path) -> None:
    """Make `staged` visible as `destination`, and never replace an existing file.

    A hard link keeps `staged`, which the caller deletes. In a store without hard links, rename
    `staged`; the file `claim` admits a single writer at a time. Raises KeyExists if the destination
    exists or another writer has the claim.
    """
    try:
        os.link(staged, destination)
    except FileExistsError:
        raise KeyExists(f"{destination} exists already") from None
    except OSError:
        _rename_exclusively(staged, destination, claim)


def _rename_exclusively(staged: Path, destination: Path, claim: Path) -> None:
    """Rename `staged` to `destination` while the new file `claim` keeps other writers away.

    Delete the claim at the end. Raises KeyExists if the destination exists or another writer has
    the claim. The claim of a killed writer counts until `_remove_abandoned_files` deletes the
    claim.
    """
    try:
        claim.touch(exist_ok=False)
    except FileExistsError:
        raise KeyExists(f"{destination} is stored by another writer at this moment") from None
    try:
        if destination.exists():
            raise KeyExists(f"{destination} exists already")
        staged.rename(destination)
    finally:
        claim.unlink(missing_ok=True)


def _sync_folder(folder: Path) -> None:
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
