"""The archive of a folder: an uncompressed tar file with files, folders and links.

The archive contains regular files, folders, and links that stay inside the folder, with modes and
times. Special files, links that lead out, mounts and unreadable files are left out. Links are never
followed. The reader trusts nothing in an archive, because another user may have written it.
"""

from __future__ import annotations

import hashlib
import os
import posixpath
import stat
import tarfile
from collections.abc import Callable, Collection, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import BinaryIO

from detcloud.shared.errors import DetcloudError

EMPTY_FINGERPRINT = hashlib.sha256().hexdigest()
"""The fingerprint of an empty folder."""
MODE_BITS = 0o777
LEFT_OUT_MAX = 20
"""The most names of a report that were left out."""
_COPIED_BYTES = 1 << 20

Keep = Callable[[str], bool]
"""Returns whether a path of the folder is kept. The path of a folder ends with `/`."""


class ArchiveRefused(DetcloudError):
    """An archive of a folder is damaged, or contains names that no packed folder has."""


@dataclass
class FolderContent:
    """The content of a folder, as a walk through the folder has found."""

    fingerprint: str = ""
    """A digest of names, kinds, sizes, times of change and modes. It changes with the content."""
    size_bytes: int = 0
    """The size of all files."""
    entries: int = 0
    """The number of files, folders and links."""
    left_out: list[str] = field(default_factory=list)
    """Names that an archive leaves out, each with the reason; at most LEFT_OUT_MAX."""

    def leave_out(self, name: str, reason: str) -> None:
        """Add a name that an archive leaves out. Ignore further names after LEFT_OUT_MAX."""
        if len(self.left_out) < LEFT_OUT_MAX:
            self.left_out.append(f"{name} ({reason})")


@dataclass(frozen=True)
class FolderRules:
    """The rules by which a folder is walked."""

    keep: Keep = lambda _: True
    """Returns whether a path is kept. Paths that are not kept are not reported as left out."""
    mounts: Collection[str] = ()
    """The paths of mounts in the folder, relative to the folder."""


@dataclass(frozen=True)
class _Entry:
    """A file, folder or link of a folder."""

    name: str
    """The path, relative to the folder."""
    status: os.stat_result
    target: str = ""
    """The target of a link."""


def scan_folder(folder: Path, rules: FolderRules) -> FolderContent:
    """Return the fingerprint and the size of a folder's content. Read no file.

    Raises OSError if the folder itself cannot be read.
    """
    content, digest = FolderContent(), hashlib.sha256()
    for entry in _walk(folder, rules, content):
        status, is_file = entry.status, stat.S_ISREG(entry.status.st_mode)
        times = (status.st_size, status.st_mtime_ns) if is_file else ()
        digest.update(repr((entry.name, status.st_mode, entry.target, times)).encode())
        content.size_bytes += status.st_size if is_file else 0
        content.entries += 1
    content.fingerprint = digest.hexdigest()
    return content


def pack_folder(folder: Path, archive: BinaryIO, rules: FolderRules) -> FolderContent:
    """Write the content of a folder into an archive, and return the content without fingerprint.

    The archive is valid even if files change meanwhile: a file that shrinks is padded with zeros,
    and a file that grows is cut. Files that vanish are skipped. Raises OSError if the folder cannot
    be read or the archive cannot be written.
    """
    content = FolderContent()
    with tarfile.open(fileobj=archive, mode="w", format=tarfile.PAX_FORMAT) as tar:
        for entry in _walk(folder, rules, content):
            _pack_entry(folder, entry, tar, content)
    return content


