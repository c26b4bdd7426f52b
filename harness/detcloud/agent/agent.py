"""The agent's main loop, which watches the trials. Another thread syncs with the cluster."""

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
    from detcloud.agent.self_termination import SelfTermination
    from detcloud.agent.sync.schedule import SyncSchedule
    from detcloud.agent.sync.session import Session
    from detcloud.agent.updates import CodeUpdater

SCAN_SECONDS = 0.025
IDLE_SECONDS = 0.2
NOTICE_POLL_SECONDS = 0.5
RETRY_SECONDS = 1.0
SHUTDOWN_SECONDS_MAX = 5.0
ALLOCATIONS_PER_SCAN = 8


class NoticeSource(Protocol):
    """A source of notices that this machine is about to end. No method blocks or raises."""

    @property
    def is_end_likely(self) -> bool:
        """Whether the cloud recommends leaving the machine, without announcing an end."""

    def poll(self) -> Notice | None:
        """Return the current notice of the machine's end. Return None if no end is announced.

        The agent calls this twice a second.
        """


class Agent:
    """The agent's main loop: watches the trials until a stop is requested.

    A stop lets the trials checkpoint and reports their exits. The attribute `stop_requests` counts
    the requests; signal handlers increase it.
    """

    def __init__(
        self,
        node: Node,
        schedule: SyncSchedule,
        session: Session,
        notices: NoticeSource,
        stop_seconds: float,
        log_line: Callable[[str], None],
        alive: AliveFile | None = None,
        self_termination: SelfTermination | None = None,
    ) -> None:
        """Create an agent; `run` starts the work.

        Args:
            node: the node's allocations.
            schedule: the schedule that `session` uses.
            session: the session with the cluster. `run` starts its thread.
            notices: the source of notices of the machine's end.
            stop_seconds: the time for trials to checkpoint after a stop request.
            log_line: writes to the agent's log.
            alive: the file for the machine's watchdog, or None.
            self_termination: ends the machine when the cluster's tick is dead. None if the
                provisioner did not launch the machine.
        """
        self._node = node
        self._alive = alive
        self._self_termination = self_termination
        self._schedule = schedule
        self._session = session
        self._notices = notices
        self._stop_seconds = stop_seconds
        self._log_line = log_line
        self._notices_at = 0.0
        self._troubles: dict[str, str] = {}
        # The number of stop requests. The second request kills the trials at once.
        self.stop_requests = 0
        # Whether the agent must end without its trials, so that another process continues.
        self.is_handing_over = False
        # The updates of the code. None for an agent that was not installed.
        self.updater: CodeUpdater | None = None
        self._stops_ms = sys.maxsize

    def run(self) -> str | None:
        """Adopt earlier allocations, then watch the trials until a stop or a refusal.

        Return None after a stop request or a handover, the reason if the cluster refuses the agent.
        After a stop, wait up to `stop_seconds` for the trials to checkpoint, then kill them and
        report their exits. After a handover or a refusal, running trials are left alone. Finally
        end the session's thread and close the node.
        """
        self._node.adopt()
        self._scan_all()
        thread = threading.Thread(target=self._session.run, name="session", daemon=True)
        thread.start()
        while not self._must_end():
            self._scan_all()
            self._wait_for_next_scan()
        if self._session.refusal is None and (self.stop_requests or not self.is_handing_over):
            self._shut_down()
        if self._session.tunnels is not None:
            self._session.tunnels.close()
        self._schedule.stop()
        self._schedule.cut_held_call_if_due()
        thread.join(timeout=SHUTDOWN_SECONDS_MAX)
        self._node.close()
        return self._session.refusal

    def _must_end(self) -> bool:
        """Whether a stop, a handover or a refusal ends the loop."""
        return bool(self.stop_requests) or self.is_handing_over or self._session.refusal is not None

    def _scan_all(self) -> None:
        if time.monotonic() >= self._notices_at:
            self._notices_at = time.monotonic() + NOTICE_POLL_SECONDS
            self._node.release_idle_resources()
            if self._alive is not None and self._has_work():
                self._alive.refresh()
            self._look_for_notice()
            self._session.cut_moved_call()
            if self._node.health is not None:
                self._node.health.poll()
            if self._node.people is not None:
                self._node.people.poll()
            if self._self_termination is not None:
                self._self_termination.check(self._has_work)
            if self.updater is not None and not self.stop_requests:
                offer = self._session.offered_code
                if self.updater.poll(offer, is_idle=not self._has_work()):
                    self.is_handing_over = True
        for allocation in self._node.allocations():
            if not allocation.is_active and allocation.is_acknowledged():
                continue
            self._scan_allocation(allocation)
        self._schedule.cut_held_call_if_due()

    def _look_for_notice(self) -> None:
        """Pass notices of the machine's end on to the trials and the cluster.

        The machine's own notice goes to both. Without a notice, the trials get the end that the
        cluster announced, if any. Otherwise a cloud's recommendation to leave goes to the cluster.
        """
        notice = self._notices.poll()
        if notice is not None:
            self._notify(notice)
            self._session.report_notice(notice.deadline_ms)
        elif self._session.announced_end is not None:
            self._notify(self._session.announced_end)
        elif self._notices.is_end_likely:
            self._session.report_notice(None)

    def _notify(self, notice: Notice) -> None:
        """Notify the trials, and the users of tunnels to the trials."""
        self._node.notify(self._notice_within_stop(notice))
        if self._session.tunnels is not None:
            self._session.tunnels.notify(notice)

    def _notice_within_stop(self, notice: Notice) -> Notice:
        """Return the notice with a deadline no later than the agent's own stop."""
        return replace(notice, deadline_ms=min(notice.deadline_ms, self._stops_ms))

    def _has_work(self) -> bool:
        """Whether an allocation is active, or the cluster has not acknowledged all exits."""
        node = self._node
        return node.has_active_allocations() or not node.is_acknowledged()

    def _scan_allocation(self, allocation: Allocation) -> None:
        try:
            try:
                allocation.poll()
            finally:
                # The trial's output is sent even if the agent's own record could not be written.
                self._scan_output(allocation)
            self._pass_on_warning(allocation)
        except OSError as error:
            # A full disk or too many open files: the next scan may succeed.
            self._report_trouble(allocation.allocation, str(error))
            self._node.wake_event.wait(RETRY_SECONDS)
            return
        except Exception as error:
            # A trial's files must not be able to end the agent of all other trials.
            self._report_trouble(allocation.allocation, f"{type(error).__name__}: {error}")
            self._node.wake_event.wait(RETRY_SECONDS)
            return
        if self._troubles.pop(allocation.allocation, None):
            self._log_line(f"{allocation.allocation} is monitored again")

    def _pass_on_warning(self, allocation: Allocation) -> None:
        """Show a new warning of the run's limits in the terminals of the run's tunnels."""
        warning = allocation.take_limit_warning()
        if warning and self._session.tunnels is not None:
            self._session.tunnels.warn(allocation.allocation, warning)

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
        """Notify the trials of the stop, wait up to `stop_seconds`, then kill active trials.

        Commands, notebooks and shells are stopped at once, because no notice ends them. A second
        stop request ends the waiting. Then wait up to SHUTDOWN_SECONDS_MAX until the cluster has
        acknowledged all exits. No new trial starts.
        """
        self._node.stopping = True
        self._stops_ms = time.time_ns() // 1_000_000 + int(self._stop_seconds * 1000)
        self._node.notify(Notice(self._stops_ms, "the agent is stopping"))
        self._node.stop_single_runs(int(self._stop_seconds * 1000))
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
