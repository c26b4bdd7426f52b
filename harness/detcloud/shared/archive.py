"""Archives of model code: packed the same way everywhere, unpacked without trust.

`pack` is deterministic: one tree has one digest, so that an upload can be skipped when the cluster
has the content already. `extract` and `inspect` accept nothing but regular files and directories
with plain relative names, also behind the last entry, and stop at caps on bytes, entries and
compression ratio. The standard library's extraction filters are not relied on: every
rule is checked here.
"""

import gzip
import hashlib
import io
import os
import shutil
import stat
import tarfile
import tempfile
import unicodedata
import zlib
from collections import deque
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import BinaryIO, Self

from detcloud.shared.errors import DetcloudError

FILE_BYTES_MAX = 95 * 1024 * 1024
FILES_MAX = 100_000
NAME_BYTES_MAX = 1024
# Real trees rarely shrink more than fifty times; deflate itself ends at 1032.
RATIO_MAX = 200
RATIO_FREE_BYTES = 16 * 1024 * 1024

_BLOCK_BYTES = 64 * 1024
_HEADER_BYTES_MAX = 64 * 1024
_GZIP_LEVEL = 6
_BIGGEST_SHOWN = 5


class ArchiveInvalid(DetcloudError):
    """An archive or a tree was refused.

    Attributes:
        name: the entry or file, or "" when the archive as a whole is at fault.
        reason: what is wrong with it and what to do.
    """

    def __init__(self, name: str, reason: str) -> None:
        super().__init__(f"{name!r}: {reason}" if name else reason)
        self.name = name
        self.reason = reason


@dataclass(frozen=True)
class Archive:
    """A packed tree in a temporary file, which is deleted at the end of a `with` block.

    `size` counts the bytes of the compressed file, `file_bytes` those of the files in it.
    """

    path: Path
    sha256: str
    size: int
    file_bytes: int
    files: int

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.path.unlink(missing_ok=True)


@dataclass(frozen=True)
class ArchiveContents:
    """Counts of what an archive holds: regular files, directories and the files' bytes in all."""

    files: int
    directories: int
    file_bytes: int


def pack(
    root: Path,
    keep: Callable[[str], bool] = lambda name: True,
    *,
    bytes_max: int = FILE_BYTES_MAX,
    files_max: int = FILES_MAX,
) -> Archive:
    """Pack `root` into a temporary `.tar.gz`; the caller deletes it, or uses it with `with`.

    Args:
        keep: is asked about every path relative to `root` with `/` between its parts, a directory
            with `/` at its end; a directory that is not kept is not entered.
        bytes_max: limit on the sum of the files' bytes.

    A link to a file or directory inside `root` is stored as what it points to.

    Raises:
        ArchiveInvalid: over a limit (the biggest files are named), a link that leaves `root`,
            points to nothing or to a folder around it, a special file, or a name that `extract`
            would refuse.
    """
    sources = _scan_folder(root, keep, files_max)
    _check_size(sources, bytes_max)
    handle, name = tempfile.mkstemp(prefix="detcloud-", suffix=".tar.gz")
    path = Path(name)
    try:
        with os.fdopen(handle, "wb") as file:
            tar_bytes = _write_tar(file, sources)
        size = path.stat().st_size
        _check_ratio(tar_bytes, size)
    except BaseException:
        path.unlink()
        raise
    files = sum(not source.is_directory for source in sources)
    total = sum(source.size for source in sources)
    return Archive(path, sha256_of(path), size, total, files)


def extract(
    archive: Path,
    destination: Path,
    *,
    bytes_max: int = FILE_BYTES_MAX,
    files_max: int = FILES_MAX,
) -> None:
    """Unpack into `destination`, which appears complete or not at all.

    The files are written to a new folder next to it, which is renamed at the end. Modes are 0755
    for directories and executable files and 0644 for the rest; owners and times are not restored.

    Raises:
        ArchiveInvalid: the first rule broken, with the name of the entry.
        FileExistsError: `destination` exists and is not an empty directory.
    """
    destination.parent.mkdir(parents=True, exist_ok=True)
    if destination.exists() and (not destination.is_dir() or any(destination.iterdir())):
        raise FileExistsError(f"{destination} exists; an archive is unpacked into a new folder")
    fresh = Path(tempfile.mkdtemp(prefix=".extract-", dir=destination.parent))
    try:
        for member, content in _read_members(archive, bytes_max, files_max):
            _write_member(fresh, member, content)
        fresh.chmod(0o755)
        fresh.rename(destination)
    except BaseException:
        shutil.rmtree(fresh, ignore_errors=True)
        raise


