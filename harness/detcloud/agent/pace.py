"""When to call the cluster: at once, soon, or when the time of a quiet agent has passed."""

from __future__ import annotations

import threading
import time
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from detcloud.http import Transport

PATIENT_SECONDS = 1.5


class Pace:
    """Shared by the watching thread, which brings news, and the session's, which waits for them.

    A call that carries nothing may be held by the cluster. News cut it off: its connection is
    closed and the next call carries them. That is harmless, since an answer lost is an answer
    repeated, and a call that carries something is never cut off, so that news cannot starve it.
    """

    def __init__(self) -> None:
        self._changed = threading.Condition()
        self._due_at: float | None = None
        self._held: Transport | None = None
        self._cut = False
        self._stopped = False
        # How long news wait that are not urgent, unless the cluster says how long they may.
        self.patient_seconds = PATIENT_SECONDS

    @property
    def stopped(self) -> bool:
        """Whether the session should end."""
        return self._stopped

    def news(self, *, urgent: bool) -> None:
        """Something waits to be sent: now, or soon together with what comes meanwhile."""
        at = time.monotonic() + (0.0 if urgent else self.patient_seconds)
        with self._changed:
            self._due_at = at if self._due_at is None else min(at, self._due_at)
            self._changed.notify_all()

    def taken(self) -> None:
        """What came until now is being packed."""
        with self._changed:
            self._due_at = None

    def wait(self, seconds: float) -> None:
        """Return after that time, when a call is due, or at the end."""
        until = time.monotonic() + seconds
        with self._changed:
            while not self._stopped:
                wake_at = until if self._due_at is None else min(until, self._due_at)
                left = wake_at - time.monotonic()
                if left <= 0:
                    return
                self._changed.wait(left)

    def rest(self, seconds: float) -> None:
        """Return after that time or at the end, whatever comes: the cluster needs the pause."""
        until = time.monotonic() + seconds
        with self._changed:
            while not self._stopped and (left := until - time.monotonic()) > 0:
                self._changed.wait(left)

    def hold(self, client: Transport) -> None:
        """The session begins a call that may be cut off."""
        with self._changed:
            self._held, self._cut = client, False

    def release(self) -> bool:
        """The call is over; whether it was cut off."""
        with self._changed:
            self._held = None
            return self._cut

    def cut_if_due(self) -> None:
        """Cut off the held call when news are due. Called again and again while they wait."""
        with self._changed:
            due = self._due_at is not None and time.monotonic() >= self._due_at
            if self._held is not None and (due or self._stopped):
                self._cut = True
                self._held.interrupt()

    def stop(self) -> None:
        """End all waiting."""
        with self._changed:
            self._stopped = True
            self._changed.notify_all()
