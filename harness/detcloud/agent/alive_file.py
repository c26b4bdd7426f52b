"""The file by which a machine's watchdog sees that its agent reaches the cluster.

Where trials run, an agent that the cluster does not answer keeps it fresh for a while: an outage of
the cluster must not end a machine that works.
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
    """The file, with the time of the last answer in it, which the next agent goes on from."""

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

    def record_answer(self) -> None:
        """Note that the cluster has answered."""
        with contextlib.suppress(OSError):
            self._path.write_text(str(int(self._clock())), encoding="ascii")

    def refresh(self) -> None:
        """Keep the file fresh while trials run, unless the last answer is too long ago."""
        now = self._monotonic()
        if self._refreshed_at is not None and now - self._refreshed_at < REFRESH_SECONDS:
            return
        self._refreshed_at = now
        # A file without a time is of a machine that no agent has reached the cluster from.
        with contextlib.suppress(OSError, ValueError):
            answered = int(self._path.read_text(encoding="ascii"))
            if abs(self._clock() - answered) <= OUTAGE_SECONDS_MAX:
                os.utime(self._path)
