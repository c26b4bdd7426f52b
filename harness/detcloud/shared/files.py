"""Files that several processes share: JSON objects, checksums and folders, trusted or not.

An object is written to a new file that is renamed, so that no reader sees a partial object.
"""

from __future__ import annotations

import contextlib
import hashlib
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
    """Replace the file at `path` by `content` as JSON, with a rename.

    The file at `path` is a new file, without the mode and owner of the old file. The content is not
    flushed to disk. A link at `path` is itself replaced. The parent folder must exist. Two writers
    of a file must not run at the same time. After an error, the file `.NAME.new` may be left beside
    `path`, and the next write replaces it.

    Args:
        mode: the permissions of the file, reduced by the umask.
        owner: the user and group ids of the file. None for the process's own.

    Raises:
        OSError: the file cannot be written, or `path` is a folder. The old file stays.
        TypeError: `content` is no JSON value. NaN and infinities are written, although JSON has
            none. The old file stays.
    """
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
    """Read the JSON object in a file. Follow links, and read a file of any size.

    Return None if the file is missing, unreadable, no regular file or contains no JSON object, for
    example an array, damaged text or an object that is nested too deep. Never wait for a pipe or
    device.
    """
    content = read_regular_file(path, follows_links=True)
    return None if content is None else parse_json_object(content)


def read_untrusted_json_object(path: Path) -> dict[str, Any] | None:
    """Read the JSON object in a file that a trial may have written.

    Do not follow `path` if it is a link, and read at most the first 64 KiB. Return None if the file
    is missing, unreadable, no regular file, or if the bytes read are no JSON object, as in a larger
    file whose object is cut. Never wait for a pipe or device.
    """
    content = read_regular_file(path, UNTRUSTED_BYTES_MAX)
    return None if content is None else parse_json_object(content)


def read_regular_file(
    path: Path, bytes_max: int = -1, *, follows_links: bool = False
) -> bytes | None:
    """Read a regular file, or the first `bytes_max` bytes. -1 reads the whole file.

    Return b"" for an empty file. Return None if the file is missing, unreadable or no regular file.
    A link at `path` counts as no regular file unless `follows_links` is True; links to its folders
    are always followed. Never wait for a pipe or device.
    """
    flags = os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC
    flags |= 0 if follows_links else os.O_NOFOLLOW
    try:
        with os.fdopen(os.open(path, flags), "rb") as file:
            is_regular = stat.S_ISREG(os.fstat(file.fileno()).st_mode)
            return file.read(bytes_max) if is_regular else None
    except OSError:
        return None


def sha256_of(path: Path) -> str:
    """Compute the SHA-256 of a file in hexadecimal. Follow links.

    Raise OSError if the file is missing or unreadable.
    """
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def discard(path: Path) -> None:
    """Delete the file, link or folder at `path`. Do nothing if the path does not exist.

    A folder is deleted as `delete_tree` does: its permissions change first, and entries may be left
    without an error. The target of a link is never deleted. Raise OSError if a file or link cannot
    be deleted.
    """
    if path.is_dir():
        delete_tree(path)
    else:
        path.unlink(missing_ok=True)


def delete_tree(path: Path) -> None:
    """Delete any link, or a folder with all entries, of any permissions and depth.

    The target of a link is never deleted. Do nothing for a missing path or a file that is no link.
    The permissions of the folder and its subfolders are first set to 0700, so that unreadable
    folders can be emptied. Entries that cannot be deleted are left without an error, and with them
    the folder `path`. Raise OSError if the link `path` cannot be deleted. Folders inside subfolders
    are moved into `path` under random names and emptied there, which needs two descriptors and no
    recursion; left folders stay there.
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
    """Delete the entries of an open folder at any depth. The folder itself stays, and stays open.

    Links are deleted, not followed. Permissions of subfolders are set to 0700, those of `top` stay.
    An entry that cannot be deleted stays without an error. Folders inside subfolders are first
    renamed into `top`, where undeletable folders stay under random names. Raise OSError if `top`
    cannot be listed.
    """
    # A random prefix, so that no program can have created entries with these names.
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
    """Delete the files of the folder `name` in the open folder `top`. Move subfolders to `top`.

    First set the permissions of `name` to 0700, so that an unreadable folder can be emptied. Links
    in the folder are deleted, not followed. Moved subfolders get the permissions 0700 and the next
    of `fresh_names`. The folder `name` itself is left empty. Raise OSError if `name` is a link or
    no folder, which then stays unchanged. Raise OSError if an entry cannot be deleted or moved;
    further entries then stay.
    """
    folder = _open_own_folder(name, top)
    try:
        for entry in _entry_names(folder):
            if not _is_folder(entry, folder):
                os.unlink(entry, dir_fd=folder)
                continue
            # Moving a folder needs the permission to write it.
            os.close(_open_own_folder(entry, folder))
            os.rename(entry, next(fresh_names), src_dir_fd=folder, dst_dir_fd=top)
    finally:
        os.close(folder)


def _entry_names(folder: int) -> list[str]:
    with os.scandir(folder) as entries:
        return [entry.name for entry in entries]


def _open_own_folder(name: str, parent: int | None) -> int:
    """Open a folder and set its permissions to 0700. Return the descriptor.

    `parent` is the open parent folder, or None for a path. The caller closes the descriptor. Raise
    OSError for a missing name, a link or another kind of entry, which stays unchanged.
    """
    flags = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC
    try:
        folder = os.open(name, flags, dir_fd=parent)
    except PermissionError:
        # Only a process without root's rights comes here, whose change of a link's target harms
        # nobody else.
        if _is_folder(name, parent):
            os.chmod(name, 0o700, dir_fd=parent)
        return os.open(name, flags, dir_fd=parent)
    try:
        # By the descriptor, because a trial of another user may replace the name by a link.
        os.fchmod(folder, 0o700)
    except OSError:
        os.close(folder)
        raise
    return folder


def _is_folder(name: str, parent: int | None) -> bool:
    return stat.S_ISDIR(os.stat(name, dir_fd=parent, follow_symlinks=False).st_mode)


def parse_json_object(content: bytes) -> dict[str, Any] | None:
    """Parse a JSON object in UTF-8, UTF-16 or UTF-32. Return None if the bytes are anything else.

    Objects that are nested too deep for the parser give None as well. NaN and infinities are
    accepted, although JSON has none. Of repeated keys, the last counts.
    """
    try:
        parsed = json.loads(content)
    except (ValueError, RecursionError):
        return None
    return parsed if isinstance(parsed, dict) else None