def inspect(
    archive: Path, *, bytes_max: int = FILE_BYTES_MAX, files_max: int = FILES_MAX
) -> ArchiveContents:
    """Check all that `extract` checks, to the last byte, and write nothing; the counts.

    Raises:
        ArchiveInvalid: as `extract` does.
    """
    files = directories = file_bytes = 0
    for member, content in _read_members(archive, bytes_max, files_max):
        if member.is_directory:
            directories += 1
            continue
        files += 1
        file_bytes += sum(len(block) for block in content)
    return ArchiveContents(files, directories, file_bytes)


def sha256_of(path: Path) -> str:
    """The SHA-256 of a file in hexadecimal, read in blocks."""
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


class NameChecker:
    """A check of relative names, each for itself and against those before it.

    Two spellings that a file system may fold into one (case, Unicode normalisation, invisible
    characters) clash, in any part of the path, since the second would overwrite the first.
    """

    def __init__(self) -> None:
        self._claims: dict[str, tuple[str, bool]] = {}
        self._seen: set[str] = set()

    def add(self, name: str, is_directory: bool) -> None:
        """Check one name; ArchiveInvalid if it is unsafe, used already, or clashes with another."""
        check_name(name)
        if name in self._seen:
            raise ArchiveInvalid(name, "it appears twice")
        self._seen.add(name)
        parts = name.split("/")
        for depth in range(1, len(parts)):
            self._claim("/".join(parts[:depth]), is_directory=True)
        self._claim(name, is_directory)

    def _claim(self, name: str, is_directory: bool) -> None:
        spelling, known = self._claims.setdefault(_folded_name(name), (name, is_directory))
        if spelling != name:
            raise ArchiveInvalid(name, f"it clashes with {spelling!r} on some file systems")
        if known != is_directory:
            raise ArchiveInvalid(name, "it is used both as a file and as a directory")


def check_name(name: str) -> None:
    """Check that a name is a plain relative path in canonical form, `part/part`.

    Raises:
        ArchiveInvalid: empty, absolute, with a drive, `.`, `..`, an empty part, a backslash, a
            control character or NUL, too long, or not valid Unicode.
    """
    if not name:
        raise ArchiveInvalid(name, "an entry has no name")
    if name.startswith("/") or (name[1:2] == ":" and name[0].isalpha()):
        raise ArchiveInvalid(name, "the name must be relative")
    if "\\" in name:
        raise ArchiveInvalid(name, "the name must not hold a backslash")
    if any(unicodedata.category(character) in ("Cc", "Cs") for character in name):
        raise ArchiveInvalid(name, "the name must not hold control characters or broken Unicode")
    parts = name.split("/")
    if any(part in ("", ".", "..") for part in parts):
        raise ArchiveInvalid(name, "the name must not hold '.', '..' or empty parts")
    longest = max(len(part.encode()) for part in parts)
    if longest > 255 or len(name.encode()) > NAME_BYTES_MAX:
        raise ArchiveInvalid(name, f"the name is longer than {NAME_BYTES_MAX} bytes (255 a part)")


@dataclass(frozen=True)
class _Source:
    """A file or directory to pack; `path` is where the name leads to through links."""

    name: str
    path: Path
    is_directory: bool
    size: int
    executable: bool


@dataclass(frozen=True)
class _Member:
    name: str
    is_directory: bool
    executable: bool


def _scan_folder(root: Path, keep: Callable[[str], bool], files_max: int) -> list[_Source]:
    if not root.is_dir():
        raise ArchiveInvalid(str(root), "there is no such directory")
    checker = NameChecker()
    sources: list[_Source] = []
    try:
        for source in _walk_folder(root.resolve(), "", root.resolve(), (), keep):
            checker.add(source.name, source.is_directory)
            sources.append(source)
            if len(sources) > files_max:
                raise ArchiveInvalid(str(root), f"it holds more than {files_max} files")
    except OSError as error:
        raise ArchiveInvalid(str(error.filename), f"it could not be read: {error}") from None
    return sorted(sources, key=lambda source: source.name.split("/"))


