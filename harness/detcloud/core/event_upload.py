"""The upload of a trial's TensorBoard files to a store that is not a folder.

A thread scans the trial's folder every 30 s at first and every ten minutes later. The thread stores
new content as parts (`detcloud.shared.event_parts`). A failed upload is logged once and repeated,
and never ends the training.
"""

from __future__ import annotations

import os
import threading
import time
from dataclasses import dataclass
from pathlib import Path

from detcloud.core.one_time_warning import OneTimeWarning
from detcloud.core.temporary_folder import make_temporary_folder
from detcloud.shared.event_parts import only_grows, part_key
from detcloud.storage.store import CheckpointStore, KeyExists, StorageError, StoreReplaced

FILES_MAX = 1000
# Keys in a store have at most 64 parts, and the uploader adds four parts.
DEPTH_MAX = 60
PAUSE_SECONDS_MAX = 600.0
# A rewritten file is uploaded after this time without a change, so that no half file is stored.
SETTLED_SECONDS = 5.0
CLOSE_SECONDS_MAX = 15.0
RESCANS_MAX = 3


@dataclass(frozen=True)
class UploadLimits:
    """Limits of the upload of a trial's event files."""

    part_bytes_max: int = 16 << 20
    """The largest size of a stored part."""
    pause_seconds_min: float = 30.0
    """The shortest pause between two scans of the folder."""


DEFAULT_LIMITS = UploadLimits()


@dataclass
class _Upload:
    """The state of a file's upload."""

    version: int = 0
    """The number of times that the upload began again from the first byte."""
    size: int = 0
    """The number of stored bytes of this version."""
    stamp: tuple[int, int] | None = None
    """The size and modification time of the file at its last upload; None before the first."""

    def start_over(self) -> None:
        """Start the next version of the file, which is stored again from the first byte."""
        self.version += 1
        self.size = 0
        self.stamp = None


class EventUploader:
    """Stores the files of `folder` as parts below the key `prefix`, for the trial's `epoch`.

    The constructor starts the thread of the upload.
    """

    def __init__(
        self,
        folder: Path,
        store: CheckpointStore,
        prefix: str,
        epoch: int,
        limits: UploadLimits = DEFAULT_LIMITS,
    ) -> None:
        """Start the thread that scans `folder`, which need not exist yet."""
        self._folder = folder
        self._store = store
        self._prefix = prefix
        self._epoch = epoch
        self._limits = limits
        self._uploads: dict[str, _Upload] = {}
        self._warning = OneTimeWarning()
        # Whether `close` was called. The next scan is then the last.
        self.is_closing = False
        self._wanted = threading.Event()
        self._thread = threading.Thread(target=self._run, name="event-uploader", daemon=True)
        self._thread.start()

    def upload_soon(self) -> None:
        """Make the thread scan the folder now, and return at once. Failed uploads only print."""
        self._wanted.set()

    def close(self) -> None:
        """Make the thread upload all remaining content and end. Return after CLOSE_SECONDS_MAX at
        the latest.
        """
        self.is_closing = True
        self._wanted.set()
        self._thread.join(CLOSE_SECONDS_MAX)

    def _run(self) -> None:
        """Upload new content at each wake-up or pause, until a scan after `close`.

        A failed upload of a file is printed once, and tried again at the next scan. After the loss
        of the bucket, which then lacks the stored parts, every file is uploaded again from the
        first byte. The first RESCANS_MAX losses cause a scan at once, also after `close`.
        """
        began, is_last, rescans = time.monotonic(), False, RESCANS_MAX
        while not is_last:
            pause = (time.monotonic() - began) / 10
            self._wanted.wait(min(max(pause, self._limits.pause_seconds_min), PAUSE_SECONDS_MAX))
            self._wanted.clear()
            # Read the flag before the files, so that the last scan finds everything written before
            # `close`.
            is_last = self.is_closing
            for path in self._find_files():
                try:
                    self._upload(path)
                except StoreReplaced as error:
                    self._warn(error)
                    for upload in self._uploads.values():
                        upload.start_over()
                    if rescans:
                        rescans -= 1
                        is_last = False
                        self._wanted.set()
                except (OSError, StorageError, ValueError) as error:
                    self._warn(error)

    def _find_files(self) -> list[Path]:
        """Return at most FILES_MAX files of the folder, sorted by path; links are skipped.

        Search DEPTH_MAX levels of folders. Warn about deeper folders, more files, and unreadable
        folders.
        """
        files: list[Path] = []
        waiting = [(self._folder, 0)]
        while waiting:
            folder, depth = waiting.pop()
            try:
                with os.scandir(folder) as scan:
                    entries = list(scan)
                files += [Path(entry) for entry in entries if entry.is_file(follow_symlinks=False)]
                below = [Path(entry) for entry in entries if entry.is_dir(follow_symlinks=False)]
            except OSError as error:
                if not isinstance(error, FileNotFoundError):
                    self._warn(error)
                continue
            if below and depth == DEPTH_MAX:
                self._warn(f"{below[0]} is nested more than {DEPTH_MAX} levels deep")
                continue
            waiting += [(path, depth + 1) for path in below]
        files.sort()
        if len(files) > FILES_MAX:
            self._warn(f"there are {len(files)} files, and only {FILES_MAX} are stored")
        return files[:FILES_MAX]

    def _upload(self, path: Path) -> None:
        """Store the bytes of a file that are not stored yet, in parts of at most `part_bytes_max`.

        Event files only grow. Any other file is stored again after each change, once it has not
        changed for SETTLED_SECONDS. Raises OSError, StorageError or ValueError on failure.
        """
        name = path.relative_to(self._folder).as_posix()
        state = path.stat()
        stamp = state.st_size, state.st_mtime_ns
        upload = self._uploads.setdefault(name, _Upload())
        if only_grows(name):
            is_rewritten = state.st_size < upload.size
        else:
            is_settling = time.time() - state.st_mtime < SETTLED_SECONDS and not self.is_closing
            if upload.stamp == stamp or is_settling:
                return
            is_rewritten = upload.stamp is not None
        if is_rewritten:
            upload.start_over()
        while upload.size < state.st_size:
            size = min(state.st_size - upload.size, self._limits.part_bytes_max)
            try:
                self._store_part(path, name, upload, size)
            except KeyExists:
                # Another process of this epoch stored the part, or the response to the upload was
                # lost.
                upload.start_over()
                continue
            upload.size += size
        upload.stamp = stamp

    def _store_part(self, path: Path, name: str, upload: _Upload, size: int) -> None:
        """Store `size` bytes of a file as the part that follows the stored bytes.

        Raises KeyExists if the part is stored already, and OSError if the file became shorter.
        """
        key = part_key(name, self._epoch, upload.version, upload.size)
        with path.open("rb") as file:
            file.seek(upload.size)
            content = file.read(size)
        if len(content) < size:
            raise OSError(f"{path} became shorter while it was read")
        with make_temporary_folder("detcloud-events-") as folder:
            part = Path(folder, "part")
            part.write_bytes(content)
            self._store.put(f"{self._prefix}/{key}", part)

    def _warn(self, reason: object) -> None:
        """Print to stderr, once, that files could not be stored for the given reason."""
        self._warning.show(
            f"files for TensorBoard could not be stored: {reason}; training goes on, and they are "
            "tried again"
        )
