"""The files of `detcloud dev` in the data folder: locks, common contents and backups."""

from __future__ import annotations

import contextlib
import fcntl
import hashlib
import os
import re
import time
from collections.abc import Iterator, Mapping
from pathlib import Path

from detcloud.shared.errors import DetcloudError
from detcloud.shared.files import delete_tree, read_json_object, write_atomically

BACKUP_DAYS = 7
BACKUP_BYTES_MAX = 1_000_000_000
"""The most bytes of backups of earlier sessions."""
RECENT_SECONDS = 24 * 3600
"""The age up to which backups are never deleted, because their session may still run."""
_SESSION = re.compile(r"\d{8}-\d{6}-\d+")
"""The name of a session's folder of backups: date, time and shell."""


class DevState:
    """The files of `detcloud dev` for a folder of this machine."""

    def __init__(self, home: Path, folder: Path) -> None:
        """Create the object without any I/O.

        Args:
            home: the data folder of detcloud.
            folder: the absolute path of the folder that is kept the same.
        """
        self._home, self._folder = home / "dev", folder

    @contextlib.contextmanager
    def hold_lock(self) -> Iterator[None]:
        """Hold the folder's lock during the block, so that no second `detcloud dev` uses the
        folder.

        Raises:
            DetcloudError: another process holds the lock, or the lock file cannot be written.
        """
        name = hashlib.sha256(os.fsencode(self._folder)).hexdigest()[:16]
        path = self._home / "locks" / name
        try:
            path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
            file = path.open("a")
        except OSError as error:
            raise DetcloudError(f"{path} cannot be written: {error.strerror}") from None
        with file:
            try:
                fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except OSError:
                raise DetcloudError(
                    f"another `detcloud dev` keeps {self._folder} the same; end it first, or open "
                    "another terminal on its machine with `detcloud shell open ID`"
                ) from None
            yield

    def take_common(self, shell: int, url: str) -> dict[str, str]:
        """Return the stored common contents of a shell, and delete the file.

        After a crash of this process, no outdated contents can then make a file of the user look
        unchanged. Return an empty dictionary if none are stored for this folder and cluster.
        """
        path = self._common_file(shell)
        stored = read_json_object(path) or {}
        self.forget(shell)
        common = stored.get("common")
        is_same = stored.get("folder") == str(self._folder) and stored.get("url") == url
        if not is_same or not isinstance(common, dict):
            return {}
        return {str(name): str(digest) for name, digest in common.items()}

    def store_common(self, shell: int, url: str, common: Mapping[str, str]) -> None:
        """Store the common contents, so that a later session recognises deleted files.

        Raises:
            OSError: the file cannot be written.
        """
        path = self._common_file(shell)
        path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        write_atomically(path, {"url": url, "folder": str(self._folder), "common": dict(common)})

    def forget(self, shell: int) -> None:
        """Delete the common contents of a shell. Do nothing without these."""
        with contextlib.suppress(OSError):
            self._common_file(shell).unlink(missing_ok=True)

    def new_backups(self, shell: int) -> Path:
        """Return the path of a session's folder of backups, which is not created yet."""
        return self._home / "replaced" / time.strftime(f"%Y%m%d-%H%M%S-{shell}")

    def prune_backups(self, now_seconds: float) -> None:
        """Delete backups of earlier sessions, the oldest first.

        Delete a session whose latest backup is older than BACKUP_DAYS, and then sessions until the
        others have at most BACKUP_BYTES_MAX together. Sessions with a backup of the last day, and
        other files in the folder, stay.
        """
        try:
            with os.scandir(self._home / "replaced") as found:
                sessions = [Path(entry.path) for entry in found if _SESSION.fullmatch(entry.name)]
        except OSError:
            return
        kept_bytes, oldest = 0, now_seconds - BACKUP_DAYS * 24 * 3600
        for session in sorted(sessions, reverse=True):
            begun, size = _measure(session)
            kept_bytes += size
            is_recent = begun > now_seconds - RECENT_SECONDS
            if begun < oldest or (kept_bytes > BACKUP_BYTES_MAX and not is_recent):
                delete_tree(session)

    def _common_file(self, shell: int) -> Path:
        return self._home / "shells" / f"{shell}.json"


def _measure(session: Path) -> tuple[float, int]:
    """Return the time of the latest backup in a folder, and the bytes of all backups."""
    latest, size = 0.0, 0
    with contextlib.suppress(OSError):
        latest = session.stat().st_mtime
        for folder, _, names in os.walk(session):
            for name in names:
                with contextlib.suppress(OSError):
                    status = (Path(folder) / name).lstat()
                    latest, size = max(latest, status.st_mtime), size + status.st_size
    return latest, size