def _walk_folder(
    folder: Path, prefix: str, root: Path, ancestors: tuple[Path, ...], keep: Callable[[str], bool]
) -> Iterator[_Source]:
    """Yield what is kept below `folder`; `ancestors` are the real folders around it."""
    ancestors = (*ancestors, folder)
    for entry in sorted(folder.iterdir()):
        name = f"{prefix}{entry.name}"
        if not keep(f"{name}/" if entry.is_dir() else name):
            continue
        target = _resolve_link(entry, name, root)
        mode = target.stat().st_mode
        if stat.S_ISDIR(mode):
            if target in ancestors:
                raise ArchiveInvalid(name, "the link leads to a folder around itself")
            yield _Source(name, target, True, 0, False)
            yield from _walk_folder(target, f"{name}/", root, ancestors, keep)
        elif stat.S_ISREG(mode):
            yield _Source(name, target, False, target.stat().st_size, bool(mode & stat.S_IXUSR))
        else:
            raise ArchiveInvalid(name, "it is neither a file nor a directory; ignore or remove it")


def _resolve_link(entry: Path, name: str, root: Path) -> Path:
    if not entry.is_symlink():
        return entry
    try:
        target = entry.resolve(strict=True)
    except (OSError, RuntimeError):
        raise ArchiveInvalid(name, "the link points to nothing; ignore or remove it") from None
    if not target.is_relative_to(root):
        raise ArchiveInvalid(name, f"the link leads out of the folder, to {target}; copy it in")
    return target


def _check_size(sources: list[_Source], bytes_max: int) -> None:
    total = sum(source.size for source in sources)
    if total <= bytes_max:
        return
    biggest = sorted(sources, key=lambda source: -source.size)[:_BIGGEST_SHOWN]
    names = ", ".join(f"{source.name} ({_mebibytes(source.size)})" for source in biggest)
    raise ArchiveInvalid(
        "",
        f"the files hold {_mebibytes(total)}, the limit is {_mebibytes(bytes_max)}; "
        f"the biggest are {names}; a .detignore leaves files out",
    )


def _mebibytes(size: int) -> str:
    return f"{size / 2**20:.1f} MiB"


def _check_ratio(tar_bytes: int, archive_bytes: int) -> None:
    if tar_bytes > max(RATIO_FREE_BYTES, RATIO_MAX * archive_bytes):
        raise ArchiveInvalid(
            "",
            f"the content expands more than {RATIO_MAX} times, as a bomb does; "
            "leave out files that hold one byte over and over",
        )


def _write_tar(file: BinaryIO, sources: list[_Source]) -> int:
    """Write the archive; its bytes before compression, headers and padding included."""
    with gzip.GzipFile("", "wb", _GZIP_LEVEL, file, mtime=0) as stream:
        with tarfile.open(fileobj=stream, mode="w", format=tarfile.PAX_FORMAT) as tar:
            for source in sources:
                info = tarfile.TarInfo(source.name)
                info.mode = 0o755 if source.is_directory or source.executable else 0o644
                if source.is_directory:
                    info.type = tarfile.DIRTYPE
                    tar.addfile(info)
                    continue
                info.size = source.size
                _add_file(tar, info, source)
        return stream.tell()


def _add_file(tar: tarfile.TarFile, info: tarfile.TarInfo, source: _Source) -> None:
    try:
        with source.path.open("rb") as content:
            tar.addfile(info, content)
    except OSError as error:
        reason = error.strerror or str(error)
        raise ArchiveInvalid(source.name, f"it could not be read: {reason}") from None


class _MeteredStream(io.BufferedIOBase):
    """A decompressed stream that refuses to give more than what was allowed so far.

    The tar reader believes the sizes in headers and reads long headers into memory; the meter
    bounds both, whatever the headers say.
    """

    def __init__(self, stream: gzip.GzipFile, archive_bytes: int) -> None:
        super().__init__()
        self._stream = stream
        self._archive_bytes = archive_bytes
        self._bytes_read = 0
        self._bytes_allowed = 0
        self._recent: deque[bytes] = deque(maxlen=2)

    def allow_bytes(self, size: int) -> None:
        # The tar reader takes whole blocks and may be one ahead.
        self._bytes_allowed = self._bytes_read + size + 2 * _BLOCK_BYTES

    def read(self, size: int | None = -1, /) -> bytes:
        data = self._stream.read(size)
        self._bytes_read += len(data)
        if self._bytes_read > self._bytes_allowed:
            raise ArchiveInvalid("", "a header or the padding is longer than any real one")
        _check_ratio(self._bytes_read, self._archive_bytes)
        self._recent.append(data)
        return data

    def check_end_at(self, offset: int) -> None:
        """Check that only zeros follow the archive's end at `offset`, and read to the stream's end.

        There gzip compares its checksum of the whole content. The tar reader takes a damaged header
        for the end; behind a real one it has read no further than its last block.
        """
        recent = b"".join(self._recent)
        rest = recent[len(recent) - (self._bytes_read - offset) :]
        while rest:
            if rest.count(0) != len(rest):
                text = "something stands behind its end, or a header in it is damaged"
                raise ArchiveInvalid("", text)
            rest = self.read(_BLOCK_BYTES)


