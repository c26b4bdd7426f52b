"""Files that keep space for records on a full disk.

The agent and the supervisors of trials must record the exits of trials. Without the record, the
cluster would never learn that a trial on a full disk has failed.
"""

from __future__ import annotations

import contextlib
import os
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pathlib import Path

FILES = 16
FILE_BYTES = 256 << 10


class Ballast:
    """The folder `ballast` in the agent's work directory, with FILES files of FILE_BYTES each.

    Trials may use up the space of a deleted file, too. Therefore `release` deletes a single file.
    """

    def __init__(self, work: Path) -> None:
        self._folder = work / "ballast"

    def keep(self) -> None:
        """Create the missing files. Ignore a disk without space, and other errors."""
        with contextlib.suppress(OSError):
            self._folder.mkdir(mode=0o700, parents=True, exist_ok=True)
            for number in range(FILES):
                self._create(self._folder / str(number))

    def release(self) -> None:
        """Delete a file if less space than the size of a file is free. Ignore errors."""
        with contextlib.suppress(OSError):
            disk = os.statvfs(self._folder)
            if disk.f_bavail * disk.f_frsize < FILE_BYTES:
                for path in list(self._folder.iterdir())[:1]:
                    path.unlink()

    def _create(self, path: Path) -> None:
        """Create a missing file. Raise OSError without space, and leave no file then."""
        flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC
        try:
            descriptor = os.open(path, flags, 0o600)
        except FileExistsError:
            return
        try:
            os.posix_fallocate(descriptor, 0, FILE_BYTES)
        except OSError:
            path.unlink()
            raise
        finally:
            os.close(descriptor)
