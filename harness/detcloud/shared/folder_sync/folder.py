"""Access to the files of a folder without following any link.

Each path is opened part by part from the descriptor of the folder, so that no link and no `..`
leads out of the folder, also while another process changes it.
"""

from __future__ import annotations

import contextlib
import errno
import hashlib
import os
import secrets
import stat
import time
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import BinaryIO

from detcloud.shared.archive_limits import FILES_MAX, NAMES_BYTES_MAX, ArchiveInvalid
from detcloud.shared.archive_names import check_name
from detcloud.shared.errors import DetcloudError
from detcloud.shared.folder_sync.plan import parents_of
from detcloud.shared.folder_sync.synced_names import TEMPORARY_PREFIX

BLOCK_BYTES = 256 * 1024
SETTLED_NS = 2_000_000_000
"""The age at which a file's times prove that its content has not changed since. Some file systems
store times in steps of two seconds.
"""
_NO_LINKS = frozenset((errno.EPERM, errno.ENOTSUP, errno.EOPNOTSUPP, errno.EMLINK, errno.ENOSYS))
"""The errors of file systems that cannot give a file a second name."""
_FOLDER_FLAGS = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC
_FILE_FLAGS = os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC

CHANGED = "the file has changed meanwhile"
LINK, SPECIAL = "is a link", "is a special file"
"""The reasons why paths without contents are left out."""


class FileRefused(DetcloudError):
    """A file was not read or written. The message has the reason without the file's name."""


class FolderReplaced(DetcloudError):
    """Another folder has the path of the folder now, for example after an unmount.

    The files of the former folder do not count as deleted.
    """


@dataclass(frozen=True)
class FileEntry:
    """A regular file of a folder."""

    digest: str
    """The SHA-256 of the content."""
    size: int
    is_executable: bool


@dataclass
class FolderContent:
    """The content of a folder at a time."""

    files: dict[str, FileEntry] = field(default_factory=dict)
    """The files by path, relative to the folder."""
    unknown: dict[str, str] = field(default_factory=dict)
    """The reasons why paths are left out, such as links and large files. A left-out folder stands
    for all paths below it.
    """


