"""Storing uploaded files in a folder, and listing the files of a checkpoint's folder.

As in `folder_files`, a path is opened part by part with descriptors that refuse links.
"""

import os
import shutil
import stat
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import BinaryIO, NamedTuple

from detcloud.shared.checkpoint_limits import STAGING_FOLDER
from detcloud.shared.staged_files import staged_name

_FOLDER = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC
_NEW_FILE = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC
# The file has no name until the content is whole, so that a killed process leaves nothing. Only
# Linux has unnamed files; elsewhere the flags fail, because a folder cannot be opened for writing.
_UNNAMED_FILE = os.O_WRONLY | getattr(os, "O_TMPFILE", 0) | os.O_CLOEXEC
_BLOCK_BYTES = 1024 * 1024
# More folders than any valid name of a file has.
LISTED_DEPTH_MAX = 600


class UploadPlace(NamedTuple):
    """The place of a file, with open descriptors."""

    root: int
    """The descriptor of the store's root folder."""
    folder: int
    """The descriptor of the folder that contains the file."""
    name: str
    """The name of the file in `folder`."""


def store_file(root: Path, path: str, source: Path) -> bool:
    """Store a copy of the local file `source` at ROOT/path, whole or not at all, and durably.

    Create the root, with parent folders, and the missing folders of the path. Return True if the
    file was stored, and False if the path is taken. Raises OSError, also if a folder of the path is
    a link. The caller has checked that `path` has no `..`.
    """
    with open_place(root, path) as place:
        try:
            descriptor = os.open(".", _UNNAMED_FILE, 0o644, dir_fd=place.folder)
        except OSError:
            return _publish_named_copy(place, path, source)
        try:
            with source.open("rb") as reader, os.fdopen(descriptor, "wb") as writer:
                _write_durably(reader, writer)
                os.link(f"/proc/self/fd/{descriptor}", place.name, dst_dir_fd=place.folder)
        except FileExistsError:
            return False
        except FileNotFoundError:
            # Some containers have no /proc.
            return _publish_named_copy(place, path, source)
        os.fsync(place.folder)
        return True


@contextmanager
def open_place(root: Path, path: str) -> Iterator[UploadPlace]:
    """Open the folder of the file ROOT/path, and create the root and missing folders.

    Parent folders of the root are created as well. New folders below the root survive a loss of
    power. The descriptors are closed at the end. Raises OSError, also if a folder of the path is a
    link.
    """
    root.mkdir(parents=True, exist_ok=True)
    *parts, name = path.split("/")
    top = os.open(root, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    opened = [top]
    try:
        for part in parts:
            opened.append(_open_new_folder(part, opened[-1]))
        yield UploadPlace(top, opened[-1], name)
    finally:
        for descriptor in opened:
            os.close(descriptor)


@contextmanager
def open_staging(root: int) -> Iterator[int]:
    """Open the staging folder in the open folder `root`, and create a missing staging folder.

    Yield the descriptor, which is closed at the end. Raises OSError.
    """
    staging = _open_new_folder(STAGING_FOLDER, root)
    try:
        yield staging
    finally:
        os.close(staging)


def publish_file(staging: int, staged: str, place: UploadPlace) -> bool:
    """Publish the file `staged` of the open folder `staging` at `place`; return True if published.

    Return False, and change nothing, if the place is taken. The staged name stays as a second link.
    Only on a file system without links, the file is renamed. The folder of the place exists and is
    synced here; the caller has synced the file. Raises OSError, also if the staged file is missing.
    """
    try:
        os.link(staged, place.name, src_dir_fd=staging, dst_dir_fd=place.folder)
    except FileExistsError:
        return False
    except FileNotFoundError:
        raise
    except OSError:
        # Some mounted stores have no links. A rename at least publishes only whole files.
        with suppress(FileNotFoundError):
            os.stat(place.name, dir_fd=place.folder, follow_symlinks=False)
            return False
        os.rename(staged, place.name, src_dir_fd=staging, dst_dir_fd=place.folder)
    os.fsync(place.folder)
    return True


def folder_files(folder: int) -> Iterator[tuple[str, int]]:
    """Yield the path below an open folder and the size in bytes of each regular file, recursively.

    Links and files below more than LISTED_DEPTH_MAX folders are skipped. Only two descriptors are
    open at a time, however deep the folders are. Raises OSError if a folder cannot be read.
    """
    waiting: list[tuple[str, ...]] = [()]
    while waiting:
        parts = waiting.pop()
        for name, size in _folder_entries(folder, parts):
            if size is not None:
                yield "/".join((*parts, name)), size
            elif len(parts) < LISTED_DEPTH_MAX:
                waiting.append((*parts, name))


def _folder_entries(top: int, parts: tuple[str, ...]) -> list[tuple[str, int | None]]:
    """Return the regular files and the folders in the folder `top`/parts.

    A file is its name and its size in bytes; a folder is its name and None. Files come first.
    Return an empty list for a removed folder. Raises OSError.
    """
    folder = os.dup(top)
    try:
        for part in parts:
            below = os.open(part, _FOLDER, dir_fd=folder)
            os.close(folder)
            folder = below
        with os.scandir(folder) as found:
            statuses = [(one.name, one.stat(follow_symlinks=False)) for one in found]
    except FileNotFoundError:
        # Another process removed the folder meanwhile.
        return []
    finally:
        os.close(folder)
    files = [(name, one.st_size) for name, one in statuses if stat.S_ISREG(one.st_mode)]
    folders = [(name, None) for name, one in statuses if stat.S_ISDIR(one.st_mode)]
    return [*files, *folders]


def _open_new_folder(name: str, parent: int) -> int:
    """Open the folder `name` in the open folder `parent`; create a missing folder durably.

    Return the descriptor, which the caller closes. Raises OSError, also for a link.
    """
    with suppress(FileExistsError):
        os.mkdir(name, dir_fd=parent)
        os.fsync(parent)
    return os.open(name, _FOLDER, dir_fd=parent)


def _publish_named_copy(place: UploadPlace, path: str, source: Path) -> bool:
    """Copy a local file to the staging folder, publish the copy at `place`, and remove the staged
    name.

    Return False if the place is taken. The removal of the checkpoint finds a copy that a killed
    process left. Raises OSError.
    """
    staged = staged_name(path)
    with open_staging(place.root) as staging:
        try:
            descriptor = os.open(staged, _NEW_FILE, 0o644, dir_fd=staging)
            with source.open("rb") as reader, os.fdopen(descriptor, "wb") as writer:
                _write_durably(reader, writer)
            return publish_file(staging, staged, place)
        finally:
            with suppress(FileNotFoundError):
                os.unlink(staged, dir_fd=staging)


def _write_durably(reader: BinaryIO, writer: BinaryIO) -> None:
    shutil.copyfileobj(reader, writer, _BLOCK_BYTES)
    writer.flush()
    os.fsync(writer.fileno())
