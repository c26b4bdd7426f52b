"""An ObjectStore in a directory, for a cluster on a laptop. Each object is a file.

Trials write below the same root and may create malicious links. Every path is therefore opened
folder by folder from the root, with descriptors that do not follow links. Content is written to a
file in `.partial`, which is not a valid namespace, and then renamed or linked to its key.
"""

import errno
import os
import secrets
import stat
import time
from collections.abc import Generator, Iterable, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import BinaryIO

from control_plane.objects.store import (
    InvalidKey,
    Method,
    ObjectConflict,
    ObjectKey,
    ObjectNotFound,
    SignedUrl,
    StoredObject,
    UrlSigner,
)

_PARTIAL = ".partial"
_PARTIAL_SECONDS_MAX = 24 * 3600
_BLOCK_BYTES = 256 * 1024
_FOLDER = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC
# Without O_NONBLOCK, opening a pipe that a trial created would block for ever.
_FILE = os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC


class DirectoryObjectStore:
    """An ObjectStore in the directory `root`, which is created if missing.

    The file system must be local and support hard links. The API itself accepts the URLs that
    `signer` signs. Creating the store deletes partial files that are older than a day.
    """

    def __init__(self, root: Path, signer: UrlSigner) -> None:
        self._root = root.resolve()
        self._partial = self._root / _PARTIAL
        self._signer = signer
        self._partial.mkdir(parents=True, exist_ok=True)
        self._delete_stale_partial_files()

    def put(
        self, key: ObjectKey, content: bytes | Iterable[bytes], *, if_absent: bool = False
    ) -> bool:
        """Write an object atomically; see ObjectStore. With `if_absent`, return False if it
        exists.
        """
        if if_absent and self.size(key) is not None:
            return False
        temporary = self._partial / secrets.token_hex(16)
        try:
            _write_file(temporary, (content,) if isinstance(content, bytes) else content)
            with self._open_folder(key, create=True) as folder:
                return _publish(temporary, key, folder, if_absent)
        finally:
            temporary.unlink(missing_ok=True)

    def get(self, key: ObjectKey, *, start: int = 0, length: int | None = None) -> Iterator[bytes]:
        """Return the content of an object in blocks; see ObjectStore. Raises ObjectNotFound."""
        blocks = self._read_blocks(key, start, length)
        next(blocks)  # Opens the file; a generator that has started also closes it when dropped.
        return blocks

    def size(self, key: ObjectKey) -> int | None:
        """Return the size of an object in bytes. Return None for a missing object."""
        try:
            with self._open_folder(key) as folder:
                status = os.stat(key.name, dir_fd=folder, follow_symlinks=False)
        except (ObjectNotFound, FileNotFoundError):
            return None
        return status.st_size if stat.S_ISREG(status.st_mode) else None

    def list_objects(self, folder: ObjectKey) -> Iterator[StoredObject]:
        """Yield all objects whose key begins with `folder/`, sorted by the bytes of the keys."""
        try:
            with self._open_folder(folder) as parent:
                yield from _walk_folder(folder.text, parent)
        except ObjectNotFound:
            return

    def delete(self, key: ObjectKey) -> None:
        """Delete an object. A missing object is no error."""
        if self.size(key) is None:
            return
        try:
            with self._open_folder(key) as folder:
                os.unlink(key.name, dir_fd=folder)
                os.fsync(folder)
        except (ObjectNotFound, FileNotFoundError):
            return

    def signed_url(
        self,
        method: Method,
        key: ObjectKey,
        *,
        size: int | None = None,
        sha256: str | None = None,
        expires_ms: int,
    ) -> SignedUrl:
        """Return a URL for a client without credentials; see ObjectStore."""
        return self._signer.sign(method, key, size=size, sha256=sha256, expires_ms=expires_ms)

    def _read_blocks(
        self, key: ObjectKey, start: int, length: int | None
    ) -> Generator[bytes, None, None]:
        """Yield an empty block after opening the file, then the content from `start` in blocks."""
        with self._open_file(key) as file:
            yield b""
            file.seek(start)
            remaining = length
            while remaining is None or remaining > 0:
                block_bytes = _BLOCK_BYTES if remaining is None else min(_BLOCK_BYTES, remaining)
                if not (block := file.read(block_bytes)):
                    return
                remaining = None if remaining is None else remaining - len(block)
                yield block

    def _open_file(self, key: ObjectKey) -> BinaryIO:
        """Open the file of an object. Raises ObjectNotFound for a missing or irregular file."""
        try:
            with self._open_folder(key) as folder:
                descriptor = os.open(key.name, _FILE, dir_fd=folder)
        except OSError as error:
            if _is_absence(error):
                raise ObjectNotFound(key) from None
            raise
        if not stat.S_ISREG(os.fstat(descriptor).st_mode):
            os.close(descriptor)
            raise ObjectNotFound(key)
        return os.fdopen(descriptor, "rb")

    @contextmanager
    def _open_folder(self, key: ObjectKey, *, create: bool = False) -> Iterator[int]:
        """Open the folder that contains `key`, and yield the descriptor.

        Raises:
            ObjectNotFound: the folder does not exist, and `create` is False.
            ObjectConflict: a part of the path is not a folder, and `create` is True.
        """
        with ExitStack() as opened:
            folder = os.open(self._root, _FOLDER)
            opened.callback(os.close, folder)
            for part in key.parts[:-1]:
                try:
                    folder = _open_subfolder(folder, part, create)
                except OSError as error:
                    if not _is_absence(error):
                        raise
                    raise (ObjectConflict(key) if create else ObjectNotFound(key)) from None
                opened.callback(os.close, folder)
            yield folder

    def _delete_stale_partial_files(self) -> None:
        """Delete the partial files that are older than a day, left by writers that died."""
        for path in self._partial.iterdir():
            try:
                if time.time() - path.lstat().st_mtime > _PARTIAL_SECONDS_MAX:
                    path.unlink()
            except FileNotFoundError:
                continue


