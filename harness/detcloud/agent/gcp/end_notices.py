"""Notices of an instance's end, which Compute Engine publishes in the instance's metadata."""

from __future__ import annotations

import threading
import time
from typing import TYPE_CHECKING

from detcloud.shared.notices import Notice

if TYPE_CHECKING:
    from collections.abc import Callable

    from detcloud.agent.gcp.metadata import GceMetadata

PREEMPTED_PATH = "instance/preempted"
MAINTENANCE_PATH = "instance/maintenance-event"
# The time from the power-off signal to the end of a preempted instance. The metadata change at the
# signal, or earlier by the `preemptionNoticeDuration` of the instance's scheduling.
PREEMPTION_SECONDS = 30
# The shortest warning before maintenance that stops an instance. Instances with GPUs get an hour.
MAINTENANCE_SECONDS = 60
HOLD_SECONDS = 60
RETRY_SECONDS = 1.0


class GceNotices:
    """The source of notices of an instance's end. Two threads wait for changes of the metadata.

    If the metadata server does not answer, the last notice stays valid, because an ending machine
    may be too busy to answer. `preemption_seconds` is the time from a preemption notice to the end.
    `retry_seconds` is the pause after a failed or unchanged read.
    """

    # Compute Engine never advises to leave an instance without announcing an end.
    is_end_likely = False

    def __init__(
        self,
        metadata: GceMetadata,
        preemption_seconds: int = PREEMPTION_SECONDS,
        retry_seconds: float = RETRY_SECONDS,
    ) -> None:
        self._metadata = metadata
        self._preemption_seconds = preemption_seconds
        self._retry_seconds = retry_seconds
        self._preemption: Notice | None = None
        self._maintenance: Notice | None = None
        self._stopped = threading.Event()

    def start(self) -> GceNotices:
        """Start a daemon thread for each metadata path, and return this object. Call it once."""
        watches = {
            PREEMPTED_PATH: self._take_preempted,
            MAINTENANCE_PATH: self._take_maintenance_event,
        }
        for path, take in watches.items():
            threading.Thread(target=self._watch, args=(path, take), name=path, daemon=True).start()
        return self

    def stop(self) -> None:
        """Ask the threads to end, without waiting for the end.

        A thread ends when its current request is answered, which may take over HOLD_SECONDS.
        """
        self._stopped.set()

    def poll(self) -> Notice | None:
        """Return the current notice with the earliest deadline. Return None if no end is announced.

        A preemption stays announced. A maintenance notice ends when the metadata withdraw it.
        """
        notices = [item for item in (self._preemption, self._maintenance) if item is not None]
        return min(notices, key=lambda notice: notice.deadline_ms, default=None)

    def _watch(self, path: str, take: Callable[[str], None]) -> None:
        etag = ""
        while not self._stopped.is_set():
            # No error may end the thread, since a later read may bring a notice.
            try:
                value = self._metadata.wait_for_change(path, etag, HOLD_SECONDS)
            except Exception:
                etag = ""
                self._stopped.wait(self._retry_seconds)
                continue
            take(value.text or "")
            if not value.etag or value.etag == etag:
                # The server answered without waiting for a change: avoid a busy loop.
                self._stopped.wait(self._retry_seconds)
            etag = value.etag

    def _take_preempted(self, text: str) -> None:
        if text.strip() == "TRUE" and self._preemption is None:
            reason = "Compute Engine is preempting this spot instance"
            self._preemption = _notice_in(self._preemption_seconds, reason)

    def _take_maintenance_event(self, text: str) -> None:
        # Other values, such as a live migration, do not end the instance.
        if text.strip() != "TERMINATE_ON_HOST_MAINTENANCE":
            self._maintenance = None
        elif self._maintenance is None:
            reason = "Compute Engine stops this instance for maintenance of its host"
            self._maintenance = _notice_in(MAINTENANCE_SECONDS, reason)


def _notice_in(seconds: int, reason: str) -> Notice:
    return Notice(time.time_ns() // 1_000_000 + seconds * 1000, reason)
