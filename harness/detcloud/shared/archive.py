"""Archives of model code: packed the same way everywhere, unpacked without trust.

`pack` is deterministic: one tree has one digest, so that an upload can be skipped when the cluster
has the content already. `extract` and `inspect` accept nothing but regular files and directories
with plain relative names, also behind the last entry, and stop at the limits of
`archive_limits.py`. The standard library's extraction filters are not relied on: every rule is
checked by `archive_reader.py` and `archive_names.py`.
"""

import gzip
import hashlib
import os
import shutil
import stat
import tarfile
import tempfile
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import BinaryIO, Self

from detcloud.shared.archive_limits import (
    FILE_BYTES_MAX,
    FILES_MAX,
    ArchiveInvalid,
    check_ratio,
    display_mebibytes,
)
from detcloud.shared.archive_names import NameChecker
from detcloud.shared.archive_reader import ArchiveEntry, read_entries

_GZIP_LEVEL = 6
_BIGGEST_SHOWN = 5


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
        check_ratio(tar_bytes, size)
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
        raise FileExistsError(
            f"{destination} exists; an archive can only be unpacked into a new folder"
        )
    fresh = Path(tempfile.mkdtemp(prefix=".extract-", dir=destination.parent))
    try:
        for entry, content in read_entries(archive, bytes_max, files_max):
            _write_entry(fresh, entry, content)
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
    for entry, content in read_entries(archive, bytes_max, files_max):
        if entry.is_directory:
            directories += 1
            continue
        files += 1
        file_bytes += sum(len(block) for block in content)
    return ArchiveContents(files, directories, file_bytes)


def sha256_of(path: Path) -> str:
    """The SHA-256 of a file in hexadecimal, read in blocks."""
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


@dataclass(frozen=True)
class _Source:
    """A file or directory to pack; `path` is where the name leads to through links."""

    name: str
    path: Path
    is_directory: bool
    size: int
    executable: bool


def _scan_folder(root: Path, keep: Callable[[str], bool], files_max: int) -> list[_Source]:
    if not root.is_dir():
        raise ArchiveInvalid(str(root), "there is no such directory")
    checker = NameChecker(files_max)
    sources: list[_Source] = []
    try:
        for source in _walk_folder(root.resolve(), "", root.resolve(), (), keep):
            checker.add(source.name, source.is_directory)
            sources.append(source)
            if len(sources) > files_max:
                raise ArchiveInvalid(str(root), f"it contains more than {files_max} files")
    except OSError as error:
        raise ArchiveInvalid(str(error.filename), f"it could not be read: {error}") from None
    return sorted(sources, key=lambda source: source.name.split("/"))


def _walk_folder(
    folder: Path, prefix: str, root: Path, ancestors: tuple[Path, ...], keep: Callable[[str], bool]
) -> Iterator[_Source]:
    """Yield the files and folders to pack below `folder`; `ancestors` are its resolved parents."""
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
        raise ArchiveInvalid(name, "the link is broken; ignore or remove it") from None
    if not target.is_relative_to(root):
        raise ArchiveInvalid(name, f"the link leads out of the folder, to {target}; copy it in")
    return target


def _check_size(sources: list[_Source], bytes_max: int) -> None:
    total = sum(source.size for source in sources)
    if total <= bytes_max:
        return
    biggest = sorted(sources, key=lambda source: -source.size)[:_BIGGEST_SHOWN]
    names = ", ".join(f"{source.name} ({display_mebibytes(source.size)})" for source in biggest)
    raise ArchiveInvalid(
        "",
        f"the files hold {display_mebibytes(total)}, the limit is {display_mebibytes(bytes_max)}; "
        f"the biggest are {names}; exclude files with a .detignore",
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


def _write_entry(folder: Path, entry: ArchiveEntry, content: Iterator[bytes]) -> None:
    path = folder / entry.name
    if entry.is_directory:
        path.mkdir(parents=True, exist_ok=True)
        return
    path.parent.mkdir(parents=True, exist_ok=True)
    flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW
    with os.fdopen(os.open(path, flags, 0o600), "wb") as file:
        for block in content:
            file.write(block)
        os.fchmod(file.fileno(), 0o755 if entry.executable else 0o644)
