"""The thread of an embedded cluster that delivers the events of webhooks."""

import logging
import threading
import time
from collections.abc import Iterable
from concurrent.futures import ThreadPoolExecutor

from control_plane.rows.webhook_rows import EVENT
from control_plane.state.table import Key, TableError
from control_plane.webhooks.deliverer import Deliverer
from local_cluster.background_thread import BackgroundThread

log = logging.getLogger(__name__)

STOP_SECONDS_MAX = 15.0
"""The time for which a stop waits for attempts that have begun, in seconds."""
RETRY_MS = 1_000
"""The delay after a failure of the table, in ms."""
WORKERS = 8
"""The most subjects whose events are delivered at the same time."""


class DeliveryThread(BackgroundThread):
    """A thread that delivers events to the receivers of webhooks, from `start` to `stop`.

    The thread delivers the events of a subject after a commit with an event, and when the tick
    finds due events. It also repeats a failed attempt when the next attempt is due. Errors are
    logged.
    """

    def __init__(self, deliverer: Deliverer) -> None:
        super().__init__("webhooks", STOP_SECONDS_MAX)
        self._deliverer = deliverer
        self._lock = threading.Lock()
        self._due: dict[str, float] = {}

    def wake_on_row(self, key: Key) -> None:
        """Wake the thread if a row with this key is an event. Otherwise do nothing.

        The engine calls this method for each row that it commits.
        """
        if key.partition.startswith(EVENT.partition):
            self.wake((key.partition,))

    def wake(self, partitions: Iterable[str]) -> None:
        """Let the thread deliver the due events in the partitions now."""
        with self._lock:
            self._due.update(dict.fromkeys(partitions, 0.0))
            has_work = bool(self._due)
        if has_work:
            self._woken.set()

    def _run(self) -> None:
        """Let workers deliver events until the thread is stopped, and wait for the workers."""
        with ThreadPoolExecutor(WORKERS, "delivering") as workers:
            self._run_workers(workers)

    def _run_workers(self, workers: ThreadPoolExecutor) -> None:
        """Let workers deliver the events that are due, until the thread is stopped."""
        while not self._stopped.is_set():
            self._woken.wait(self._seconds_until_due())
            self._woken.clear()
            partitions = self._take_due()
            if not partitions or self._stopped.is_set():
                continue
            # A receiver that does not answer must not delay the events of other subjects.
            for partition in partitions:
                workers.submit(self._deliver, partition)

    def _deliver(self, partition: str) -> None:
        """Deliver the due events of a subject, and plan the next attempt. Log each error."""
        if self._stopped.is_set():
            return
        try:
            wait_ms = self._deliverer.deliver((partition,))
        except TableError as error:
            log.warning("the events of %s cannot be delivered now: %s", partition, error)
            wait_ms = RETRY_MS
        except Exception:
            log.exception("the delivery of the events of %s failed", partition)
            return
        if wait_ms is not None:
            self._call_again(partition, wait_ms)

    def _seconds_until_due(self) -> float | None:
        """Return the seconds until the next partition is due. None without partitions."""
        with self._lock:
            first = min(self._due.values(), default=None)
        return None if first is None else max(0.0, first - time.monotonic())

    def _take_due(self) -> list[str]:
        """Remove and return the partitions that are due now."""
        now = time.monotonic()
        with self._lock:
            due = [partition for partition, time_due in self._due.items() if time_due <= now]
            for partition in due:
                del self._due[partition]
        return due

    def _call_again(self, partition: str, wait_ms: int) -> None:
        """Let a partition be due after a delay, unless the partition is due earlier."""
        again = time.monotonic() + wait_ms / 1000
        with self._lock:
            self._due[partition] = min(again, self._due.get(partition, again))
        self._woken.set()