def _write_file(path: Path, content: Iterable[bytes]) -> None:
    """Write a new file durably. Raises FileExistsError if the file exists."""
    with path.open("xb") as file:
        for block in content:
            file.write(block)
        file.flush()
        os.fsync(file.fileno())


def _publish(temporary: Path, key: ObjectKey, folder: int, if_absent: bool) -> bool:
    """Move a complete file to the name of its key in the open folder.

    Return False if `if_absent` is True and the object exists. Raises ObjectConflict if something
    other than a regular file has the name.
    """
    try:
        if if_absent:
            os.link(temporary, key.name, dst_dir_fd=folder)
        else:
            os.replace(temporary, key.name, dst_dir_fd=folder)
    except FileExistsError:
        status = os.stat(key.name, dir_fd=folder, follow_symlinks=False)
        if not stat.S_ISREG(status.st_mode):
            raise ObjectConflict(key) from None
        return False
    except IsADirectoryError:
        raise ObjectConflict(key) from None
    os.fsync(folder)
    return True


def _open_subfolder(folder: int, part: str, create: bool) -> int:
    """Open a folder inside an open folder, and return the descriptor. With `create`, create the
    folder if missing.
    """
    if create:
        try:
            os.mkdir(part, dir_fd=folder)
            os.fsync(folder)
        except FileExistsError:
            pass
    return os.open(part, _FOLDER, dir_fd=folder)


def _walk_folder(prefix: str, parent: int) -> Iterator[StoredObject]:
    """Yield the objects below the folder `prefix`, sorted by key.

    Args:
        parent: the descriptor of the open folder that contains the folder `prefix`.
    """
    try:
        descriptor = os.open(prefix.rpartition("/")[2], _FOLDER, dir_fd=parent)
    except OSError as error:
        if _is_absence(error):
            return
        raise
    try:
        with os.scandir(descriptor) as unsorted:
            entries = sorted(unsorted, key=_key_order)
        for entry in entries:
            if entry.is_dir(follow_symlinks=False):
                yield from _walk_folder(f"{prefix}/{entry.name}", descriptor)
            elif (stored := _stored_object(prefix, entry)) is not None:
                yield stored
    finally:
        os.close(descriptor)


def _stored_object(prefix: str, entry: os.DirEntry[str]) -> StoredObject | None:
    """Return a directory entry as an object.

    Return None for a link, a pipe, a deleted file, or a name that is not a valid key.
    """
    try:
        if not entry.is_file(follow_symlinks=False):
            return None
        return StoredObject(
            ObjectKey(f"{prefix}/{entry.name}"), entry.stat(follow_symlinks=False).st_size
        )
    except (InvalidKey, FileNotFoundError):
        return None


def _key_order(entry: os.DirEntry[str]) -> bytes:
    """Return the sort key of a directory entry. A folder sorts with a slash: `a.b` before `a/b`."""
    slash = "/" if entry.is_dir(follow_symlinks=False) else ""
    return os.fsencode(entry.name + slash)


def _is_absence(error: OSError) -> bool:
    """Return whether an error means that no file or folder exists at a path, or that a link is
    there.
    """
    return error.errno in (errno.ENOENT, errno.ENOTDIR, errno.ELOOP)
