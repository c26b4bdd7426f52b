"""Downloads: every path is checked and every byte verified before a folder takes its place."""

from __future__ import annotations

import io
import shutil
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

from detcloud.client.records import CheckpointFile
from detcloud.shared.archive import extract, sha256_of
from detcloud.shared.archive_names import NameChecker
from detcloud.shared.errors import DetcloudError
from detcloud.shared.file_patterns import matches_any
from detcloud.shared.http import Transport

if TYPE_CHECKING:
    from detcloud.client.client import Client

OnProgress = Callable[[int, int], None]
RenewAddresses = Callable[[], Sequence[CheckpointFile]]

# Addresses are good for 15 minutes; a request that has begun is answered to its end.
ADDRESSES_SECONDS = 10 * 60


def download_files(
    transport: Transport,
    files: Sequence[CheckpointFile],
    destination: Path,
    on_progress: OnProgress | None = None,
    renew_addresses: RenewAddresses | None = None,
) -> None:
    """Fetches `files` (`{path, size, sha256, url}`) into a fresh folder, then renames it.

    `renew_addresses` returns the files with fresh addresses; it is called before theirs expire.

    Raises:
        DetcloudError: a path that could leave the folder or clashes with another (nothing is
            fetched then), a wrong size or digest, or a destination that exists or takes no files.
    """
    tell = on_progress or (lambda done, total: None)

    def fetch_all(folder: Path) -> None:
        _fetch_all(transport, files, folder, tell, renew_addresses or (lambda: files))

    fill_folder(files, destination, fetch_all)


def fill_folder(
    files: Sequence[CheckpointFile], destination: Path, fetch_all: Callable[[Path], None]
) -> None:
    """Download `files` by `fetch_all` into a new folder, and then rename it to `destination`.

    Raises:
        DetcloudError: as `download_files`.
    """
    checker = NameChecker()
    for file in files:
        checker.add(file["path"], is_directory=False)
    if destination.exists():
        raise DetcloudError(f"{destination} exists; name another folder with -o")
    with name_write_errors(destination):
        destination.parent.mkdir(parents=True, exist_ok=True)
        fresh = Path(tempfile.mkdtemp(prefix=f".{destination.name}-", dir=destination.parent))
        try:
            fetch_all(fresh)
            fresh.chmod(0o755)
            fresh.rename(destination)
        except BaseException:
            shutil.rmtree(fresh, ignore_errors=True)
            raise


def select_files(
    files: Sequence[CheckpointFile], patterns: Sequence[str], excluded: Sequence[str]
) -> list[CheckpointFile]:
    """The files that one of `patterns` matches, or all without any, and none of `excluded` does.

    Raises:
        DetcloudError: patterns leave no file over.
    """

    chosen = [file for file in files if not patterns or matches_any(file["path"], patterns)]
    chosen = [file for file in chosen if not matches_any(file["path"], excluded)]
    if not chosen and (patterns or excluded):
        texts = [f"matches {', '.join(patterns)}"] if patterns else []
        texts += [f"is left beside {', '.join(excluded)}"] if excluded else []
        raise DetcloudError(
            f"none of the checkpoint's {len(files)} files {' and '.join(texts)}; "
            "`detcloud checkpoint files UUID` lists them; '**/' stands for any folders"
        )
    return chosen


def download_model_code(
    client: Client, sha256: str, destination: Path, on_progress: OnProgress | None = None
) -> None:
    """Fetches the archive with this digest and unpacks it into the new folder `destination`.

    `on_progress` gets the bytes that came and 0, since their number is not known before.

    Raises:
        DetcloudError: another digest, an archive that is not safe, or an existing destination.
    """
    if destination.exists():
        raise DetcloudError(f"{destination} exists; name another folder with -o")
    with tempfile.TemporaryDirectory(prefix="detcloud-code-") as name:
        path = Path(name) / "code.tar.gz"
        with _ProgressWriter(path, 0, 0, on_progress or (lambda done, total: None)) as writer:
            client.http.download(f"/api/v1/model-code/{sha256}", writer)
        if sha256_of(path) != sha256:
            raise DetcloudError(
                "the model code has a SHA-256 that differs from the recorded one: it was modified"
            )
        with name_write_errors(destination):
            extract(path, destination)


@contextmanager
def name_write_errors(destination: Path) -> Iterator[None]:
    """Turn errors of the disk into a DetcloudError that names the folder."""
    try:
        yield
    except DetcloudError:
        raise
    except OSError as error:
        reason = error.strerror or str(error)
        raise DetcloudError(f"{destination} could not be written: {reason}") from None


def _fetch_all(
    transport: Transport,
    files: Sequence[CheckpointFile],
    folder: Path,
    on_progress: OnProgress,
    renew_addresses: RenewAddresses,
) -> None:
    total = sum(file["size"] for file in files)
    done = 0
    for file, url in fresh_addresses(files, renew_addresses):
        path = folder / file["path"]
        path.parent.mkdir(parents=True, exist_ok=True)
        with _ProgressWriter(path, done, total, on_progress) as writer:
            transport.download(url, writer)
        verify_file(path, file)
        done += file["size"]


def fresh_addresses(
    files: Sequence[CheckpointFile], renew_addresses: RenewAddresses
) -> Iterator[tuple[CheckpointFile, str]]:
    """Each file with an address that has not expired when it is asked for."""
    issued_at = time.monotonic()
    urls = {file["path"]: file["url"] for file in files}
    for file in files:
        if time.monotonic() - issued_at > ADDRESSES_SECONDS:
            issued_at = time.monotonic()
            urls |= {file["path"]: file["url"] for file in renew_addresses()}
        yield file, urls[file["path"]]


def verify_file(path: Path, file: CheckpointFile) -> None:
    """Raise DetcloudError unless the file at `path` has the recorded size and digest."""
    size = path.stat().st_size
    if size != file["size"]:
        raise DetcloudError(f"{file['path']} has {size} bytes, expected {file['size']}; try again")
    if sha256_of(path) != file["sha256"]:
        raise DetcloudError(
            f"{file['path']} has a SHA-256 that differs from the recorded one: it was modified"
        )


class _ProgressWriter(io.FileIO):
    """A file that reports every write; after a retry the position, and the count, starts again."""

    def __init__(self, path: Path, before: int, total: int, on_progress: OnProgress) -> None:
        super().__init__(path, "xb")
        self._before = before
        self._total = total
        self._on_progress = on_progress

    def write(self, data: Any, /) -> int:
        written = super().write(data)
        self._on_progress(self._before + self.tell(), self._total)
        return written or 0
