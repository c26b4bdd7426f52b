"""Downloads of files: every path is checked, and every file verified, before the folder appears."""

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
from detcloud.shared.archive import extract
from detcloud.shared.archive_names import NameChecker
from detcloud.shared.errors import DetcloudError
from detcloud.shared.file_patterns import matches_any
from detcloud.shared.files import sha256_of
from detcloud.shared.http import Transport
from detcloud.shared.plurals import count_text

if TYPE_CHECKING:
    from detcloud.client.requester import Requester

OnProgress = Callable[[int, int], None]
RenewAddresses = Callable[[], Sequence[CheckpointFile]]

# URLs expire after 15 minutes. A download that has begun by then continues.
ADDRESSES_SECONDS = 10 * 60


def download_files(
    transport: Transport,
    files: Sequence[CheckpointFile],
    destination: Path,
    on_progress: OnProgress | None = None,
    renew_addresses: RenewAddresses | None = None,
    clock: Callable[[], float] = time.monotonic,
) -> None:
    """Download `files` into a temporary folder, verify the files, and rename the folder.

    Args:
        destination: the final name of the folder, which must not exist.
        on_progress: called with the bytes received and the total bytes.
        renew_addresses: returns the files with new URLs; called before the present URLs expire.
        clock: returns a monotonic time in seconds.

    Raises:
        DetcloudError: a path is unsafe or clashes with another (nothing is downloaded then), a file
            has a wrong size or digest, or `destination` exists or cannot be written.
    """
    tell = on_progress or (lambda done, total: None)

    def fetch_all(folder: Path) -> None:
        fresh = fresh_addresses(files, renew_addresses or (lambda: files), clock)
        _fetch_all(transport, files, fresh, folder, tell)

    fill_folder(files, destination, fetch_all)


def fill_folder(
    files: Sequence[CheckpointFile], destination: Path, fetch_all: Callable[[Path], None]
) -> None:
    """Fill a temporary folder by `fetch_all`, and rename the folder to `destination`.

    Check the paths of `files` first. After an error, delete the temporary folder.

    Raises:
        DetcloudError: a path is unsafe or clashes with another, or `destination` exists or cannot
            be written.
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
    """Return the files that match at least one of `patterns` and nothing in `excluded`, in order.

    Without patterns every file matches.

    Raises:
        DetcloudError: no file remains because of the patterns.
    """

    chosen = [file for file in files if not patterns or matches_any(file["path"], patterns)]
    chosen = [file for file in chosen if not matches_any(file["path"], excluded)]
    if not chosen and (patterns or excluded):
        texts = [f"matches {', '.join(patterns)}"] if patterns else []
        texts += [f"is left beside {', '.join(excluded)}"] if excluded else []
        raise DetcloudError(
            f"no file of the checkpoint ({count_text(len(files), 'file')}) {' and '.join(texts)}; "
            "`detcloud checkpoint files UUID` lists them; '**/' stands for any folders"
        )
    return chosen


def download_model_code(
    client: Requester, sha256: str, destination: Path, on_progress: OnProgress | None = None
) -> None:
    """Download the model code with this SHA-256, and unpack the code to `destination`.

    `destination` is a folder that must not exist. `on_progress` is called with the bytes received
    and 0, because the total is not known.

    Raises:
        DetcloudError: the digest differs, the archive is unsafe, or `destination` exists or cannot
            be written.
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
    """Convert an OSError of the block into a DetcloudError that names `destination`."""
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
    addresses: Iterator[tuple[CheckpointFile, str]],
    folder: Path,
    on_progress: OnProgress,
) -> None:
    total = sum(file["size"] for file in files)
    done = 0
    for file, url in addresses:
        path = folder / file["path"]
        path.parent.mkdir(parents=True, exist_ok=True)
        with _ProgressWriter(path, done, total, on_progress) as writer:
            transport.download(url, writer)
        verify_file(path, file)
        done += file["size"]


def fresh_addresses(
    files: Sequence[CheckpointFile],
    renew_addresses: RenewAddresses,
    clock: Callable[[], float] = time.monotonic,
) -> Iterator[tuple[CheckpointFile, str]]:
    """Yield each file with a URL that has not expired.

    `renew_addresses` is called if the URLs are older than ADDRESSES_SECONDS. Its errors are raised
    during the iteration. `clock` returns a monotonic time in seconds.
    """
    issued_at = clock()
    urls = {file["path"]: file["url"] for file in files}
    for file in files:
        if clock() - issued_at > ADDRESSES_SECONDS:
            issued_at = clock()
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
    """A new file that reports every write: `before` plus the position, and `total`.

    A repeated download starts at the position 0, and so reports small numbers again.
    """

    def __init__(self, path: Path, before: int, total: int, on_progress: OnProgress) -> None:
        super().__init__(path, "xb")
        self._before = before
        self._total = total
        self._on_progress = on_progress

    def write(self, data: Any, /) -> int:
        written = super().write(data)
        self._on_progress(self._before + self.tell(), self._total)
        return written or 0
