"""Files that the server stores in a folder for users, and the files of a checkpoint's folder.

As in `folder_files`, a path is walked part by part with descriptors that refuse links.
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
# Without a name until it is whole, so that a process that is killed leaves nothing.
# Linux alone has such files; elsewhere a folder cannot be opened for writing.
_UNNAMED_FILE = os.O_WRONLY | getattr(os, "O_TMPFILE", 0) | os.O_CLOEXEC
_BLOCK_BYTES = 1024 * 1024


class UploadPlace(NamedTuple):
    """The place of a file: its open folder, its name there, and the open root of the store."""

    root: int
    folder: int
    name: str


def store_file(root: Path, path: str, source: Path) -> bool:
    """Store a file at ROOT/path, whole or not at all, so that it outlasts a loss of power; False
    where there is one already. Raises OSError, for a link on the way too.
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
            # There is no /proc, in some containers.
            return _publish_named_copy(place, path, source)
        os.fsync(place.folder)
        return True


@contextmanager
def open_place(root: Path, path: str) -> Iterator[UploadPlace]:
    """Open the folder of ROOT/path, which is made. Raises OSError, for a link on the way too."""
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
    """Open the folder of unfinished writes in an open root, which is made. Raises OSError."""
    staging = _open_new_folder(STAGING_FOLDER, root)
    try:
        yield staging
    finally:
        os.close(staging)


def publish_file(staging: int, staged: str, place: UploadPlace) -> bool:
    """Give a staged file its place; False where there is one already. Raises OSError.

    The staged name stays, but where the file system has no links.
    """
    try:
        os.link(staged, place.name, src_dir_fd=staging, dst_dir_fd=place.folder)
    except FileExistsError:
        return False
    except FileNotFoundError:
        raise
    except OSError:
        # Some mounted stores have no links; there a rename keeps the file whole at least.
        with suppress(FileNotFoundError):
            os.stat(place.name, dir_fd=place.folder, follow_symlinks=False)
            return False
        os.rename(staged, place.name, src_dir_fd=staging, dst_dir_fd=place.folder)
    os.fsync(place.folder)
    return True


def folder_files(folder: int, above: str = "") -> Iterator[tuple[str, int]]:
    """The path below an open folder, and the size, of each file in it; links are none."""
    with os.scandir(folder) as found:
        entries = list(found)
    for entry in entries:
        if entry.is_dir(follow_symlinks=False):
            below = os.open(entry.name, _FOLDER, dir_fd=folder)
            try:
                yield from folder_files(below, f"{above}{entry.name}/")
            finally:
                os.close(below)
        else:
            status = entry.stat(follow_symlinks=False)
            if stat.S_ISREG(status.st_mode):
                yield f"{above}{entry.name}", status.st_size


def _open_new_folder(name: str, parent: int) -> int:
    """Open a folder, which is made so that it outlasts a loss of power."""
    with suppress(FileExistsError):
        os.mkdir(name, dir_fd=parent)
        os.fsync(parent)
    return os.open(name, _FOLDER, dir_fd=parent)


def _publish_named_copy(place: UploadPlace, path: str, source: Path) -> bool:
    """Copy a file to a name that its checkpoint's removal finds, then give it its own."""
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