class SyncedFolder:
    """A folder of this machine. Only one thread may use the object."""

    def __init__(
        self,
        root: Path,
        *,
        file_bytes_max: int,
        is_synced: Callable[[str], bool] = lambda name: True,
        now_ns: Callable[[], int] = time.time_ns,
    ) -> None:
        """Create the object without reading the folder.

        Args:
            root: the folder. Links in this path are followed.
            file_bytes_max: the most bytes of a file. Larger files are left out.
            is_synced: returns whether a path belongs to the listing. The path of a folder ends with
                `/`.
            now_ns: returns the time of the clock that stamps files.
        """
        self._root = root
        self.file_bytes_max = file_bytes_max
        self.is_synced = is_synced
        self._now_ns = now_ns
        # The device and inode of the folder. None before the folder was opened.
        self._root_identity: tuple[int, int] | None = None
        # The entries of settled files, by path, with the fields that change with the content.
        self._settled: dict[str, tuple[tuple[int, ...], FileEntry]] = {}

    def scan(self) -> FolderContent:
        """Return the content of the folder. Files that changed since the last call are read.

        Raises:
            FileRefused: the folder has too many files.
            FolderReplaced: another folder has this path now.
            OSError: the folder itself cannot be read.
        """
        content = FolderContent()
        settled: dict[str, tuple[tuple[int, ...], FileEntry]] = {}
        names_bytes = 0
        for name, folder, last in self._walk(content):
            names_bytes += len(name.encode())
            if len(content.files) >= FILES_MAX or names_bytes > NAMES_BYTES_MAX:
                raise FileRefused(f"the folder has more than {FILES_MAX} files, or long names")
            try:
                self._read_entry(name, folder, last, content, settled)
            except FileNotFoundError:
                # The file was deleted since the folder was listed.
                continue
            except FileRefused as error:
                content.unknown[name] = str(error)
            except OSError as error:
                content.unknown[name] = f"cannot be read: {error.strerror}"
        self._settled = settled
        return content

    def read(self, name: str, size: int) -> Iterator[bytes]:
        """Yield the first `size` bytes of a file in blocks of at most BLOCK_BYTES.

        A file that grows, such as a log, has the same beginning as at the time of its listing.

        Raises:
            FileRefused: the path is no regular file, or the file is too large.
            ArchiveInvalid: the name is not a plain relative path.
            OSError: the file cannot be read.
        """
        with self._parent(name) as (folder, last), _open_file(folder, last) as file:
            yield from self._blocks(file, size)

    def write(
        self,
        name: str,
        blocks: Iterable[bytes],
        *,
        replaced: str | None,
        is_executable: bool = False,
        backup: Path | None = None,
    ) -> str:
        """Create or replace a file, and return the SHA-256 of the new content. The file changes at
        once, or not at all.

        Args:
            name: the path of the file. Missing folders are created.
            blocks: the new content. An error of the iteration leaves the file unchanged.
            replaced: the SHA-256 of the file that may be replaced. None for a new file.
            is_executable: whether a new file is executable. A replaced file keeps its mode.
            backup: a new file of this machine that gets the replaced content.

        Raises:
            FileRefused: the content is too large, or the present file differs from `replaced`.
            ArchiveInvalid: the name is not a plain relative path.
            OSError: a file or folder cannot be written.
        """
        with self._parent(name, is_created=True) as (folder, last):
            new = f"{TEMPORARY_PREFIX}{secrets.token_hex(8)}"
            flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC
            # A replaced file may be secret, so its new content is secret from the beginning.
            mode = 0o600 if replaced is not None else 0o777 if is_executable else 0o666
            descriptor = os.open(new, flags, mode, dir_fd=folder)
            try:
                with os.fdopen(descriptor, "wb") as file:
                    digest = self._write_blocks(file, blocks)
                    status = self._check(folder, last, replaced, backup)
                    if status is not None:
                        os.fchmod(file.fileno(), stat.S_IMODE(status.st_mode) & 0o777)
                _check_unchanged(folder, last, status)
                if status is not None or not _link(folder, new, last):
                    os.replace(new, last, src_dir_fd=folder, dst_dir_fd=folder)
            finally:
                with contextlib.suppress(FileNotFoundError):
                    os.unlink(new, dir_fd=folder)
        return digest

    def delete(self, name: str, digest: str, *, backup: Path | None = None) -> None:
        """Delete a file with the content of `digest`, and the folders that are empty then.

        Args:
            name: the path of the file.
            digest: the SHA-256 of the file that may be deleted.
            backup: a new file of this machine that gets the content.

        Raises:
            FileRefused: the file has another content.
            ArchiveInvalid: the name is not a plain relative path.
            OSError: the file cannot be deleted.
        """
        with self._parent(name) as (folder, last):
            status = self._check(folder, last, digest, backup)
            _check_unchanged(folder, last, status)
            os.unlink(last, dir_fd=folder)
        for parent in parents_of(name):
            try:
                with self._parent(parent) as (folder, last):
                    os.rmdir(last, dir_fd=folder)
            except OSError:
                break

    def _walk(self, content: FolderContent) -> Iterator[tuple[str, int, str]]:
        """Yield the path of each regular file, the descriptor of the folder, and the last part.

        The descriptor is valid until the next call. Other entries are added to `content.unknown`.
        """
        waiting = [""]
        while waiting:
            prefix = waiting.pop()
            try:
                opened = self._open_folder(prefix.split("/")[:-1])
            except OSError as error:
                if not prefix:
                    raise
                if isinstance(error, FileNotFoundError):
                    # The folder was deleted since its parent was listed.
                    continue
                content.unknown[prefix[:-1]] = f"cannot be read: {error.strerror}"
                continue
            try:
                for last, is_folder in self._entries(opened, prefix, content):
                    if is_folder:
                        waiting.append(f"{prefix}{last}/")
                    else:
                        yield f"{prefix}{last}", opened, last
            finally:
                os.close(opened)

    def _entries(
        self, folder: int, prefix: str, content: FolderContent
    ) -> Iterator[tuple[str, bool]]:
        """Yield the name of each file and folder in a folder, and whether each is a folder."""
        with os.scandir(folder) as found:
            entries = sorted(found, key=lambda entry: entry.name)
        for entry in entries:
            name = f"{prefix}{entry.name}"
            is_folder = entry.is_dir(follow_symlinks=False)
            if entry.name.startswith(TEMPORARY_PREFIX):
                continue
            try:
                # A settled file had a valid name, and the check takes longer than the rest.
                if name not in self._settled:
                    check_name(name)
            except ArchiveInvalid as error:
                content.unknown[name] = error.reason
                continue
            if not self.is_synced(f"{name}/" if is_folder else name):
                continue
            if is_folder or entry.is_file(follow_symlinks=False):
                yield entry.name, is_folder
            else:
                content.unknown[name] = LINK if entry.is_symlink() else SPECIAL

    def _read_entry(
        self,
        name: str,
        folder: int,
        last: str,
        content: FolderContent,
        settled: dict[str, tuple[tuple[int, ...], FileEntry]],
    ) -> None:
        """Add a file to `content`, and to `settled` if the times of the file are old enough.

        A file that grows during the reading is listed with its former size. Raise FileRefused if
        the file is too large or no regular file.
        """
        status = os.stat(last, dir_fd=folder, follow_symlinks=False)
        known = self._settled.get(name)
        if known is not None and known[0] == _identity(status):
            settled[name] = known
            content.files[name] = known[1]
            return
        with _open_file(folder, last) as file:
            before = os.fstat(file.fileno())
            sha, size = hashlib.sha256(), 0
            for block in self._blocks(file, before.st_size):
                sha.update(block)
                size += len(block)
            after = os.fstat(file.fileno())
        entry = FileEntry(sha.hexdigest(), size, bool(after.st_mode & stat.S_IXUSR))
        content.files[name] = entry
        is_old = self._now_ns() - max(after.st_mtime_ns, after.st_ctime_ns) > SETTLED_NS
        if is_old and _identity(before) == _identity(after):
            settled[name] = _identity(after), entry

    def _blocks(self, file: BinaryIO, size: int | None = None) -> Iterator[bytes]:
        """Yield the first `size` bytes of a file, or the whole file without a size. Raise
        FileRefused if the file is too large.
        """
        # The size is checked first, so that a huge file is not read up to the limit.
        if os.fstat(file.fileno()).st_size > self.file_bytes_max:
            raise FileRefused(self._size_reason())
        left = self.file_bytes_max + 1 if size is None else size
        while left and (block := file.read(min(BLOCK_BYTES, left))):
            left -= len(block)
            yield block
        if size is None and not left:
            raise FileRefused(self._size_reason())

    def _write_blocks(self, file: BinaryIO, blocks: Iterable[bytes]) -> str:
        """Write the new content, and return the SHA-256. Raise FileRefused for too many bytes."""
        sha, count = hashlib.sha256(), 0
        for block in blocks:
            count += len(block)
            if count > self.file_bytes_max:
                raise FileRefused(self._size_reason())
            sha.update(block)
            file.write(block)
        file.flush()
        return sha.hexdigest()

    def _check(
        self, folder: int, last: str, digest: str | None, backup: Path | None
    ) -> os.stat_result | None:
        """Return the status of the present file, or None if rightly no file exists.

        Copy the content to `backup`. Raise FileRefused if the file differs from `digest`.
        """
        try:
            opened = _open_file(folder, last)
        except FileNotFoundError:
            if digest is None:
                return None
            raise FileRefused(CHANGED) from None
        with opened as file:
            if digest is None:
                raise FileRefused(CHANGED)
            status = os.fstat(file.fileno())
            sha = hashlib.sha256()
            with contextlib.ExitStack() as stack:
                copy = None if backup is None else stack.enter_context(_create_backup(backup))
                for block in self._blocks(file):
                    sha.update(block)
                    if copy is not None:
                        copy.write(block)
        if sha.hexdigest() != digest:
            raise FileRefused(CHANGED)
        return status

    @contextlib.contextmanager
    def _parent(self, name: str, *, is_created: bool = False) -> Iterator[tuple[int, str]]:
        """Provide the descriptor of the folder of a path, and the last part of the path.

        Raises ArchiveInvalid for a path that is not plain, such as a path with `..`.
        """
        check_name(name)
        *folders, last = name.split("/")
        opened = self._open_folder(folders, is_created=is_created)
        try:
            yield opened, last
        finally:
            os.close(opened)

    def _open_folder(self, parts: list[str], *, is_created: bool = False) -> int:
        """Return the descriptor of a folder below the root.

        Raise OSError for links and files, and FolderReplaced for another root.
        """
        opened = os.open(self._root, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        try:
            status = os.fstat(opened)
            identity = status.st_dev, status.st_ino
            if self._root_identity not in (None, identity):
                raise FolderReplaced(f"{self._root} is another folder now")
            self._root_identity = identity
            for part in parts:
                if is_created:
                    with contextlib.suppress(FileExistsError):
                        os.mkdir(part, dir_fd=opened)
                below = os.open(part, _FOLDER_FLAGS, dir_fd=opened)
                os.close(opened)
                opened = below
        except BaseException:
            os.close(opened)
            raise
        return opened

    def _size_reason(self) -> str:
        return f"is larger than {self.file_bytes_max // 1_000_000} MB"


def _open_file(folder: int, last: str) -> BinaryIO:
    """Open a regular file for reading. Raise FileRefused for other files, OSError for links."""
    descriptor = os.open(last, _FILE_FLAGS, dir_fd=folder)
    if not stat.S_ISREG(os.fstat(descriptor).st_mode):
        os.close(descriptor)
        raise FileRefused("is no regular file")
    return os.fdopen(descriptor, "rb")


def _link(folder: int, new: str, last: str) -> bool:
    """Give a file a second name. Unlike a rename, this never replaces a file.

    Return False if the file system has no second names. Raise FileExistsError for a used name.
    """
    try:
        os.link(new, last, src_dir_fd=folder, dst_dir_fd=folder, follow_symlinks=False)
    except OSError as error:
        if error.errno not in _NO_LINKS:
            raise
        return False
    return True


def _create_backup(path: Path) -> BinaryIO:
    path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
    flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC
    return os.fdopen(os.open(path, flags, 0o600), "wb")


def _check_unchanged(folder: int, last: str, status: os.stat_result | None) -> None:
    """Raise FileRefused if a path is no longer the file of `status`. None: no file is expected."""
    try:
        now = os.stat(last, dir_fd=folder, follow_symlinks=False)
    except FileNotFoundError:
        if status is None:
            return
        raise FileRefused(CHANGED) from None
    if status is None or _identity(now) != _identity(status):
        raise FileRefused(CHANGED)


def _identity(status: os.stat_result) -> tuple[int, ...]:
    """Return the fields of a file's status that change with the content."""
    return (
        status.st_dev,
        status.st_ino,
        status.st_size,
        status.st_mtime_ns,
        status.st_ctime_ns,
        status.st_mode,
    )
