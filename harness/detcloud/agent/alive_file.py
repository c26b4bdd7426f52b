"""The file that a machine's watchdog reads to see whether the agent reaches the cluster.

The watchdog ends a machine with an old file. During an outage of the cluster, an agent with trials
keeps the file fresh for a while, so that the machine keeps working.
"""

from __future__ import annotations

import contextlib
import os
import time
from pathlib import Path
from typing import TYPE_CHECKING

from detcloud.shared.outage import OUTAGE_SECONDS_MAX

if TYPE_CHECKING:
    from collections.abc import Callable

REFRESH_SECONDS = 60.0


class AliveFile:
    """The watchdog's file at `path`. Its content is the time of the cluster's last answer.

    The content survives a restart of the agent. `clock` returns seconds since the epoch.
    `monotonic` returns seconds that no clock change affects.
    """

    def __init__(
        self,
        path: Path,
        clock: Callable[[], float] = time.time,
        monotonic: Callable[[], float] = time.monotonic,
    ) -> None:
        self._path = path
        self._clock = clock
        self._monotonic = monotonic
        self._refreshed_at: float | None = None
        self._has_expired = False

    def record_answer(self) -> None:
        """Write the current time to the file, because the cluster has answered.

        The content is a whole number of seconds since the epoch. Ignore an OSError. After `expire`,
        do nothing.
        """
        if self._has_expired:
            return
        with contextlib.suppress(OSError):
            self._path.write_text(str(int(self._clock())), encoding="ascii")

    def refresh(self) -> None:
        """Set the file's modification time to now if the last answer is at most 6 hours ago.

        The caller calls this while trials run. Do nothing within REFRESH_SECONDS of the last call
        that was not skipped. Do nothing if the file is missing, unreadable or contains no time, and
        after `expire`.
        """
        if self._has_expired:
            return
        now = self._monotonic()
        if self._refreshed_at is not None and now - self._refreshed_at < REFRESH_SECONDS:
            return
        self._refreshed_at = now
        # A file without a time means that no agent on this machine has ever reached the cluster.
        with contextlib.suppress(OSError, ValueError):
            answered = int(self._path.read_text(encoding="ascii"))
            if abs(self._clock() - answered) <= OUTAGE_SECONDS_MAX:
                os.utime(self._path)

    def expire(self) -> None:
        """Set the file's modification time to 1970, so that the watchdog ends the machine.

        The file then stays old. Repeat the call, because another thread may be within
        `record_answer`. Ignore an OSError.
        """
        self._has_expired = True
        with contextlib.suppress(OSError):
            os.utime(self._path, (0, 0))
