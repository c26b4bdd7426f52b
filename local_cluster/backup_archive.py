"""Backups of an embedded cluster, as tar archives. The cluster may run during a backup.

    detcloud-backup.json    the description: format, time, cluster and version of detcloud
    state.db                a consistent copy of the state table
    objects/                model code, logs and metrics, unless a bucket has the objects
    checkpoints/            only if requested
    token, agent.token, signing.key
    server.pem              only of a server for other machines, whose pin then stays

An object or checkpoint never changes under its name. The folders are read before and after the copy
of the state. So the archive contains every file that the state names, even if files were written or
deleted during the backup.
"""

import json
import os
import shutil
import tarfile
import tempfile
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass, replace
from pathlib import Path, PurePosixPath
from typing import IO, Any

from control_plane.state.sqlite import check_table_file
from detcloud.shared.version import __version__
from local_cluster.home import HomeFolder

FORMAT = 1
DESCRIPTION = "detcloud-backup.json"
STATE = "state.db"
SECRETS = ("token", "agent.token", "signing.key")
# Older versions refuse archives with other files. Their clusters have no certificate.
OPTIONAL_SECRETS = ("server.pem",)
FOLDERS = ("objects", "checkpoints")
DESCRIPTION_BYTES_MAX = 64 * 1024

OnProgress = Callable[[int, int], None]
"""Called with the number of completed bytes, then the total number of bytes."""


class BackupInvalid(Exception):
    """An archive is not a backup or is damaged. The message names the fault."""


@dataclass(frozen=True)
class BackupDescription:
    """The description in a backup: origin, time and content."""

    cluster_id: str
    """The id of the cluster."""
    taken_ms: int
    """The time at which the state was copied, in epoch ms."""
    version: str = __version__
    """The version of detcloud that wrote the backup."""
    has_checkpoints: bool = False
    """Whether the backup contains checkpoints."""
    format: int = FORMAT
    """The version of the archive's format."""
    bucket: str = ""
    """The address of the bucket with the objects, which are not in the backup. "" for a folder."""


@dataclass(frozen=True)
class ArchivedFile:
    """A file in an archive."""

    name: str
    """The path in the archive, with `/`."""
    size: int
    """The size in bytes."""
    content: IO[bytes]
    """The open file. It is readable until the next file of the archive is requested."""


