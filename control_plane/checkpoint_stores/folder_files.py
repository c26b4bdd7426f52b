"""The checkpoint files below a root folder on this machine, to which trials may write anything.

A path is opened part by part with descriptors that refuse links, so a planted link cannot redirect
a removal: the link itself is removed, or it ends the walk. Callers build the paths of removals from
ids, never from texts of a trial, and removals check every part again. Removing a missing entry is
no error.
"""

import errno
import os
import re
import secrets
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

# The number of directory entries that a removal reads between two yields.
ENTRIES_PER_STEP = 64
# The limit for nested folders, because each needs an open descriptor. A removal moves deeper
# folders up.
DEPTH_MAX = 100

_BLOCK_BYTES = 256 * 1024
_FOLDER = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC
# O_NONBLOCK, because opening a planted pipe would block forever.
_FILE = os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC
_PART = re.compile(r"[A-Za-z0-9][A-Za-z0-9_-]*")


def open_folder_files(fields: StorageFields) -> "FolderFiles":
    """Return the files of the folder `path` in a specification's `storage`; open nothing yet."""
    return FolderFiles(Path(fields["path"]))


class FolderFiles:
    """The CheckpointFiles of a root folder on this machine, which signs no URLs."""

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
        return FolderPartsUpload(self._root, file.path, file.size, file.md5)

    def end_session(self, session: str) -> None:
        pass


def _folder_names(root: Path, parts: tuple[str, ...]) -> list[str]:
    """Return the sorted names of the folders in ROOT/part/part/..., links excluded.

    Return an empty list if the root or the folder does not exist, or if the path has a file or
    link. Raises OSError if a folder cannot be opened. The caller has checked `parts`.
    """
    with suppress(FileNotFoundError), _open_folders(root, parts) as folders:
        if len(folders) > len(parts):
            with os.scandir(folders[-1]) as found:
                return sorted(entry.name for entry in found if entry.is_dir(follow_symlinks=False))
    return []


def remove_folder(root: Path, parts: tuple[str, ...], *, prune: bool = False) -> Iterator[int]:
    """Remove the folder ROOT/part/part/... with its content.

    Yield 1 after every removed file, and 0 after every few directory entries. The caller may stop
    between yields and start again later. A missing folder is no error. The removal is durable only
    after `sync_folder`.

    Args:
        prune: also remove the folders above that are then empty, except the root. Do not use while
            other processes write: a new folder is empty as well.

    Raises:
        FileNotFoundError: the root is missing.
        OSError: an entry cannot be removed.
        ValueError: `parts` are fewer than two, or have a name that is not plain.
    """
    check_parts(parts)
    with _open_folders(root, parts[:-1]) as folders:
        if len(folders) == len(parts):
            yield from _remove_entry(folders[-1], parts[-1], 1)
        if prune:
            _remove_if_empty(folders, parts[:-1])


