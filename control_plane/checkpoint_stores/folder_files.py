"""The files of checkpoints below a root folder on this machine, to which trials may write anything.

A path is opened part by part with descriptors that refuse links, so a planted link cannot redirect
a removal: the link itself is removed, or it ends the walk. Callers build paths from ids, never from
texts that a trial wrote, and every part is checked here again. Removing a missing entry is no
error.
"""

import errno
import os
import re
import stat
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, suppress
from itertools import islice
from pathlib import Path
from typing import BinaryIO

from control_plane.checkpoint_stores.checkpoint_files import (
    FileContent,
    FileDigests,
    LargeFile,
    NoSuchFile,
    PartsUpload,
    SignedUpload,
)
from control_plane.checkpoint_stores.folder_parts import FolderPartsUpload
from control_plane.checkpoint_stores.folder_uploads import folder_files, store_file
from control_plane.checkpoint_stores.store_type import StorageFields
from detcloud.shared.checkpoint_limits import STAGING_FOLDER
from detcloud.shared.upload_parts import SessionMemory

# Entries looked at between two yields.
ENTRIES_PER_STEP = 64
# Nested folders; each holds a descriptor open while its content is removed.
DEPTH_MAX = 100

_BLOCK_BYTES = 256 * 1024
_FOLDER = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC
# Without O_NONBLOCK, opening a planted pipe would wait for ever.
_FILE = os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC
_PART = re.compile(r"[A-Za-z0-9][A-Za-z0-9_-]*")


class FolderRefused(OSError):
    """A folder cannot be removed the safe way; the message says which and why."""


def open_folder_files(fields: StorageFields) -> "FolderFiles":
    """The folder of a spec's `storage`."""
    return FolderFiles(Path(fields["path"]))


class FolderFiles:
    """The CheckpointFiles of a root on this machine."""

    def __init__(self, root: Path) -> None:
        self._root = root

    def remove_folder(self, parts: tuple[str, ...], *, prune: bool = False) -> Iterator[int]:
        yield from remove_folder(self._root, parts, prune=prune)
        remove_unfinished_writes(self._root, parts[-1])

    def remove_file(self, parts: tuple[str, ...], name: str) -> int:
        return remove_file(self._root, parts, name)

    def sync_folder(self, parts: tuple[str, ...]) -> None:
        sync_folder(self._root, parts)

    def remove_empty_folders(self, parts: tuple[str, ...]) -> None:
        remove_empty_folders(self._root, parts)

    def list_checkpoints(self, experiment_id: int, trial_id: int) -> Iterator[tuple[str, str]]:
        parts = str(experiment_id), str(trial_id)
        for epoch in _folder_names(self._root, parts):
            if _PART.fullmatch(epoch):
                yield from ((epoch, name) for name in _folder_names(self._root, (*parts, epoch)))

    def location_text(self, parts: tuple[str, ...]) -> str:
        return str(self._root.joinpath(*parts))

    def open_file(self, path: str) -> FileContent:
        stream = _open_file(self._root, path)
        size = os.fstat(stream.fileno()).st_size
        return FileContent(size, _blocks(stream, size))

    def signed_url(self, path: str, seconds: int) -> str | None:
        return None

    def list_files(self, parts: tuple[str, ...]) -> Iterator[tuple[str, int]]:
        check_parts(parts)
        with suppress(FileNotFoundError), _open_folders(self._root, parts) as folders:
            if len(folders) > len(parts):
                yield from folder_files(folders[-1])

    def store_file(self, path: str, source: str) -> bool:
        return store_file(self._root, path, Path(source))

    def sign_upload(self, path: str, seconds: int, digests: FileDigests) -> SignedUpload | None:
        return None

    def upload_in_parts(self, file: LargeFile, memory: SessionMemory) -> PartsUpload | None:
        return FolderPartsUpload(self._root, file.path, file.size)

    def end_session(self, session: str) -> None:
        pass


def _folder_names(root: Path, parts: tuple[str, ...]) -> list[str]:
    """The names of the folders in ROOT/part/part/..., sorted; none where it does not exist."""
    with suppress(FileNotFoundError), _open_folders(root, parts) as folders:
        if len(folders) > len(parts):
            with os.scandir(folders[-1]) as found:
                return sorted(entry.name for entry in found if entry.is_dir(follow_symlinks=False))
    return []


def remove_folder(root: Path, parts: tuple[str, ...], *, prune: bool = False) -> Iterator[int]:
    """Remove the folder ROOT/part/part/... and, to `prune`, those above it that are left empty,
    never the root. While others still write, a folder may be empty because it was just made.

    Yields 1 after every file, and 0 after every few other entries; it may be abandoned there and
    begun again. The removal is durable only after `sync_folder`.

    Raises:
        OSError: the root is missing, or something cannot be removed.
        ValueError: a part is no plain name, or there are fewer than two.
    """
    check_parts(parts)
    with _open_folders(root, parts[:-1]) as folders:
        if len(folders) == len(parts):
            yield from _remove_entry(folders[-1], parts[-1], 1)
        if prune:
            _remove_if_empty(folders, parts[:-1])