def unpack_folder(archive: Path, folder: Path) -> None:
    """Create the content of an archive in a folder. Folders that exist stay, and get the modes.

    Each entry must follow its folder's entry, so that nothing is written through a link.

    Raises:
        ArchiveRefused: the archive is damaged, an entry has an unusable name or kind, a link leads
            out of the folder, or a name exists already. Entries before are created.
        OSError: an entry cannot be written.
    """
    folders: dict[str, tarfile.TarInfo] = {}
    try:
        with tarfile.open(archive, "r:") as tar:
            for info in tar:
                _check_entry(info, folders)
                _create_entry(tar, info, folder)
                if info.isdir():
                    folders[info.name] = info
    except FileExistsError as error:
        raise ArchiveRefused(f"{error.filename} exists already") from None
    except (tarfile.TarError, EOFError, ValueError, OverflowError) as error:
        raise ArchiveRefused(f"the archive is damaged: {error}") from None
    # Last, because a folder without write permission accepts no files.
    for name, info in reversed(folders.items()):
        path = folder / name
        path.chmod(info.mode & MODE_BITS)
        os.utime(path, (info.mtime, info.mtime))


def empty_folder(folder: Path, mounts: Collection[str]) -> None:
    """Delete the content of a folder, except mounts and links that lead out of the folder.

    An agent without containers makes such links for mounts. Folders above a kept entry stay. Raises
    OSError.
    """
    content = FolderContent()
    for entry in reversed(list(_walk(folder, FolderRules(mounts=mounts), content))):
        path = folder / entry.name
        if not stat.S_ISDIR(entry.status.st_mode):
            path.unlink(missing_ok=True)
        elif not os.listdir(path):  # noqa: PTH208
            path.rmdir()


def _walk(folder: Path, rules: FolderRules, content: FolderContent) -> Iterator[_Entry]:
    """Yield the entries of a folder that an archive contains, sorted by name.

    A folder precedes the entries in the folder. Names that are left out are added to `content`.
    Raises OSError if the folder cannot be read.
    """
    waiting = [""]
    while waiting:
        prefix = waiting.pop()
        try:
            with os.scandir(folder / prefix) as found:
                entries = sorted(found, key=lambda entry: entry.name)
        except OSError as error:
            if not prefix:
                raise
            content.leave_out(prefix, f"cannot be read: {error.strerror}")
            continue
        below = []
        for entry in entries:
            kept = _kept_entry(folder, prefix + entry.name, rules, content)
            if kept is None:
                continue
            yield kept
            if stat.S_ISDIR(kept.status.st_mode):
                below.append(f"{kept.name}/")
        waiting.extend(reversed(below))


def _kept_entry(
    folder: Path, name: str, rules: FolderRules, content: FolderContent
) -> _Entry | None:
    """Return the entry with this name. None: an archive leaves the entry out."""
    path = folder / name
    try:
        status = path.lstat()
        target = os.readlink(path) if stat.S_ISLNK(status.st_mode) else ""  # noqa: PTH115
    except OSError:
        # The entry has vanished since the listing.
        return None
    mode = status.st_mode
    if not rules.keep(f"{name}/" if stat.S_ISDIR(mode) else name):
        return None
    if name in rules.mounts:
        content.leave_out(name, "a mount")
    elif stat.S_ISLNK(mode) and _leads_out(name, target):
        content.leave_out(name, "a link that leads out of the folder")
    elif not (stat.S_ISREG(mode) or stat.S_ISDIR(mode) or stat.S_ISLNK(mode)):
        content.leave_out(name, "a special file")
    else:
        return _Entry(name, status, target)
    return None


def _leads_out(name: str, target: str) -> bool:
    """Return whether a link with this name leads out of the folder of the archive."""
    place = posixpath.normpath(posixpath.join(posixpath.dirname(name), target))
    return target.startswith("/") or place == ".." or place.startswith("../")


def _pack_entry(folder: Path, entry: _Entry, tar: tarfile.TarFile, content: FolderContent) -> None:
    """Add an entry to an archive and to `content`. Raises OSError if the archive cannot be
    written.
    """
    info = tarfile.TarInfo(entry.name)
    info.mode, info.mtime = entry.status.st_mode & MODE_BITS, entry.status.st_mtime
    if stat.S_ISREG(entry.status.st_mode):
        _pack_file(folder, info, tar, content)
        return
    if entry.target:
        info.type, info.linkname = tarfile.SYMTYPE, entry.target
    else:
        info.type = tarfile.DIRTYPE
    tar.addfile(info)
    content.entries += 1


