"""Notice of an instance's end, as Compute Engine announces it in the instance's metadata."""

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
# From the signal to power off to the end; the metadata change with the signal, or as much earlier
# as the scheduling's `preemptionNoticeDuration` says.
PREEMPTION_SECONDS = 30
# The least that is announced of maintenance which ends the machine; one with GPUs gets an hour.
MAINTENANCE_SECONDS = 60
HOLD_SECONDS = 60
RETRY_SECONDS = 1.0


class GceNotices:
    """Notices of the end of an instance. Threads wait for a change of its metadata.

    Without an answer the last notice stands: a machine that is busy ending may not answer.
    """

    # Compute Engine gives no advice without an end.
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
        """Start the threads that read the metadata."""
        watches = {
            PREEMPTED_PATH: self._take_preempted,
            MAINTENANCE_PATH: self._take_maintenance_event,
        }
        for path, take in watches.items():
            threading.Thread(target=self._watch, args=(path, take), name=path, daemon=True).start()
        return self

    def stop(self) -> None:
        """End the threads with the answer that each waits for."""
        self._stopped.set()

    def poll(self) -> Notice | None:
        """The notice with the earlier deadline, None without one."""
        notices = [item for item in (self._preemption, self._maintenance) if item is not None]
        return min(notices, key=lambda notice: notice.deadline_ms, default=None)

    def _watch(self, path: str, take: Callable[[str], None]) -> None:
        etag = ""
        while not self._stopped.is_set():
            # Whatever goes wrong with one look, the next may be the one that matters.
            try:
                value = self._metadata.wait_for_change(path, etag, HOLD_SECONDS)
            except Exception:
                etag = ""
                self._stopped.wait(self._retry_seconds)
                continue
            take(value.text or "")
            if not value.etag or value.etag == etag:
                # A server that does not wait is not asked without a pause.
                self._stopped.wait(self._retry_seconds)
            etag = value.etag

    def _take_preempted(self, text: str) -> None:
        if text.strip() == "TRUE" and self._preemption is None:
            reason = "Compute Engine is preempting this spot instance"
            self._preemption = _notice_in(self._preemption_seconds, reason)

    def _take_maintenance_event(self, text: str) -> None:
        # An instance that is migrated alive goes on elsewhere.
        if text.strip() != "TERMINATE_ON_HOST_MAINTENANCE":
            self._maintenance = None
        elif self._maintenance is None:
            reason = "Compute Engine stops this instance for maintenance of its host"
            self._maintenance = _notice_in(MAINTENANCE_SECONDS, reason)


def _notice_in(seconds: int, reason: str) -> Notice:
    return Notice(time.time_ns() // 1_000_000 + seconds * 1000, reason)
