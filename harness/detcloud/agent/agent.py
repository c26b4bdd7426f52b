"""The agent's main loop: one thread syncs with the cluster, this one watches the trials."""

from __future__ import annotations

import sys
import threading
import time
from dataclasses import replace
from typing import TYPE_CHECKING, Protocol

from detcloud.shared.notices import Notice

if TYPE_CHECKING:
    from collections.abc import Callable

    from detcloud.agent.alive_file import AliveFile
    from detcloud.agent.allocation.allocation import Allocation
    from detcloud.agent.node import Node
    from detcloud.agent.sync.schedule import SyncSchedule
    from detcloud.agent.sync.session import Session

SCAN_SECONDS = 0.025
IDLE_SECONDS = 0.2
NOTICE_POLL_SECONDS = 0.5
RETRY_SECONDS = 1.0
SHUTDOWN_SECONDS_MAX = 5.0
ALLOCATIONS_PER_SCAN = 8


class NoticeSource(Protocol):
    """A source of notices that this machine is about to end; it must not block or raise."""

    @property
    def is_end_likely(self) -> bool:
        """Whether the cloud advises to leave the machine, with no end announced yet."""

    def poll(self) -> Notice | None:
        """The notice that stands now, None without one. The agent asks twice a second."""


class Agent:
    """Watches the trials until a stop, then lets them checkpoint and reports their exits."""

    def __init__(
        self,
        node: Node,
        schedule: SyncSchedule,
        session: Session,
        notices: NoticeSource,
        stop_seconds: float,
        log_line: Callable[[str], None],
        alive: AliveFile | None = None,
    ) -> None:
        """`alive` is what a watchdog of the machine looks at, if it has one."""
        self._node = node
        self._alive = alive
        self._schedule = schedule
        self._session = session
        self._notices = notices
        self._stop_seconds = stop_seconds
        self._log_line = log_line
        self._notices_at = 0.0
        self._troubles: dict[str, str] = {}
        # How often a stop was requested; at the second request trials are killed at once.
        self.stop_requests = 0
        self._stops_ms = sys.maxsize

    def run(self) -> str | None:
        """Work until a stop is requested (None) or the cluster refuses the agent (the reason)."""
        self._node.adopt()
        self._scan_all()
        thread = threading.Thread(target=self._session.run, name="session", daemon=True)
        thread.start()
        while not self.stop_requests and self._session.refusal is None:
            self._scan_all()
            self._wait_for_next_scan()
        if self._session.refusal is None:
            self._shut_down()
        self._schedule.stop()
        self._schedule.cut_held_call_if_due()
        thread.join(timeout=SHUTDOWN_SECONDS_MAX)
        self._node.close()
        return self._session.refusal

    def _scan_all(self) -> None:
        if time.monotonic() >= self._notices_at:
            self._notices_at = time.monotonic() + NOTICE_POLL_SECONDS
            self._node.release_idle_resources()
            if self._alive is not None and self._has_work():
                self._alive.refresh()
            self._look_for_notice()
        for allocation in self._node.allocations():
            if not allocation.is_active and allocation.is_acknowledged():
                continue
            self._scan_allocation(allocation)
        self._schedule.cut_held_call_if_due()

    def _look_for_notice(self) -> None:
        """Tell the trials when this machine ends, as it was told itself or else the cluster was,
        and the cluster what it does not know.
        """
        notice = self._notices.poll()
        if notice is not None:
            self._node.notify(self._notice_within_stop(notice))
            self._session.report_notice(notice.deadline_ms)
        elif self._session.announced_end is not None:
            self._node.notify(self._notice_within_stop(self._session.announced_end))
        elif self._notices.is_end_likely:
            self._session.report_notice(None)

    def _notice_within_stop(self, notice: Notice) -> Notice:
        """The notice as trials are told it: an agent that is stopping gives them no more time than
        its own, however long the machine stays.
        """
        return replace(notice, deadline_ms=min(notice.deadline_ms, self._stops_ms))

    def _has_work(self) -> bool:
        """Whether trials run, or have ended and the cluster does not know how."""
        node = self._node
        return node.has_active_allocations() or not node.is_acknowledged()

    def _scan_allocation(self, allocation: Allocation) -> None:
        try:
            try:
                allocation.poll()
            finally:
                # The trial's own news are sent also where the agent finds no room for a record.
                self._scan_output(allocation)
        except OSError as error:
            # A full disk or too many open files: the next scan may succeed.
            self._report_trouble(allocation.allocation, str(error))
            self._node.wake_event.wait(RETRY_SECONDS)
            return
        except Exception as error:
            # Whatever a trial has put into its folder costs no other one its agent.
            self._report_trouble(allocation.allocation, f"{type(error).__name__}: {error}")
            self._node.wake_event.wait(RETRY_SECONDS)
            return
        if self._troubles.pop(allocation.allocation, None):
            self._log_line(f"{allocation.allocation} is monitored again")

    def _scan_output(self, allocation: Allocation) -> None:
        output = allocation.scan_output()
        if output.has_urgent or output.has_deferrable:
            self._schedule.request_sync(urgent=output.has_urgent)

    def _report_trouble(self, allocation: str, trouble: str) -> None:
        if self._troubles.get(allocation) != trouble:
            self._troubles[allocation] = trouble
            self._log_line(f"{allocation} could not be monitored, trying again: {trouble}")

    def _wait_for_next_scan(self) -> None:
        active = sum(allocation.is_active for allocation in self._node.allocations())
        seconds = SCAN_SECONDS * max(1.0, active / ALLOCATIONS_PER_SCAN) if active else IDLE_SECONDS
        self._node.wake_event.wait(seconds)
        self._node.wake_event.clear()

    def _shut_down(self) -> None:
        """Ask the trials to checkpoint, wait for them, then kill what still runs."""
        self._node.stopping = True
        self._stops_ms = time.time_ns() // 1_000_000 + int(self._stop_seconds * 1000)
        self._node.notify(Notice(self._stops_ms, "the agent is stopping"))
        self._scan_until(
            lambda: not self._node.has_active_allocations() or self.stop_requests > 1,
            self._stop_seconds,
        )
        self._node.kill_all(1000)
        self._scan_until(
            lambda: not self._node.has_active_allocations() and self._node.is_acknowledged(),
            SHUTDOWN_SECONDS_MAX,
        )

    def _scan_until(self, done: Callable[[], bool], seconds: float) -> None:
        give_up_at = time.monotonic() + seconds
        while not done() and time.monotonic() < give_up_at:
            self._scan_all()
            self._wait_for_next_scan()