def _read_members(
    archive: Path, bytes_max: int, files_max: int
) -> Iterator[tuple[_Member, Iterator[bytes]]]:
    """Yield every entry with its content, which is read to its end before the next."""
    with gzip.GzipFile(archive, "rb") as stream, _refuse_damage():
        metered = _MeteredStream(stream, archive.stat().st_size)
        yield from _read_metered_members(metered, bytes_max, files_max)


@contextmanager
def _refuse_damage() -> Iterator[None]:
    try:
        yield
    except (tarfile.TarError, EOFError, zlib.error, gzip.BadGzipFile) as error:
        raise ArchiveInvalid("", f"it is not a complete .tar.gz file: {error}") from None
    except (ValueError, IndexError, OverflowError, RecursionError) as error:
        raise ArchiveInvalid("", f"a header makes no sense: {error}") from None


def _read_metered_members(
    metered: _MeteredStream, bytes_max: int, files_max: int
) -> Iterator[tuple[_Member, Iterator[bytes]]]:
    checker = NameChecker()
    count = file_bytes = 0
    metered.allow_bytes(_HEADER_BYTES_MAX)
    with tarfile.open(fileobj=metered, mode="r|", bufsize=_BLOCK_BYTES) as tar:
        while (info := tar.next()) is not None:
            member = _parse_member(info)
            count += 1
            file_bytes += info.size
            if count > files_max:
                raise ArchiveInvalid(info.name, f"there are more than {files_max} entries")
            if file_bytes > bytes_max:
                limit = _mebibytes(bytes_max)
                raise ArchiveInvalid(info.name, f"the files hold more than {limit} up to here")
            checker.add(member.name, member.is_directory)
            metered.allow_bytes(info.size)
            content = _read_content(tar, info)
            yield member, content
            for _ in content:
                pass
            # The tar reader would keep every entry it has read.
            vars(tar)["members"].clear()
            metered.allow_bytes(_HEADER_BYTES_MAX)
        metered.check_end_at(int(vars(tar)["offset"]))


def _parse_member(info: tarfile.TarInfo) -> _Member:
    is_directory = info.type == tarfile.DIRTYPE
    if info.issym() or info.islnk():
        raise ArchiveInvalid(info.name, "links are not accepted; store what it points to")
    if not is_directory and info.type not in (tarfile.REGTYPE, tarfile.AREGTYPE):
        raise ArchiveInvalid(info.name, "only regular files and directories are accepted")
    if info.issparse():
        raise ArchiveInvalid(info.name, "sparse files are not accepted")
    if info.mode & 0o7000:
        raise ArchiveInvalid(info.name, f"mode {info.mode:o} has a setuid, setgid or sticky bit")
    if info.size < 0 or (is_directory and info.size):
        raise ArchiveInvalid(info.name, f"its size cannot be {info.size}")
    return _Member(info.name, is_directory, bool(info.mode & stat.S_IXUSR))


def _read_content(tar: tarfile.TarFile, info: tarfile.TarInfo) -> Iterator[bytes]:
    reader = tar.extractfile(info)
    remaining = info.size if reader is not None else 0
    while reader is not None and remaining:
        with _refuse_damage():
            block = reader.read(min(_BLOCK_BYTES, remaining))
        if not block:
            raise ArchiveInvalid(info.name, "the archive ends inside this file")
        remaining -= len(block)
        yield block


def _write_member(folder: Path, member: _Member, content: Iterator[bytes]) -> None:
    path = folder / member.name
    if member.is_directory:
        path.mkdir(parents=True, exist_ok=True)
        return
    path.parent.mkdir(parents=True, exist_ok=True)
    flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW
    with os.fdopen(os.open(path, flags, 0o600), "wb") as file:
        for block in content:
            file.write(block)
        os.fchmod(file.fileno(), 0o755 if member.executable else 0o644)


def _folded_name(name: str) -> str:
    visible = "".join(c for c in name if unicodedata.category(c) != "Cf")
    return unicodedata.normalize("NFKC", unicodedata.normalize("NFKC", visible).casefold())
