"""The upload of a trial's TensorBoard files to a store that is not a folder.

A thread scans the trial's folder, often at first and every ten minutes later, and stores new
content as parts (`detcloud.shared.event_parts`). A failed upload never ends the training: it is
logged once and tried again.
"""

from __future__ import annotations

import threading
import time
from dataclasses import dataclass
from pathlib import Path

from detcloud.core.one_time_warning import OneTimeWarning
from detcloud.core.temporary_folder import make_temporary_folder
from detcloud.shared.event_parts import only_grows, part_key
from detcloud.storage.store import CheckpointStore, KeyExists, StorageError

FILES_MAX = 1000
PART_BYTES_MAX = 16 << 20
PAUSE_SECONDS_MIN, PAUSE_SECONDS_MAX = 30.0, 600.0
# A file that is written whole is left alone for so long, since half of it shows nothing.
SETTLED_SECONDS = 5.0
CLOSE_SECONDS_MAX = 15.0


@dataclass
class _Upload:
    """The state of a file's upload: its stored bytes, and the stamp of the file at that time."""

    version: int = 0
    size: int = 0
    stamp: tuple[int, int] | None = None

    def start_over(self) -> None:
        """Store the file from its first byte on, as its next version."""
        self.version += 1
        self.size = 0


class EventUploader:
    """Stores the files of `folder` below `prefix`, as those of the trial's `epoch`."""

    def __init__(self, folder: Path, store: CheckpointStore, prefix: str, epoch: int) -> None:
        self._folder = folder
        self._store = store
        self._prefix = prefix
        self._epoch = epoch
        self._uploads: dict[str, _Upload] = {}
        self._warning = OneTimeWarning()
        self._is_closing = False
        self._wanted = threading.Event()
        self._thread = threading.Thread(target=self._run, name="event-uploader", daemon=True)
        self._thread.start()

    def upload_soon(self) -> None:
        """Upload new content without waiting for the next scan."""
        self._wanted.set()

    def close(self) -> None:
        """Upload the rest, and give up after some seconds."""
        self._is_closing = True
        self._wanted.set()
        self._thread.join(CLOSE_SECONDS_MAX)

    def _run(self) -> None:
        began, is_last = time.monotonic(), False
        while not is_last:
            pause = (time.monotonic() - began) / 10
            self._wanted.wait(min(max(pause, PAUSE_SECONDS_MIN), PAUSE_SECONDS_MAX))
            self._wanted.clear()
            # Read before the files are: what is written before `close` is in the last look.
            is_last = self._is_closing
            for path in self._find_files():
                try:
                    self._upload(path)
                except (OSError, StorageError) as error:
                    self._warn(error)

    def _find_files(self) -> list[Path]:
        files = sorted(
            path for path in self._folder.rglob("*") if path.is_file() and not path.is_symlink()
        )
        if len(files) > FILES_MAX:
            self._warn(f"there are {len(files)} files, and only {FILES_MAX} are stored")
        return files[:FILES_MAX]

    def _upload(self, path: Path) -> None:
        name = path.relative_to(self._folder).as_posix()
        state = path.stat()
        stamp = state.st_size, state.st_mtime_ns
        upload = self._uploads.setdefault(name, _Upload())
        if only_grows(name):
            is_rewritten = state.st_size < upload.size
        else:
            is_settling = time.time() - state.st_mtime < SETTLED_SECONDS and not self._is_closing
            if upload.stamp == stamp or is_settling:
                return
            is_rewritten = upload.stamp is not None
        if is_rewritten:
            upload.start_over()
        while upload.size < state.st_size:
            size = min(state.st_size - upload.size, PART_BYTES_MAX)
            try:
                self._store_part(path, name, upload, size)
            except KeyExists:
                # Another process of this epoch stored it, or an answer was lost.
                upload.start_over()
                continue
            upload.size += size
        upload.stamp = stamp

    def _store_part(self, path: Path, name: str, upload: _Upload, size: int) -> None:
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
        self._warning.show(
            f"files for TensorBoard could not be stored: {reason}; training goes on, and they are "
            "tried again"
        )
