"""Objects as files below one directory: the store of a laptop cluster.

Every path is walked part by part from the root with descriptors that refuse links, since trials
write below the same root: a link planted there leads nowhere. Content is written to a file in
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
    Key,
    KeyInvalid,
    Listed,
    Method,
    ObjectConflict,
    ObjectMissing,
    SignedUrl,
    UrlSigner,
)

_PARTIAL = ".partial"
_PARTIAL_SECONDS_MAX = 24 * 3600
_BLOCK_BYTES = 256 * 1024
_FOLDER = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC
# Without O_NONBLOCK, opening a planted pipe would wait for ever.
_FILE = os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC


class DirectoryStore:
    """An ObjectStore in `root`, which is created when missing.

    Needs a local file system with hard links. `signer` makes the URLs that the API's own object
    routes accept.
    """

    def __init__(self, root: Path, signer: UrlSigner) -> None:
        self._root = root.resolve()
        self._partial = self._root / _PARTIAL
        self._signer = signer
        self._partial.mkdir(parents=True, exist_ok=True)
        self._sweep_partial()

    def put(self, key: Key, content: bytes | Iterable[bytes], *, if_absent: bool = False) -> bool:
        if if_absent and self.size(key) is not None:
            return False
        temporary = self._partial / secrets.token_hex(16)
        try:
            _write(temporary, (content,) if isinstance(content, bytes) else content)
            with self._folder(key, create=True) as folder:
                return _publish(temporary, key, folder, if_absent)
        finally:
            temporary.unlink(missing_ok=True)

    def get(self, key: Key, *, start: int = 0, length: int | None = None) -> Iterator[bytes]:
        blocks = self._blocks(key, start, length)
        next(blocks)  # Opens the file; a generator that has begun also closes it when dropped.
        return blocks

    def size(self, key: Key) -> int | None:
        try:
            with self._folder(key) as folder:
                found = os.stat(key.name, dir_fd=folder, follow_symlinks=False)
        except (ObjectMissing, FileNotFoundError):
            return None
        return found.st_size if stat.S_ISREG(found.st_mode) else None

    def list(self, folder: Key) -> Iterator[Listed]:
        try:
            with self._folder(folder) as parent:
                yield from _listed(folder.text, parent)
        except ObjectMissing:
            return

    def delete(self, key: Key) -> None:
        if self.size(key) is None:
            return
        try:
            with self._folder(key) as folder:
                os.unlink(key.name, dir_fd=folder)
                os.fsync(folder)
        except (ObjectMissing, FileNotFoundError):
            return

    def signed_url(
        self,
        method: Method,
        key: Key,
        *,
        size: int | None = None,
        sha256: str | None = None,
        expires_ms: int,
    ) -> SignedUrl:
        return self._signer.sign(method, key, size=size, sha256=sha256, expires_ms=expires_ms)

    def _blocks(self, key: Key, start: int, length: int | None) -> Generator[bytes, None, None]:
        with self._open(key) as file:
            yield b""
            file.seek(start)
            remaining = length
            while remaining is None or remaining > 0:
                wanted = _BLOCK_BYTES if remaining is None else min(_BLOCK_BYTES, remaining)
                if not (block := file.read(wanted)):
                    return
                remaining = None if remaining is None else remaining - len(block)
                yield block

    def _open(self, key: Key) -> BinaryIO:
        try:
            with self._folder(key) as folder:
                descriptor = os.open(key.name, _FILE, dir_fd=folder)
        except OSError as error:
            if _is_absence(error):
                raise ObjectMissing(key) from None
            raise
        if not stat.S_ISREG(os.fstat(descriptor).st_mode):
            os.close(descriptor)
            raise ObjectMissing(key)
        return os.fdopen(descriptor, "rb")

    @contextmanager
    def _folder(self, key: Key, *, create: bool = False) -> Iterator[int]:
        """The descriptor of the folder that holds `key`.

        Raises:
            ObjectMissing: there is none (when not creating).
            ObjectConflict: a part of the path is no folder (when creating).
        """
        with ExitStack() as opened:
            folder = os.open(self._root, _FOLDER)
            opened.callback(os.close, folder)
            for part in key.parts[:-1]:
                try:
                    folder = _descend(folder, part, create)
                except OSError as error:
                    if not _is_absence(error):
                        raise
                    raise (ObjectConflict(key) if create else ObjectMissing(key)) from None
                opened.callback(os.close, folder)
            yield folder

    def _sweep_partial(self) -> None:
        """Removes what writers that died long ago have left."""
        for path in self._partial.iterdir():
            try:
                if time.time() - path.lstat().st_mtime > _PARTIAL_SECONDS_MAX:
                    path.unlink()
            except FileNotFoundError:
                continue


def _write(path: Path, content: Iterable[bytes]) -> None:
    with path.open("xb") as file:
        for block in content:
            file.write(block)
        file.flush()
        os.fsync(file.fileno())


def _publish(temporary: Path, key: Key, folder: int, if_absent: bool) -> bool:
    try:
        if if_absent:
            os.link(temporary, key.name, dst_dir_fd=folder)
        else:
            os.replace(temporary, key.name, dst_dir_fd=folder)
    except FileExistsError:
        found = os.stat(key.name, dir_fd=folder, follow_symlinks=False)
        if not stat.S_ISREG(found.st_mode):
            raise ObjectConflict(key) from None
        return False
    except IsADirectoryError:
        raise ObjectConflict(key) from None
    os.fsync(folder)
    return True


def _descend(folder: int, part: str, create: bool) -> int:
    if create:
        try:
            os.mkdir(part, dir_fd=folder)
            os.fsync(folder)
        except FileExistsError:
            pass
    return os.open(part, _FOLDER, dir_fd=folder)


def _listed(prefix: str, parent: int) -> Iterator[Listed]:
    """Walks the folder `prefix`, whose last part lies in the open folder `parent`."""
    try:
        descriptor = os.open(prefix.rpartition("/")[2], _FOLDER, dir_fd=parent)
    except OSError as error:
        if _is_absence(error):
            return
        raise
    try:
        with os.scandir(descriptor) as found:
            entries = sorted(found, key=_key_order)
        for entry in entries:
            if entry.is_dir(follow_symlinks=False):
                yield from _listed(f"{prefix}/{entry.name}", descriptor)
            elif (listed := _listed_file(prefix, entry)) is not None:
                yield listed
    finally:
        os.close(descriptor)


def _listed_file(prefix: str, entry: os.DirEntry[str]) -> Listed | None:
    """None for what is no object: a link, a pipe, or a name a trial chose that no key can have."""
    try:
        if not entry.is_file(follow_symlinks=False):
            return None
        return Listed(Key(f"{prefix}/{entry.name}"), entry.stat(follow_symlinks=False).st_size)
    except (KeyInvalid, FileNotFoundError):
        return None


def _key_order(entry: os.DirEntry[str]) -> bytes:
    """A folder sorts as its keys do, with the slash: `a.b` comes before `a/b`."""
    slash = "/" if entry.is_dir(follow_symlinks=False) else ""
    return os.fsencode(entry.name + slash)


def _is_absence(error: OSError) -> bool:
    return error.errno in (errno.ENOENT, errno.ENOTDIR, errno.ELOOP)
