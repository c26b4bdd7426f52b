"""The times of calls to the cluster: at once, soon, or after the pause of an idle agent."""

from __future__ import annotations

import threading
import time
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable

    from detcloud.shared.http import Transport

DEFER_SECONDS = 1.5


class SyncSchedule:
    """The time of the next sync. The watching thread requests syncs, the session's thread waits.

    The cluster may hold an empty call. A request closes the connection of a held call, and the next
    call sends the new data. This is harmless, since the cluster repeats a lost answer. A call with
    content is never cut off, so that frequent requests cannot delay the content.
    """

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        """Create a schedule without requests. `clock` returns seconds that never decrease."""
        self._clock = clock
        self._changed = threading.Condition()
        self._due_at: float | None = None
        self._held_call: Transport | None = None
        self._was_cut = False
        self._stopped = False
        # The delay of deferrable data, until the cluster sets another delay.
        self.defer_seconds = DEFER_SECONDS

    @property
    def is_stopped(self) -> bool:
        """Whether `stop` was called, so that the session should end."""
        return self._stopped

    def request_sync(self, *, urgent: bool) -> None:
        """Request a sync for new data: now if `urgent`, otherwise after `defer_seconds`.

        An earlier due time stays. Wake the waiting session.
        """
        at = self._clock() + (0.0 if urgent else self.defer_seconds)
        with self._changed:
            self._due_at = at if self._due_at is None else min(at, self._due_at)
            self._changed.notify_all()

    def can_defer(self, seconds: float) -> bool:
        """Whether a sync is requested, but not due within the next `seconds`."""
        with self._changed:
            return self._due_at is not None and self._due_at - self._clock() >= seconds

    def begin_packing(self) -> None:
        """Clear all requests so far. The payload that is packed next satisfies the requests."""
        with self._changed:
            self._due_at = None

    def wait_until_due(self, seconds: float) -> None:
        """Wait until a sync is due, but at most `seconds`. Return at once after `stop`."""
        until = self._clock() + seconds
        with self._changed:
            while not self._stopped:
                wake_at = until if self._due_at is None else min(until, self._due_at)
                left = wake_at - self._clock()
                if left <= 0:
                    return
                self._changed.wait(left)

    def pause(self, seconds: float) -> None:
        """Wait for `seconds`, even if a sync is due. Return at once after `stop`."""
        until = self._clock() + seconds
        with self._changed:
            while not self._stopped and (left := until - self._clock()) > 0:
                self._changed.wait(left)

    def begin_held_call(self, client: Transport) -> None:
        """Record that the session begins a call on `client` that may be cut off."""
        with self._changed:
            self._held_call, self._was_cut = client, False

    def end_held_call(self) -> bool:
        """Record that the call is over, and return whether the call was cut off."""
        with self._changed:
            self._held_call = None
            return self._was_cut

    def cut_held_call_if_due(self) -> None:
        """Cut off the held call if a sync is due or the schedule is stopped.

        Do nothing without a held call. The watching thread calls this repeatedly.
        """
        with self._changed:
            due = self._due_at is not None and self._clock() >= self._due_at
            if self._held_call is not None and (due or self._stopped):
                self._was_cut = True
                self._held_call.interrupt()

    def stop(self) -> None:
        """Stop the schedule for good, and wake all waiting threads."""
        with self._changed:
            self._stopped = True
            self._changed.notify_all()