def write_backup(
    home: HomeFolder,
    archive: Path,
    describe: Callable[[Path], BackupDescription],
    *,
    with_checkpoints: bool = False,
    on_progress: OnProgress = lambda done, total: None,
) -> BackupDescription:
    """Write a backup of the cluster in `home` to the new file `archive`; return the description.

    The backup contains the state, the objects and the secrets of the cluster. Objects in a bucket
    are left out, and the description names the bucket. The file appears under its name only when it
    is complete, readable by its owner only. After an error, no file remains. A temporary copy of
    the state is made in `home`.

    Args:
        archive: the path of the file to write.
        describe: returns the description, given the path of the copy of the state.
        with_checkpoints: whether to include checkpoints.
        on_progress: called after each file.

    Raises:
        FileExistsError: `archive` exists. The existing file is unchanged.
        FileNotFoundError: the folder contains no state.
        Unavailable: the state cannot be read or is damaged.
        OSError: a file cannot be read or written.
        Errors of `describe` and `on_progress` are passed on.
    """
    if archive.exists():
        raise FileExistsError(f"{archive} exists already; give another name")
    if not home.state.exists():
        raise FileNotFoundError(
            f"no cluster ever ran in {home.folder}: there is nothing to back up"
        )
    bucket = home.bucket[0] or ""
    folders = (*(() if bucket else FOLDERS[:1]), *(FOLDERS[1:] if with_checkpoints else ()))
    partial = archive.with_name(f".{archive.name}.partial")
    partial.unlink(missing_ok=True)
    try:
        descriptor = os.open(partial, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
        with (
            os.fdopen(descriptor, "wb") as file,
            tempfile.TemporaryDirectory(prefix=".backup-", dir=home.folder) as scratch,
            tarfile.open(fileobj=file, mode="w", format=tarfile.PAX_FORMAT) as tar,
        ):
            writer = _ArchiveWriter(home.files, tar, _folder_bytes(home, folders), on_progress)
            for folder in folders:
                writer.add_folder(folder)
            state = Path(scratch) / STATE
            home.state.copy_to(state)
            check_table_file(state)
            description = replace(describe(state), bucket=bucket)
            for folder in folders:
                writer.add_folder(folder)
            writer.add_file(state, STATE)
            present = [name for name in OPTIONAL_SECRETS if (home.folder / name).exists()]
            for name in (*SECRETS, *present):
                writer.add_file(home.folder / name, name)
            writer.add_text(DESCRIPTION, json.dumps(asdict(description)))
        with partial.open("rb") as written:
            os.fsync(written.fileno())
        os.link(partial, archive)
    finally:
        partial.unlink(missing_ok=True)
    return description


def read_description(archive: Path) -> BackupDescription:
    """Read the description in an archive, which is the last file of the archive.

    Raises BackupInvalid if the archive is damaged, is not a backup or has another format. Raises
    OSError if the file cannot be read.
    """
    for file in read_files(archive):
        if file.name == DESCRIPTION:
            return _parse_description(file)
    raise BackupInvalid(f"{archive} is not a backup of a cluster: it has no {DESCRIPTION}")


def read_files(archive: Path) -> Iterator[ArchivedFile]:
    """Yield the files of an archive, in the order of the archive.

    The caller must read a file's content before requesting the next file. Raises BackupInvalid
    during the iteration for a damaged archive, and for an entry that is not part of any backup.
    Raises OSError if the file cannot be read.
    """
    try:
        with tarfile.open(archive, mode="r:") as tar:
            for member in tar:
                if not member.isreg() or not _is_expected(member.name):
                    raise BackupInvalid(
                        f"{archive} is not a backup: it has the entry {member.name!r}"
                    )
                content = tar.extractfile(member)
                assert content is not None
                yield ArchivedFile(member.name, member.size, content)
    except (tarfile.TarError, EOFError) as error:
        raise BackupInvalid(f"{archive} is not a backup, or is damaged: {error}") from None


def _is_expected(name: str) -> bool:
    """Return whether a backup may contain a file of this name.

    The names are DESCRIPTION, STATE, the names in SECRETS and OPTIONAL_SECRETS, and paths below the
    folders in FOLDERS. Return False for a path that leaves its folder, such as `objects/../x`.
    """
    if name in (DESCRIPTION, STATE, *SECRETS, *OPTIONAL_SECRETS):
        return True
    parts = name.split("/")
    is_plain = all(part not in ("", ".", "..") and "\0" not in part for part in parts)
    return is_plain and len(parts) > 1 and parts[0] in FOLDERS


def _parse_description(file: ArchivedFile) -> BackupDescription:
    """Parse the description in a file of an archive. Only DESCRIPTION_BYTES_MAX are read.

    Raises BackupInvalid if the content is not JSON, a field is missing or invalid, or the format is
    not FORMAT.
    """
    try:
        fields: dict[str, Any] = json.loads(file.content.read(DESCRIPTION_BYTES_MAX))
        found = BackupDescription(
            str(fields["cluster_id"]),
            int(fields["taken_ms"]),
            str(fields["version"]),
            bool(fields["has_checkpoints"]),
            int(fields["format"]),
            str(fields.get("bucket", "")),
        )
    except (ValueError, KeyError, TypeError, RecursionError) as error:
        raise BackupInvalid(f"{DESCRIPTION} of the backup cannot be read: {error!r}") from None
    if found.format != FORMAT:
        text = f"the backup has format {found.format}, made by detcloud {found.version}"
        raise BackupInvalid(f"{text}; this version reads format {FORMAT}")
    return found


class _ArchiveWriter:
    """A writer that adds the files of a cluster to an archive and reports the progress.

    Args:
        folder: the folder with the folders of objects and checkpoints.
        tar: the open archive.
        total: the expected number of bytes, for `on_progress`.
        on_progress: called after each file with at most `total` bytes as completed.
    """

    def __init__(
        self, folder: Path, tar: tarfile.TarFile, total: int, on_progress: OnProgress
    ) -> None:
        self._folder = folder
        self._tar = tar
        self._total = total
        self._on_progress = on_progress
        self._done = 0
        self._names = set[str]()

    def add_folder(self, name: str) -> None:
        """Add all files below a subfolder of the writer's folder that were not added before.

        Report the progress after each file. Skip files that disappear meanwhile, symbolic links,
        and folders called `.partial`. Do nothing if the folder does not exist. Raises OSError if a
        file cannot be read.
        """
        for path in _files_below(self._folder / name):
            relative = PurePosixPath(path.relative_to(self._folder)).as_posix()
            if relative not in self._names:
                self.add_file(path, relative)

    def add_file(self, path: Path, name: str) -> None:
        """Add the file at `path` as `name`. Do nothing if the file no longer exists.

        Raises OSError if the file is a symbolic link or cannot be read.
        """
        try:
            descriptor = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_CLOEXEC)
        except FileNotFoundError:
            return
        with os.fdopen(descriptor, "rb") as file:
            self._add(name, os.fstat(file.fileno()).st_size, file)

    def add_text(self, name: str, text: str) -> None:
        """Add a file called `name` with this text as UTF-8, and report the progress.

        Raises OSError if the archive cannot be written.
        """
        with tempfile.TemporaryFile() as file:
            size = file.write(text.encode())
            file.seek(0)
            self._add(name, size, file)

    def _add(self, name: str, size: int, file: IO[bytes]) -> None:
        """Add `size` bytes of an open file as `name`, readable by the owner only, and report the
        progress. Raises OSError if the file is shorter or cannot be read.
        """
        member = tarfile.TarInfo(name)
        member.size, member.mode = size, 0o600
        self._tar.addfile(member, file)
        self._names.add(name)
        self._done += size
        self._on_progress(min(self._done, self._total), self._total)


