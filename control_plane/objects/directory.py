"""The ObjectStore in a directory, for a cluster on a laptop: each object is a file.

Every path is opened folder by folder from the root with descriptors that do not follow links, since
trials write below the same root and may plant links there. Content is written to a file in
`.partial`, which no key can name, and appears under its key by one rename or link.
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
# Without O_NONBLOCK, opening a planted pipe would wait for ever.
_FILE = os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC


class DirectoryObjectStore:
    """An ObjectStore in `root`, which is created when missing.

    Needs a local file system with hard links. `signer` makes signed URLs, which the server itself
    accepts.
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
        blocks = self._read_blocks(key, start, length)
        next(blocks)  # Opens the file; a generator that has started also closes it when dropped.
        return blocks

    def size(self, key: ObjectKey) -> int | None:
        try:
            with self._open_folder(key) as folder:
                status = os.stat(key.name, dir_fd=folder, follow_symlinks=False)
        except (ObjectNotFound, FileNotFoundError):
            return None
        return status.st_size if stat.S_ISREG(status.st_mode) else None

    def list_objects(self, folder: ObjectKey) -> Iterator[StoredObject]:
        try:
            with self._open_folder(folder) as parent:
                yield from _walk_folder(folder.text, parent)
        except ObjectNotFound:
            return

    def delete(self, key: ObjectKey) -> None:
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
        return self._signer.sign(method, key, size=size, sha256=sha256, expires_ms=expires_ms)

    def _read_blocks(
        self, key: ObjectKey, start: int, length: int | None
    ) -> Generator[bytes, None, None]:
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
        """Open the folder that holds `key`, and give its descriptor.

        Raises:
            ObjectNotFound: there is no such folder (when not creating).
            ObjectConflict: a part of the path is no folder (when creating).
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
        """Delete partial files of writers that died long ago."""
        for path in self._partial.iterdir():
            try:
                if time.time() - path.lstat().st_mtime > _PARTIAL_SECONDS_MAX:
                    path.unlink()
            except FileNotFoundError:
                continue


def _write_file(path: Path, content: Iterable[bytes]) -> None:
    with path.open("xb") as file:
        for block in content:
            file.write(block)
        file.flush()
        os.fsync(file.fileno())


def _publish(temporary: Path, key: ObjectKey, folder: int, if_absent: bool) -> bool:
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
    if create:
        try:
            os.mkdir(part, dir_fd=folder)
            os.fsync(folder)
        except FileExistsError:
            pass
    return os.open(part, _FOLDER, dir_fd=folder)


def _walk_folder(prefix: str, parent: int) -> Iterator[StoredObject]:
    """List the objects below the folder `prefix`, whose last part lies in the open folder
    `parent`.
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
    """An entry as an object; None for a link, a pipe, or a name that is no valid key."""
    try:
        if not entry.is_file(follow_symlinks=False):
            return None
        return StoredObject(
            ObjectKey(f"{prefix}/{entry.name}"), entry.stat(follow_symlinks=False).st_size
        )
    except (InvalidKey, FileNotFoundError):
        return None


def _key_order(entry: os.DirEntry[str]) -> bytes:
    """The sort order of an entry. A folder sorts as its keys do, with the slash: `a.b` comes before
    `a/b`.
    """
    slash = "/" if entry.is_dir(follow_symlinks=False) else ""
    return os.fsencode(entry.name + slash)


def _is_absence(error: OSError) -> bool:
    return error.errno in (errno.ENOENT, errno.ENOTDIR, errno.ELOOP)
