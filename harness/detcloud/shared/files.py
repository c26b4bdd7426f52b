"""Files that several processes share: JSON objects and whole folders, also untrusted ones.

An object is written beside its place and renamed there, so that no reader sees a part of it.
"""

from __future__ import annotations

import contextlib
import itertools
import json
import os
import stat
from collections.abc import Iterator
from pathlib import Path
from typing import Any

UNTRUSTED_BYTES_MAX = 64 * 1024


def write_atomically(
    path: Path, content: object, *, mode: int = 0o600, owner: tuple[int, int] | None = None
) -> None:
    """Write `content` as JSON to a new file and rename it to `path`, owned by `owner`."""
    new_file = path.with_name(f".{path.name}.new")
    with contextlib.suppress(FileNotFoundError):
        new_file.unlink()
    flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC | os.O_NOFOLLOW
    with os.fdopen(os.open(new_file, flags, mode), "wb") as file:
        if owner is not None:
            os.fchown(file.fileno(), *owner)
        file.write(json.dumps(content).encode())
    new_file.rename(path)


def read_json_object(path: Path) -> dict[str, Any] | None:
    """The JSON object in the file, None where there is none."""
    content = read_regular_file(path, follows_links=True)
    return None if content is None else parse_json_object(content)


def read_untrusted_json_object(path: Path) -> dict[str, Any] | None:
    """The JSON object in a small file that a trial may have written, None where there is none."""
    content = read_regular_file(path, UNTRUSTED_BYTES_MAX)
    return None if content is None else parse_json_object(content)


def read_regular_file(
    path: Path, bytes_max: int = -1, *, follows_links: bool = False
) -> bytes | None:
    """The content of a regular file, or its first `bytes_max` bytes; None if there is no such file.

    A pipe or device in its place is neither waited for nor read.
    """
    flags = os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC
    flags |= 0 if follows_links else os.O_NOFOLLOW
    try:
        with os.fdopen(os.open(path, flags), "rb") as file:
            is_regular = stat.S_ISREG(os.fstat(file.fileno()).st_mode)
            return file.read(bytes_max) if is_regular else None
    except OSError:
        return None


def discard(path: Path) -> None:
    """Delete a file, a link or whatever lies there, a directory with all it holds."""
    if path.is_dir():
        delete_tree(path)
    else:
        path.unlink(missing_ok=True)


def delete_tree(path: Path) -> None:
    """Delete a directory or a link, with any modes and depth, but never the target of a link.

    Nested folders are moved to the top before they are emptied, which needs two descriptors and no
    recursion. Entries that cannot be deleted are left.
    """
    if path.is_symlink():
        path.unlink()
        return
    with contextlib.suppress(OSError):
        top = _open_own_folder(str(path), None)
        try:
            _empty_folder(top)
        finally:
            os.close(top)
        path.rmdir()


def _empty_folder(top: int) -> None:
    """Delete the entries of an open folder."""
    # Nobody who wrote here can have foreseen the names.
    prefix = os.urandom(8).hex()
    fresh_names = (f".{prefix}-{number}" for number in itertools.count())
    left: set[str] = set()
    while names := [name for name in _entry_names(top) if name not in left]:
        for name in names:
            try:
                if _is_folder(name, top):
                    _empty_by_moving(name, top, fresh_names)
                    os.rmdir(name, dir_fd=top)
                else:
                    os.unlink(name, dir_fd=top)
            except FileNotFoundError:
                continue
            except OSError:
                left.add(name)


def _empty_by_moving(name: str, top: int, fresh_names: Iterator[str]) -> None:
    """Delete the files of a folder in `top`, and move its folders beside it."""
    folder = _open_own_folder(name, top)
    try:
        for entry in _entry_names(folder):
            if not _is_folder(entry, folder):
                os.unlink(entry, dir_fd=folder)
                continue
            # Moving a folder needs the permission to write it.
            os.chmod(entry, 0o700, dir_fd=folder)
            os.rename(entry, next(fresh_names), src_dir_fd=folder, dst_dir_fd=top)
    finally:
        os.close(folder)


def _entry_names(folder: int) -> list[str]:
    with os.scandir(folder) as entries:
        return [entry.name for entry in entries]


def _open_own_folder(name: str, parent: int | None) -> int:
    """Open a folder, not a link to one, and restore its owner's permissions."""
    if _is_folder(name, parent):
        os.chmod(name, 0o700, dir_fd=parent)
    flags = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC
    return os.open(name, flags, dir_fd=parent)


def _is_folder(name: str, parent: int | None) -> bool:
    return stat.S_ISDIR(os.stat(name, dir_fd=parent, follow_symlinks=False).st_mode)


def parse_json_object(content: bytes) -> dict[str, Any] | None:
    """The JSON object in the bytes, None for anything else."""
    try:
        parsed = json.loads(content)
    except (ValueError, RecursionError):
        return None
    return parsed if isinstance(parsed, dict) else None
