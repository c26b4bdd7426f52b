"""Whether this trial should stop, and how soon."""

from __future__ import annotations

import time
from collections.abc import Callable

from detcloud.trial_directory import Directives, Preempt

LOOK_SECONDS_MIN = 0.1


class PreemptContext:
    """Asks the directives at most every 100 ms, so it may be asked at every batch."""

    def __init__(self, read: Callable[[], Directives]) -> None:
        self._read = read
        self._next_look = 0.0
        self._wish: Preempt | None = None
        self._requested: Preempt | None = None
        self.noticed = False

    def should_preempt(self, auto_ack: bool = True) -> bool:
        """True once the cluster wants this trial to checkpoint and exit, with a deadline or not.

        Ask it where stopping is convenient: the cluster waits for the end of a workload. The exit
        is the acknowledgement, so `auto_ack`, which Determined's scripts may give, changes nothing.
        """
        self._look()
        self.noticed = self.noticed or self._pending() is not None
        return self._pending() is not None

    def must_stop_at_next_batch(self) -> bool:
        """True once there is a deadline: an interruption notice or SIGTERM."""
        self._look()
        pending = self._pending()
        urgent = pending is not None and pending.deadline_ms is not None
        self.noticed = self.noticed or urgent
        return urgent

    def request(self, preempt: Preempt) -> None:
        """Notes a wish that reached this process by itself, such as a signal."""
        self._requested = preempt

    def _pending(self) -> Preempt | None:
        return self._requested or self._wish

    def _look(self) -> None:
        now = time.monotonic()
        if now >= self._next_look:
            self._next_look = now + LOOK_SECONDS_MIN
            self._wish = self._read().preempt
