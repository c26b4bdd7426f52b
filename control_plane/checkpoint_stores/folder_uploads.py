"""Files that the server stores in a folder for users, and the files of a checkpoint's folder.

As in `folder_files`, a path is walked part by part with descriptors that refuse links.
"""

import os
import shutil
import stat
from collections.abc import Iterator
from contextlib import ExitStack, suppress
from pathlib import Path
from secrets import token_hex
from typing import BinaryIO

_FOLDER = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC
_NEW_FILE = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC
# Without a name until it is whole, so that a process that is killed leaves nothing.
# Linux alone has such files; elsewhere a folder cannot be opened for writing.
_UNNAMED_FILE = os.O_WRONLY | getattr(os, "O_TMPFILE", 0) | os.O_CLOEXEC
# Where there are no such files, what a write that was cut short leaves; it goes with its
# checkpoint's folder.
_STAGED = ".detcloud-upload-"
_BLOCK_BYTES = 1024 * 1024


def store_file(root: Path, path: str, source: Path) -> bool:
    """Store a file at ROOT/path, whole or not at all, so that it outlasts a loss of power; False
    where there is one already. Raises OSError, for a link on the way too.
    """
    root.mkdir(parents=True, exist_ok=True)
    *parts, name = path.split("/")
    with ExitStack() as stack:
        folder = os.open(root, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        stack.callback(os.close, folder)
        for part in parts:
            with suppress(FileExistsError):
                os.mkdir(part, dir_fd=folder)
                os.fsync(folder)
            folder = os.open(part, _FOLDER, dir_fd=folder)
            stack.callback(os.close, folder)
        return _publish_copy(folder, name, source)


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
        elif not entry.name.startswith(_STAGED):
            status = entry.stat(follow_symlinks=False)
            if stat.S_ISREG(status.st_mode):
                yield f"{above}{entry.name}", status.st_size


def _publish_copy(folder: int, name: str, source: Path) -> bool:
    """Copy a file into an open folder without a name, or where file systems know no such files
    under another one, then give it its own.
    """
    try:
        descriptor = os.open(".", _UNNAMED_FILE, 0o644, dir_fd=folder)
    except OSError:
        return _publish_named_copy(folder, name, source)
    try:
        with source.open("rb") as reader, os.fdopen(descriptor, "wb") as writer:
            _write_durably(reader, writer)
            os.link(f"/proc/self/fd/{descriptor}", name, dst_dir_fd=folder)
    except FileExistsError:
        return False
    except FileNotFoundError:
        # There is no /proc, in some containers.
        return _publish_named_copy(folder, name, source)
    os.fsync(folder)
    return True


def _publish_named_copy(folder: int, name: str, source: Path) -> bool:
    staged = f"{_STAGED}{token_hex(8)}"
    try:
        descriptor = os.open(staged, _NEW_FILE, 0o644, dir_fd=folder)
        with source.open("rb") as reader, os.fdopen(descriptor, "wb") as writer:
            _write_durably(reader, writer)
        os.link(staged, name, src_dir_fd=folder, dst_dir_fd=folder, follow_symlinks=False)
    except FileExistsError:
        return False
    finally:
        with suppress(FileNotFoundError):
            os.unlink(staged, dir_fd=folder)
        os.fsync(folder)
    return True


def _write_durably(reader: BinaryIO, writer: BinaryIO) -> None:
    shutil.copyfileobj(reader, writer, _BLOCK_BYTES)
    writer.flush()
    os.fsync(writer.fileno())
