"""Archives of model code, packed deterministically and unpacked without trust.

`pack` gives equal trees equal digests, so that an upload can be skipped if the cluster has the
content. `extract` and `inspect` accept only regular files and directories with plain relative
names, and stop at the limits of `archive_limits.py`. `archive_reader.py` and `archive_names.py`
check every rule; the standard library's extraction filters are not used.
"""

import gzip
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
from detcloud.shared.archive_sizes import describe_fullest, describe_largest
from detcloud.shared.files import sha256_of

_GZIP_LEVEL = 6


@dataclass(frozen=True)
class Archive:
    """A packed tree in a temporary file, which the end of a `with` block deletes."""

    path: Path
    sha256: str
    """The digest of the compressed file in hexadecimal."""
    size: int
    """The bytes of the compressed file."""
    file_bytes: int
    """The bytes of all files in the archive."""
    files: int
    """The number of files, without directories."""

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
    """The counts of an archive's content."""

    files: int
    """The number of regular files."""
    directories: int
    """The number of directory entries."""
    file_bytes: int
    """The bytes of all files."""


def pack(
    root: Path,
    keep: Callable[[str], bool] = lambda name: True,
    *,
    bytes_max: int = FILE_BYTES_MAX,
    files_max: int = FILES_MAX,
    shown_root: str | None = None,
) -> Archive:
    """Pack the folder `root` into a temporary `.tar.gz` file, and return the file with counts.

    The caller must delete the file, or use the result in a `with` statement. Equal trees give equal
    digests: entries are sorted, owners and times are omitted, and modes are 0755 for directories
    and executable files and 0644 for other files. Empty directories are packed as well. A link to a
    file or folder inside `root` is replaced by a copy. After an error, no file is left.

    Args:
        keep: returns whether to pack a path relative to `root`; by default, everything is packed.
            The path of a directory, or of a link to a directory, ends with `/`. A directory that is
            not kept is not entered. An entry that is not kept causes no error. Errors of `keep` are
            passed on, except that an OSError becomes ArchiveInvalid.
        bytes_max: the limit on the bytes of all files.
        files_max: the limit on files and directories.
        shown_root: the folder's name in errors, by default its path.

    Raises:
        ArchiveInvalid: `root` is no folder, a limit is exceeded, a link is broken or leads out of
            `root` or to a parent folder, or an entry is unreadable, a special file or has a name
            that `extract` would refuse. A file that became shorter during the packing is
            unreadable. Also raised if the content of a file cannot be written.
        OSError: the temporary file cannot be created or completed.
    """
    shown = shown_root or str(root)
    sources = _scan_folder(root, keep, files_max, shown)
    _check_size(sources, bytes_max, shown)
    handle, name = tempfile.mkstemp(prefix="detcloud-", suffix=".tar.gz")
    path = Path(name)
    try:
        with os.fdopen(handle, "wb") as file:
            tar_bytes = _write_tar(file, sources)
        size = path.stat().st_size
        _check_ratio(sources, tar_bytes, size, shown)
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
    """Unpack an archive into the folder `destination`, completely or not at all.

    The files are written to a new folder next to `destination`, which is renamed at the end and
    replaces an empty directory. Missing parent folders are created, and stay after an error. The
    new folder is deleted after an error. Modes are 0755 for `destination`, directories and
    executable files and 0644 for other files, whatever the umask. Owners and times are not
    restored.

    Raises:
        ArchiveInvalid: the archive breaks a rule or exceeds a limit.
        FileExistsError: `destination` exists and is not an empty directory, also after an earlier
            call that wrote files.
        OSError: a file cannot be read or written, or `destination` is a link.
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
    """Check a whole archive with the rules of `extract`, and count the content. Write nothing.

    Raises:
        ArchiveInvalid: the archive breaks a rule or exceeds a limit.
        OSError: the archive cannot be read.
    """
    files = directories = file_bytes = 0
    for entry, content in read_entries(archive, bytes_max, files_max):
        if entry.is_directory:
            directories += 1
            continue
        files += 1
        file_bytes += sum(len(block) for block in content)
    return ArchiveContents(files, directories, file_bytes)


@dataclass(frozen=True)
class _Source:
    """A file or directory to pack."""

    name: str
    """The path in the archive."""
    path: Path
    """The path to read from, with links resolved."""
    is_directory: bool
    size: int
    """The file's bytes. 0 for a directory."""
    executable: bool
    """Whether the owner may execute the file."""


def _scan_folder(
    root: Path, keep: Callable[[str], bool], files_max: int, shown_root: str
) -> list[_Source]:
    if not root.is_dir():
        raise ArchiveInvalid(shown_root, "there is no such directory")
    checker = NameChecker(files_max)
    sources: list[_Source] = []
    try:
        for source in _walk_folder(root.resolve(), "", root.resolve(), (), keep):
            if len(sources) >= files_max:
                names = [*(known.name for known in sources), source.name]
                advice = [describe_fullest(names), "exclude files with a .detignore"]
                reason = f"it contains more than {files_max} files and folders"
                raise ArchiveInvalid(shown_root, "; ".join(filter(None, [reason, *advice])))
            checker.add(source.name, source.is_directory)
            sources.append(source)
    except OSError as error:
        raise ArchiveInvalid(str(error.filename), f"it could not be read: {error}") from None
    return sorted(sources, key=lambda source: source.name.split("/"))


def _walk_folder(
    folder: Path, prefix: str, root: Path, ancestors: tuple[Path, ...], keep: Callable[[str], bool]
) -> Iterator[_Source]:
    """Yield the files and folders to pack below `folder`, each folder before its entries.

    The entries of a folder are sorted, and links to folders inside `root` are followed. Entries
    that `keep` refuses are skipped, a folder with its content. `prefix` is the folder's path in the
    archive with a final slash, or "". `ancestors` are the folder's parent folders up to `root`.

    Raises:
        ArchiveInvalid: a special file, or a link that is broken, leads out of `root` or leads to
            a parent folder.
        OSError: a folder or an entry is unreadable.
    """
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


def _check_size(sources: list[_Source], bytes_max: int, shown_root: str) -> None:
    total = sum(source.size for source in sources)
    if total > bytes_max:
        raise ArchiveInvalid(
            shown_root,
            f"the files hold {display_mebibytes(total)}, the limit is "
            f"{display_mebibytes(bytes_max)}; {_describe_largest(sources)}; "
            f"exclude files with a .detignore",
        )


def _check_ratio(
    sources: list[_Source], content_bytes: int, archive_bytes: int, shown_root: str
) -> None:
    try:
        check_ratio(content_bytes, archive_bytes)
    except ArchiveInvalid as error:
        reason = f"{error.reason}; {_describe_largest(sources)}"
        raise ArchiveInvalid(shown_root, reason) from None


def _describe_largest(sources: list[_Source]) -> str:
    return describe_largest(
        (source.name, source.size) for source in sources if not source.is_directory
    )


def _write_tar(file: BinaryIO, sources: list[_Source]) -> int:
    """Write the compressed archive. Return the number of bytes before compression.

    `file` stays open. Raise ArchiveInvalid if a source is unreadable or became shorter, or if its
    content cannot be written. Raise OSError if another part of the archive cannot be written. Bytes
    beyond the known size of a source are left out.
    """
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