def remove_file(root: Path, parts: tuple[str, ...], name: str) -> int:
    """Remove the file ROOT/part/part/.../name, so that the removal survives a loss of power.

    Return the number of removed files: 1, or 0 if the file does not exist or its path has a link.
    A link at the end of the path is removed itself. `name` is a path within the folder. Raises
    ValueError if `name` has an empty part, `.` or `..`. Raises OSError and ValueError like
    `remove_folder`.
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
    """Remove the staged files that killed processes left of a checkpoint's unfinished writes.

    These are the entries of STAGING_FOLDER with names that begin with the checkpoint's UUID. A
    missing STAGING_FOLDER is no error. Raises OSError, also if the root is missing.
    """
    with _open_folders(root, (STAGING_FOLDER,)) as folders:
        if len(folders) < 2:
            return
        with os.scandir(folders[1]) as found:
            names = [entry.name for entry in found if entry.name.startswith(f"{uuid}.")]
        for name in names:
            with suppress(FileNotFoundError):
                os.unlink(name, dir_fd=folders[1])


def sync_folder(root: Path, parts: tuple[str, ...]) -> None:
    """Make earlier removals of a folder's entries, and of the folder itself, survive a loss of
    power.

    If the folder is gone, the nearest existing folder above is synced. Raises OSError and
    ValueError like `remove_folder`.
    """
    check_parts(parts)
    with _open_folders(root, parts) as folders:
        os.fsync(folders[-1])


def remove_empty_folders(root: Path, parts: tuple[str, ...]) -> None:
    """Remove the folder ROOT/part/part/... and the folders above, each if the folder is empty.

    The root stays. Folders that are not empty or cannot be removed are skipped silently. If a
    folder of the path is missing, or a file or link, only the folders above are removed.

    Raises:
        FileNotFoundError: the root is missing.
        OSError: a folder of the path exists and cannot be opened.
        ValueError: as for `remove_folder`.
    """
    check_parts(parts)
    with _open_folders(root, parts) as folders:
        _remove_if_empty(folders, parts)


def check_parts(parts: tuple[str, ...]) -> None:
    """Raise ValueError unless `parts` are two or more plain names.

    A plain name has only ASCII letters, digits, `_` and `-`, and begins with a letter or digit.
    """
    if len(parts) < 2 or not all(_PART.fullmatch(part) for part in parts):
        raise ValueError(f"{parts} is not the folder of a checkpoint")


def _remove_if_empty(folders: list[int], parts: tuple[str, ...]) -> None:
    """Remove the empty folders of a path, deepest first; ignore every OSError.

    `folders` are the descriptors of the root and of the existing folders of the path.
    """
    for folder, name in reversed(list(zip(folders, parts, strict=False))):
        with suppress(OSError):
            os.rmdir(name, dir_fd=folder)


@contextmanager
def _open_folders(root: Path, parts: tuple[str, ...]) -> Iterator[list[int]]:
    """Open the root and the folders of the path, up to the first missing folder, file or link.

    Yield the descriptors, the root's first, and close all descriptors at the end of the block.
    Fewer than 1 + len(parts) descriptors mean that the path does not lead to a folder. Raises
    FileNotFoundError if the root is missing, and other OSErrors if a folder cannot be opened.
    """
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


def _remove_entry(parent: int, name: str, depth: int, top: int | None = None) -> Iterator[int]:
    """Remove the file, link or folder `name` of the open folder `parent`, with a folder's content.

    Yield like `remove_folder`. The target of a link is never touched. A missing entry is no error.
    Raises OSError if the entry cannot be removed.

    Args:
        depth: the number of open folders above the entry's content.
        top: the highest folder of this removal. A folder deeper than DEPTH_MAX is moved into `top`
            and removed from there. None for the highest folder itself.
    """
    if top is not None and depth > DEPTH_MAX:
        with suppress(FileNotFoundError):
            os.rename(name, f"deep-{secrets.token_hex(16)}", src_dir_fd=parent, dst_dir_fd=top)
        yield 0
        return
    try:
        folder = os.open(name, _FOLDER, dir_fd=parent)
    except OSError as error:
        if not _is_absence(error):
            raise
        yield _remove_file(name, parent)
        return
    try:
        highest = folder if top is None else top
        while entries := _next_entries(folder):
            for entry, is_folder in entries:
                if is_folder:
                    yield from _remove_entry(folder, entry, depth + 1, highest)
                else:
                    yield _remove_file(entry, folder)
            yield 0
    finally:
        os.close(folder)
    with suppress(FileNotFoundError):
        os.rmdir(name, dir_fd=parent)


def _remove_file(name: str, folder: int) -> int:
    """Remove the file or link `name` of an open folder. Return 1, or 0 for a missing entry.

    Raises OSError, also for a folder.
    """
    try:
        os.unlink(name, dir_fd=folder)
    except FileNotFoundError:
        return 0
    return 1


def _next_entries(folder: int) -> list[tuple[str, bool]]:
    """Return the first ENTRIES_PER_STEP entries of an open folder: name, and whether a folder."""
    with os.scandir(folder) as found:
        some = islice(found, ENTRIES_PER_STEP)
        return [(entry.name, entry.is_dir(follow_symlinks=False)) for entry in some]


def _is_absence(error: OSError) -> bool:
    """Return whether an error in opening a folder means a missing entry, a file or a link."""
    return error.errno in (errno.ENOENT, errno.ENOTDIR, errno.ELOOP)


def _open_file(root: Path, path: str) -> BinaryIO:
    """Open the regular file ROOT/path for reading, without following links.

    Raises NoSuchFile if the file is missing, is not regular, has a link in its path, or cannot be
    opened. The caller has checked that `path` has no `..`.
    """
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
    """Yield at most `size` bytes of a file in blocks, and close the file at the end.

    Yield fewer bytes if the file has become shorter.
    """
    with stream:
        while size > 0 and (block := stream.read(min(_BLOCK_BYTES, size))):
            size -= len(block)
            yield block
