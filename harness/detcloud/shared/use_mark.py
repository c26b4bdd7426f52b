"""The file by which a shell shows the agent that somebody uses the shell.

The program of a shell touches the file in the trial's home, and the agent reads the time. A program
of the trial can touch the file, too, and so only prolongs its own idle time.
"""

from __future__ import annotations

import contextlib
import os
import time
from pathlib import Path

NAME = "shell.used"
TOUCH_SECONDS = 10.0
"""The time after a touch in which further uses touch nothing."""


class UseMark:
    """The file in a home folder. Without a folder, nothing is touched."""

    def __init__(self, home: str | None) -> None:
        self._path = None if home is None else Path(home) / NAME
        self._due_at = 0.0

    def touch(self) -> None:
        """Set the time of the file to now. Ignore a file that cannot be written."""
        now = time.monotonic()
        if self._path is None or now < self._due_at:
            return
        self._due_at = now + TOUCH_SECONDS
        with contextlib.suppress(OSError):
            flags = os.O_WRONLY | os.O_CREAT | os.O_NOFOLLOW | os.O_NONBLOCK
            descriptor = os.open(self._path, flags, 0o600)
            try:
                os.utime(descriptor)
            finally:
                os.close(descriptor)


def read_use_ms(home: Path) -> int:
    """Return the time of the file in a home folder, in epoch ms. 0 for a missing file."""
    try:
        return os.lstat(home / NAME).st_mtime_ns // 1_000_000
    except OSError:
        return 0
