"""The times of calls to the cluster: at once, soon, or after the pause of a quiet agent."""

from __future__ import annotations

import threading
import time
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from detcloud.shared.http import Transport

DEFER_SECONDS = 1.5


class SyncSchedule:
    """When the next sync is due; the watching thread requests syncs, the session's thread waits.

    The cluster may hold a call that carries nothing. A request cuts it off: its connection is
    closed and the next call carries the news. That is harmless, since a lost answer is repeated,
    and a call that carries something is never cut off, so that requests cannot starve it.
    """

    def __init__(self) -> None:
        self._changed = threading.Condition()
        self._due_at: float | None = None
        self._held_call: Transport | None = None
        self._was_cut = False
        self._stopped = False
        # How long deferrable news wait, unless the cluster says how long they may.
        self.defer_seconds = DEFER_SECONDS

    @property
    def is_stopped(self) -> bool:
        """Whether the session should end."""
        return self._stopped

    def request_sync(self, *, urgent: bool) -> None:
        """Request a sync for new data: now, or soon, together with what arrives until then."""
        at = time.monotonic() + (0.0 if urgent else self.defer_seconds)
        with self._changed:
            self._due_at = at if self._due_at is None else min(at, self._due_at)
            self._changed.notify_all()

    def can_defer(self, seconds: float) -> bool:
        """Whether news wait, and may wait for another call in so many seconds as well."""
        with self._changed:
            return self._due_at is not None and self._due_at - time.monotonic() >= seconds

    def begin_packing(self) -> None:
        """Clear the requests made so far, which the payload that is packed now satisfies."""
        with self._changed:
            self._due_at = None

    def wait_until_due(self, seconds: float) -> None:
        """Return after that time, when a sync is due, or when stopped."""
        until = time.monotonic() + seconds
        with self._changed:
            while not self._stopped:
                wake_at = until if self._due_at is None else min(until, self._due_at)
                left = wake_at - time.monotonic()
                if left <= 0:
                    return
                self._changed.wait(left)

    def pause(self, seconds: float) -> None:
        """Return after that time or when stopped, even if a sync is due."""
        until = time.monotonic() + seconds
        with self._changed:
            while not self._stopped and (left := until - time.monotonic()) > 0:
                self._changed.wait(left)

    def begin_held_call(self, client: Transport) -> None:
        """Note that the session begins a call that may be cut off."""
        with self._changed:
            self._held_call, self._was_cut = client, False

    def end_held_call(self) -> bool:
        """Note that the call is over; whether it was cut off."""
        with self._changed:
            self._held_call = None
            return self._was_cut

    def cut_held_call_if_due(self) -> None:
        """Cut off the held call when a sync is due. Called repeatedly while one is."""
        with self._changed:
            due = self._due_at is not None and time.monotonic() >= self._due_at
            if self._held_call is not None and (due or self._stopped):
                self._was_cut = True
                self._held_call.interrupt()

    def stop(self) -> None:
        """End all waiting."""
        with self._changed:
            self._stopped = True
            self._changed.notify_all()
