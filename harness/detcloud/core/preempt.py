"""Preemption: whether this trial should stop, and how soon."""

from __future__ import annotations

import time
from collections.abc import Callable

from detcloud.shared.trial_directory import Directives, Preemption

READ_SECONDS_MIN = 0.1


class PreemptContext:
    """Reads the directives at most every 100 ms, so that it may be asked at every batch."""

    def __init__(self, read: Callable[[], Directives]) -> None:
        self._read = read
        self._next_read = 0.0
        self._directed: Preemption | None = None
        self._requested: Preemption | None = None
        self.was_seen = False

    def should_preempt(self, auto_ack: bool = True) -> bool:
        """Whether the cluster wants this trial to checkpoint and exit, with a deadline or not.

        Call it where stopping is convenient: the cluster waits for the end of a workload. The exit
        is the acknowledgement, so `auto_ack`, which Determined's scripts may give, changes nothing.
        """
        self._read_directives()
        self.was_seen = self.was_seen or self._pending() is not None
        return self._pending() is not None

    def must_stop_at_next_batch(self) -> bool:
        """Whether there is a deadline: an interruption notice or SIGTERM."""
        self._read_directives()
        pending = self._pending()
        urgent = pending is not None and pending.deadline_ms is not None
        self.was_seen = self.was_seen or urgent
        return urgent

    def request(self, preempt: Preemption) -> None:
        """Note a preemption that reached this process itself, such as a signal."""
        self._requested = preempt

    def _pending(self) -> Preemption | None:
        return self._requested or self._directed

    def _read_directives(self) -> None:
        now = time.monotonic()
        if now >= self._next_read:
            self._next_read = now + READ_SECONDS_MIN
            self._directed = self._read().preempt