def _pack_file(
    folder: Path, info: tarfile.TarInfo, tar: tarfile.TarFile, content: FolderContent
) -> None:
    """Add a regular file to an archive. Leave out a file that cannot be read."""
    flags = os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC
    try:
        descriptor = os.open(folder / info.name, flags)
    except FileNotFoundError:
        return
    except OSError as error:
        content.leave_out(info.name, f"cannot be read: {error.strerror}")
        return
    with os.fdopen(descriptor, "rb", buffering=0) as file:
        info.size = os.fstat(descriptor).st_size
        tar.addfile(info, _PaddedFile(file))
    content.size_bytes += info.size
    content.entries += 1


class _PaddedFile:
    """A file for tarfile, which reads exactly the announced size. Missing bytes are zeros."""

    def __init__(self, file: BinaryIO) -> None:
        self._file = file

    def read(self, size: int = 0, /) -> bytes:
        """Return exactly `size` bytes: the next bytes of the file, then zeros."""
        pieces, missing = [], size
        while missing:
            try:
                piece = self._file.read(min(missing, _COPIED_BYTES))
            except OSError:
                piece = b""
            if not piece:
                pieces.append(bytes(missing))
                break
            pieces.append(piece)
            missing -= len(piece)
        return b"".join(pieces)


def _check_entry(info: tarfile.TarInfo, folders: Collection[str]) -> None:
    """Raise ArchiveRefused for an entry that `pack_folder` never writes.

    `folders` are the names of the folders so far.
    """
    shown = f"{info.name!a:.100}"
    parts = info.name.split("/")
    if any(part in ("", ".", "..") for part in parts) or "\0" in info.name:
        raise ArchiveRefused(f"the archive contains the name {shown}")
    parent = posixpath.dirname(info.name)
    if parent and parent not in folders:
        raise ArchiveRefused(f"the archive contains {shown} without its folder")
    is_plain = info.isreg() and not info.issparse()
    if not (is_plain or info.isdir() or info.issym()):
        raise ArchiveRefused(f"the archive contains the special file {shown}")
    if info.issym() and (not info.linkname or _leads_out(info.name, info.linkname)):
        raise ArchiveRefused(f"the archive contains the link {shown}, which leads out")


def _create_entry(tar: tarfile.TarFile, info: tarfile.TarInfo, folder: Path) -> None:
    """Create an entry of an archive. A folder that exists stays.

    Raises OSError; FileExistsError if the name exists. Raises EOFError if the archive ends early.
    """
    path = folder / info.name
    if info.isdir():
        try:
            path.mkdir(mode=0o700)
        except FileExistsError:
            if not stat.S_ISDIR(path.lstat().st_mode):
                raise
    elif info.issym():
        path.symlink_to(info.linkname)
    else:
        _create_file(tar, info, path)


def _create_file(tar: tarfile.TarFile, info: tarfile.TarInfo, path: Path) -> None:
    """Create a regular file with the content, mode and time of an entry.

    Raises FileExistsError if the name exists, EOFError if the archive ends early, and OSError.
    """
    source = tar.extractfile(info)
    assert source is not None
    flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC
    with os.fdopen(os.open(path, flags, 0o600), "wb") as file:
        missing = info.size
        while missing:
            piece = source.read(min(missing, _COPIED_BYTES))
            if not piece:
                raise EOFError(f"{info.name!a:.100} is not complete")
            file.write(piece)
            missing -= len(piece)
        file.flush()
        os.fchmod(file.fileno(), info.mode & MODE_BITS)
        os.utime(file.fileno(), (info.mtime, info.mtime))
