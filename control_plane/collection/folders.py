"""Removing folders of checkpoints below a root on this machine, whatever trials have put there.

A path is walked part by part with descriptors that refuse links, so a planted link leads nowhere:
it is removed itself, or ends the walk. Nothing is named by a text that a trial wrote: callers
build paths from ids, and every part is checked here once more. What is gone already is no error.
"""

import errno
import os
import re
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, suppress
from itertools import islice
from pathlib import Path

# Entries removed, or looked at, between two rests.
ENTRIES_PER_REST = 64
# Folders within each other; each holds a descriptor open while what is in it is removed.
DEPTH_MAX = 100

_FOLDER = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC
_PART = re.compile(r"[A-Za-z0-9][A-Za-z0-9_-]*")


class FolderRefused(OSError):
    """A folder cannot be removed the safe way; the message says which and why."""


class FolderFiles:
    """The CheckpointFiles of a root on this machine."""

    def __init__(self, root: Path) -> None:
        self._root = root

    def remove(self, parts: tuple[str, ...], *, prune: bool = False) -> Iterator[None]:
        return remove_below(self._root, parts, prune=prune)

    def sync(self, parts: tuple[str, ...]) -> None:
        sync(self._root, parts)

    def remove_empty(self, parts: tuple[str, ...]) -> None:
        remove_empty(self._root, parts)

    def place(self, parts: tuple[str, ...]) -> str:
        return str(self._root.joinpath(*parts))


def remove_below(root: Path, parts: tuple[str, ...], *, prune: bool = False) -> Iterator[None]:
    """Removes the folder ROOT/part/part/... and, to `prune`, those above it that are left empty,
    never the root. Where somebody still writes, a folder may be empty because it was just made.

    Rests, by yielding, after every few entries; it may be left at any rest and begun again. What
    was removed is gone for good only after `sync`.

    Raises:
        OSError: the root is missing, or something cannot be removed.
        ValueError: a part is no plain name, or there are fewer than two.
    """
    check_parts(parts)
    with _opened(root, parts[:-1]) as folders:
        if len(folders) == len(parts):
            yield from _removed(folders[-1], parts[-1], 1)
        if prune:
            _prune(folders, parts[:-1])


def sync(root: Path, parts: tuple[str, ...]) -> None:
    """Makes what was removed from a folder outlast a loss of power, and the folder's own removal.
    Raises OSError and ValueError as `remove_below`.
    """
    check_parts(parts)
    with _opened(root, parts) as folders:
        os.fsync(folders[-1])


def remove_empty(root: Path, parts: tuple[str, ...]) -> None:
    """Removes the folder ROOT/part/part/... and those above it, never the root, as far as they
    are empty. Raises OSError and ValueError as `remove_below`.
    """
    check_parts(parts)
    with _opened(root, parts) as folders:
        _prune(folders, parts)


def check_parts(parts: tuple[str, ...]) -> None:
    """Raises ValueError as `remove_below`."""
    if len(parts) < 2 or not all(_PART.fullmatch(part) for part in parts):
        raise ValueError(f"{parts} names no folder of a checkpoint")


def _prune(folders: list[int], parts: tuple[str, ...]) -> None:
    """Removes the last of the parts that is there, and those above it, as far as they are empty;
    `folders` are the root and what is open below it.
    """
    for folder, name in reversed(list(zip(folders, parts, strict=False))):
        with suppress(OSError):
            os.rmdir(name, dir_fd=folder)


@contextmanager
def _opened(root: Path, parts: tuple[str, ...]) -> Iterator[list[int]]:
    """Descriptors of the root and the folders below it, as far as there are such."""
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


def _removed(parent: int, name: str, depth: int) -> Iterator[None]:
    """Removes the entry `name` of an open folder: a folder with all it holds, a link itself."""
    try:
        folder = os.open(name, _FOLDER, dir_fd=parent)
    except OSError as error:
        if not _is_absence(error):
            raise
        with suppress(FileNotFoundError):
            os.unlink(name, dir_fd=parent)
        return
    try:
        if depth > DEPTH_MAX:
            raise FolderRefused(f"folders lie more than {DEPTH_MAX} deep within each other")
        while entries := _some_entries(folder):
            for entry, is_folder in entries:
                yield from _removed_entry(folder, entry, is_folder, depth)
            yield
    finally:
        os.close(folder)
    with suppress(FileNotFoundError):
        os.rmdir(name, dir_fd=parent)


def _removed_entry(folder: int, entry: str, is_folder: bool, depth: int) -> Iterator[None]:
    if is_folder:
        yield from _removed(folder, entry, depth + 1)
        return
    with suppress(FileNotFoundError):
        os.unlink(entry, dir_fd=folder)


def _some_entries(folder: int) -> list[tuple[str, bool]]:
    with os.scandir(folder) as found:
        some = islice(found, ENTRIES_PER_REST)
        return [(entry.name, entry.is_dir(follow_symlinks=False)) for entry in some]


def _is_absence(error: OSError) -> bool:
    """Nothing there, or something that is no folder: a file or a link."""
    return error.errno in (errno.ENOENT, errno.ENOTDIR, errno.ELOOP)
