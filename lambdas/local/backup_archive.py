"""Backups of an embedded cluster: one tar archive, written while the cluster runs.

    detcloud-backup.json    the format, when it was made, of which cluster, by which version
    state.db                a consistent copy of the state table
    objects/                model code, logs and metrics
    checkpoints/            where they were asked for
    token, agent.token, signing.key

Objects and checkpoints never change under their names, so a folder is read before and after the
state: what the state names is in one of the two, whatever was written or deleted meanwhile.
"""

import json
import os
import shutil
import tarfile
import tempfile
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass
from pathlib import Path, PurePosixPath
from typing import IO, Any

from control_plane.state.sqlite import copy_table_file
from detcloud.shared.version import __version__
from lambdas.local.home import HomeFolder

FORMAT = 1
DESCRIPTION = "detcloud-backup.json"
STATE = "state.db"
SECRETS = ("token", "agent.token", "signing.key")
FOLDERS = ("objects", "checkpoints")
DESCRIPTION_BYTES_MAX = 64 * 1024

OnProgress = Callable[[int, int], None]
"""Hears how many bytes of how many are done."""


class BackupInvalid(Exception):
    """An archive is not a backup, or is damaged; the message says what is wrong."""


@dataclass(frozen=True)
class BackupDescription:
    """An archive's own description. `taken_ms`: when the state was copied, epoch ms."""

    cluster_id: str
    taken_ms: int
    version: str = __version__
    has_checkpoints: bool = False
    format: int = FORMAT


@dataclass(frozen=True)
class ArchivedFile:
    """A file of an archive: its name there, its size, and the open file to read it from."""

    name: str
    size: int
    content: IO[bytes]


def write_backup(
    home: HomeFolder,
    archive: Path,
    describe: Callable[[Path], BackupDescription],
    *,
    with_checkpoints: bool = False,
    on_progress: OnProgress = lambda done, total: None,
) -> BackupDescription:
    """Write a backup of the cluster in `home` to `archive`, which appears when it is complete.

    `describe` reads the description from the copy of the state.

    Raises:
        FileExistsError: there is such a file; it is left alone.
        FileNotFoundError: the folder holds no state.
        Unavailable: the state is damaged.
        OSError: a file cannot be read or written.
    """
    if archive.exists():
        raise FileExistsError(f"{archive} exists already; give another name")
    if not home.state.is_file():
        raise FileNotFoundError(
            f"no cluster ever ran in {home.folder}: there is nothing to back up"
        )
    folders = FOLDERS if with_checkpoints else FOLDERS[:1]
    partial = archive.with_name(f".{archive.name}.partial")
    partial.unlink(missing_ok=True)
    try:
        descriptor = os.open(partial, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
        with (
            os.fdopen(descriptor, "wb") as file,
            tempfile.TemporaryDirectory(prefix=".backup-", dir=home.folder) as scratch,
            tarfile.open(fileobj=file, mode="w", format=tarfile.PAX_FORMAT) as tar,
        ):
            writer = _ArchiveWriter(home.folder, tar, _folder_bytes(home, folders), on_progress)
            for folder in folders:
                writer.add_folder(folder)
            state = Path(scratch) / STATE
            copy_table_file(home.state, state)
            description = describe(state)
            for folder in folders:
                writer.add_folder(folder)
            writer.add_file(state, STATE)
            for name in SECRETS:
                writer.add_file(home.folder / name, name)
            writer.add_text(DESCRIPTION, json.dumps(asdict(description)))
        with partial.open("rb") as written:
            os.fsync(written.fileno())
        os.link(partial, archive)
    finally:
        partial.unlink(missing_ok=True)
    return description


def read_description(archive: Path) -> BackupDescription:
    """Read what an archive says of itself.

    Raises BackupInvalid for anything but a backup of this format.
    """
    for file in read_files(archive):
        if file.name == DESCRIPTION:
            return _parse_description(file)
    raise BackupInvalid(f"{archive} is not a backup of a cluster: it has no {DESCRIPTION}")


def read_files(archive: Path) -> Iterator[ArchivedFile]:
    """Yield the files of an archive; each is read before the next one is asked for.

    Raises BackupInvalid for a damaged archive, and for an entry that no backup has.
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
    if name in (DESCRIPTION, STATE, *SECRETS):
        return True
    parts = name.split("/")
    is_plain = all(part not in ("", ".", "..") and "\0" not in part for part in parts)
    return is_plain and len(parts) > 1 and parts[0] in FOLDERS


def _parse_description(file: ArchivedFile) -> BackupDescription:
    try:
        fields: dict[str, Any] = json.loads(file.content.read(DESCRIPTION_BYTES_MAX))
        found = BackupDescription(
            str(fields["cluster_id"]),
            int(fields["taken_ms"]),
            str(fields["version"]),
            bool(fields["has_checkpoints"]),
            int(fields["format"]),
        )
    except (ValueError, KeyError, TypeError, RecursionError) as error:
        raise BackupInvalid(f"{DESCRIPTION} of the backup cannot be read: {error!r}") from None
    if found.format != FORMAT:
        text = f"the backup has format {found.format}, made by detcloud {found.version}"
        raise BackupInvalid(f"{text}; this version reads format {FORMAT}")
    return found


class _ArchiveWriter:
    """Adds the files of a home folder to an archive, each once."""

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
        """Add the files below a folder that were not added before."""
        for path in _files_below(self._folder / name):
            relative = PurePosixPath(path.relative_to(self._folder)).as_posix()
            if relative not in self._names:
                self.add_file(path, relative)

    def add_file(self, path: Path, name: str) -> None:
        """Add a file, unless it has gone."""
        try:
            descriptor = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_CLOEXEC)
        except FileNotFoundError:
            return
        with os.fdopen(descriptor, "rb") as file:
            self._add(name, os.fstat(file.fileno()).st_size, file)

    def add_text(self, name: str, text: str) -> None:
        """Add a file of the text."""
        with tempfile.TemporaryFile() as file:
            size = file.write(text.encode())
            file.seek(0)
            self._add(name, size, file)

    def _add(self, name: str, size: int, file: IO[bytes]) -> None:
        member = tarfile.TarInfo(name)
        member.size, member.mode = size, 0o600
        self._tar.addfile(member, file)
        self._names.add(name)
        self._done += size
        self._on_progress(min(self._done, self._total), self._total)


def _folder_bytes(home: HomeFolder, folders: tuple[str, ...]) -> int:
    """About how many bytes a backup has; a file that goes meanwhile counts for nothing."""
    total = home.state.stat().st_size
    for folder in folders:
        for path in _files_below(home.folder / folder):
            total += path.lstat().st_size if path.exists() else 0
    return total


def _files_below(folder: Path) -> Iterator[Path]:
    """Yield the regular files below a folder; files still being written lie in `.partial`."""
    for parent, names, files in os.walk(folder):
        names[:] = sorted(name for name in names if name != ".partial")
        for name in sorted(files):
            path = Path(parent) / name
            if not path.is_symlink() and path.is_file():
                yield path


def copy_file(file: ArchivedFile, target: Path) -> None:
    """Write a file of an archive to `target`, replacing it, readable by its owner only.

    Raises BackupInvalid where the archive ends too early.
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