def _folder_bytes(home: HomeFolder, folders: tuple[str, ...]) -> int:
    """Return the approximate size of a backup in bytes. Deleted files count as 0."""
    total = home.state.size_bytes()
    for folder in folders:
        for path in _files_below(home.files / folder):
            total += path.lstat().st_size if path.exists() else 0
    return total


def _files_below(folder: Path) -> Iterator[Path]:
    """Yield the regular files below a folder, without symbolic links.

    Skip folders called `.partial`, which contain unfinished files. Yield nothing if the folder does
    not exist.
    """
    for parent, names, files in os.walk(folder):
        names[:] = sorted(name for name in names if name != ".partial")
        for name in sorted(files):
            path = Path(parent) / name
            if not path.is_symlink() and path.is_file():
                yield path


def read_blocks(file: ArchivedFile) -> Iterator[bytes]:
    """Yield the content of a file of an archive. Raises BackupInvalid if the archive ends early."""
    left = file.size
    while left and (block := file.content.read(min(left, 1 << 20))):
        left -= len(block)
        yield block
    if left:
        raise BackupInvalid(f"the backup is damaged: it ends within {file.name}")


def copy_file(file: ArchivedFile, target: Path) -> None:
    """Write a file of an archive to `target`, readable by the owner only.

    Create missing folders. An existing file is replaced only when the new file is complete. Raises
    BackupInvalid if the archive ends within the file, and OSError.
    """
    target.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
    fresh = target.with_name(f".{target.name}.new")
    fresh.unlink(missing_ok=True)
    descriptor = os.open(fresh, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
    try:
        with os.fdopen(descriptor, "wb") as output:
            shutil.copyfileobj(file.content, output, 1 << 20)
            if output.tell() != file.size:
                raise BackupInvalid(f"the backup is damaged: it ends within {file.name}")
        fresh.replace(target)
    finally:
        fresh.unlink(missing_ok=True)
