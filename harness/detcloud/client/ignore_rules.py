"""The rules of `.detignore` for the folder that `detcloud dev` synchronises."""

from __future__ import annotations

from pathlib import Path

from detcloud.client.upload_filter import upload_filter
from detcloud.shared.detignore import FILE_NAME
from detcloud.shared.folder_sync.synced_names import SyncedNames


class IgnoreRules:
    """The present rules of a folder. They are those of an upload, and apply to both machines."""

    def __init__(self, folder: Path) -> None:
        """Read the folder's `.detignore`.

        Raises:
            DetcloudError: `.detignore` cannot be read, or one of its lines is not a pattern.
        """
        self._folder = folder
        self._seen = self._version()
        self.names = _read(folder)
        """The function that decides which paths are kept the same."""

    def refresh(self) -> bool:
        """Read a changed `.detignore` again, and return whether the file has changed.

        Raises:
            DetcloudError: the changed file is invalid. The former rules stay, and the next call
                returns False unless the file has changed again.
        """
        version = self._version()
        if version == self._seen:
            return False
        self._seen = version
        self.names = _read(self._folder)
        return True

    def _version(self) -> tuple[int, ...] | None:
        """Return the fields that change with `.detignore`. None without this file."""
        try:
            status = (self._folder / FILE_NAME).stat()
        except OSError:
            return None
        return status.st_ino, status.st_size, status.st_mtime_ns, status.st_ctime_ns


def _read(folder: Path) -> SyncedNames:
    """Raises DetcloudError if `.detignore` is invalid."""
    return SyncedNames(upload_filter(folder).rules())