def remove_file(root: Path, parts: tuple[str, ...], name: str) -> int:
    """Remove the file `name`, a path, of the folder ROOT/part/part/..., so that it outlasts a loss
    of power; how many files that were. Raises OSError and ValueError as `remove_folder`.
    """
    check_parts(parts)
    *above, last = name.split("/")
    within = (*parts, *above)
    if {"", ".", ".."} & {*above, last}:
        raise ValueError(f"{name!r} is not the path of a file in a checkpoint")
    with _open_folders(root, within) as folders:
        if len(folders) <= len(within):
            return 0
        removed = _remove_file(last, folders[-1])
        os.fsync(folders[-1])
        return removed


def remove_unfinished_writes(root: Path, uuid: str) -> None:
    """Remove what processes that were killed had begun to write of a checkpoint. Raises OSError."""
    with _open_folders(root, (STAGING_FOLDER,)) as folders:
        if len(folders) < 2:
            return
        with os.scandir(folders[1]) as found:
            names = [entry.name for entry in found if entry.name.startswith(f"{uuid}.")]
        for name in names:
            with suppress(FileNotFoundError):
                os.unlink(name, dir_fd=folders[1])


def sync_folder(root: Path, parts: tuple[str, ...]) -> None:
    """Make the removal of a folder's entries, and of the folder itself, outlast a loss of power.
    Raises OSError and ValueError as `remove_folder`.
    """
    check_parts(parts)
    with _open_folders(root, parts) as folders:
        os.fsync(folders[-1])


def remove_empty_folders(root: Path, parts: tuple[str, ...]) -> None:
    """Remove the folder ROOT/part/part/... and the folders above it, except the root, if they are
    empty. Raises OSError and ValueError as `remove_folder`.
    """
    check_parts(parts)
    with _open_folders(root, parts) as folders:
        _remove_if_empty(folders, parts)


def check_parts(parts: tuple[str, ...]) -> None:
    """Raise ValueError unless all parts are plain names."""
    if len(parts) < 2 or not all(_PART.fullmatch(part) for part in parts):
        raise ValueError(f"{parts} is not the folder of a checkpoint")


def _remove_if_empty(folders: list[int], parts: tuple[str, ...]) -> None:
    """Remove the deepest existing folder of the path, and those above it, if they are empty;
    `folders` are the root and the open folders below it.
    """
    for folder, name in reversed(list(zip(folders, parts, strict=False))):
        with suppress(OSError):
            os.rmdir(name, dir_fd=folder)


@contextmanager
def _open_folders(root: Path, parts: tuple[str, ...]) -> Iterator[list[int]]:
    """Open the root and those folders of the path that exist; returns their descriptors."""
    with ExitStack() as stack:
        folders = [os.open(root, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)]
        stack.callback(os.close, folders[0])
        for part in parts:
            try:
                folder = os.open(part, _FOLDER, dir_fd=folders[-1])
            except OSError as error:
                if not _is_absence(error):
                    raise
                break
            stack.callback(os.close, folder)
            folders.append(folder)
        yield folders


def _remove_entry(parent: int, name: str, depth: int) -> Iterator[int]:
    """Remove the entry `name` of an open folder: a folder with all it holds, a link itself."""
    try:
        folder = os.open(name, _FOLDER, dir_fd=parent)
    except OSError as error:
        if not _is_absence(error):
            raise
        yield _remove_file(name, parent)
        return
    try:
        if depth > DEPTH_MAX:
            raise FolderRefused(f"folders are nested more than {DEPTH_MAX} levels deep")
        while entries := _next_entries(folder):
            for entry, is_folder in entries:
                yield from _remove_known_entry(folder, entry, is_folder, depth)
            yield 0
    finally:
        os.close(folder)
    with suppress(FileNotFoundError):
        os.rmdir(name, dir_fd=parent)


def _remove_known_entry(folder: int, entry: str, is_folder: bool, depth: int) -> Iterator[int]:
    if is_folder:
        yield from _remove_entry(folder, entry, depth + 1)
    else:
        yield _remove_file(entry, folder)


def _remove_file(name: str, folder: int) -> int:
    """Remove an entry of an open folder that is no folder; how many files that were."""
    try:
        os.unlink(name, dir_fd=folder)
    except FileNotFoundError:
        return 0
    return 1


def _next_entries(folder: int) -> list[tuple[str, bool]]:
    with os.scandir(folder) as found:
        some = islice(found, ENTRIES_PER_STEP)
        return [(entry.name, entry.is_dir(follow_symlinks=False)) for entry in some]


def _is_absence(error: OSError) -> bool:
    """Whether the error means that the path does not exist or is a file or a link."""
    return error.errno in (errno.ENOENT, errno.ENOTDIR, errno.ELOOP)


def _open_file(root: Path, path: str) -> BinaryIO:
    """Open a regular file below the root without following a link. Raises NoSuchFile."""
    *parts, name = path.split("/")
    try:
        with _open_folders(root, tuple(parts)) as folders:
            if len(folders) <= len(parts):
                raise NoSuchFile("is not there")
            descriptor = os.open(name, _FILE, dir_fd=folders[-1])
    except OSError:
        raise NoSuchFile("is not there") from None
    if not stat.S_ISREG(os.fstat(descriptor).st_mode):
        os.close(descriptor)
        raise NoSuchFile("is no file")
    return os.fdopen(descriptor, "rb")


def _blocks(stream: BinaryIO, size: int) -> Iterator[bytes]:
    with stream:
        while size > 0 and (block := stream.read(min(_BLOCK_BYTES, size))):
            size -= len(block)
            yield block
