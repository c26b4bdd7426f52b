"""One agent: a thread that talks to the cluster and one that watches the trials."""

from __future__ import annotations

import threading
import time
from typing import TYPE_CHECKING

from detcloud.agent.notices import Notice

if TYPE_CHECKING:
    from collections.abc import Callable

    from detcloud.agent.allocation import Allocation
    from detcloud.agent.node import Node
    from detcloud.agent.notices import NoticeSource
    from detcloud.agent.pace import Pace
    from detcloud.agent.session import Session

LOOK_SECONDS = 0.025
IDLE_SECONDS = 0.2
NOTICE_SECONDS = 0.5
TROUBLE_SECONDS = 1.0
LEAVE_SECONDS = 5.0
ALLOCATIONS_PER_LOOK = 8


class Agent:
    """Watches until told to stop, then lets the trials checkpoint and reports their exits."""

    def __init__(
        self,
        node: Node,
        pace: Pace,
        session: Session,
        notices: NoticeSource,
        stop_seconds: float,
        say: Callable[[str], None],
    ) -> None:
        self._node = node
        self._pace = pace
        self._session = session
        self._notices = notices
        self._stop_seconds = stop_seconds
        self._say = say
        self._notices_at = 0.0
        self._troubles: dict[str, str] = {}
        # Times asked to stop: the second time trials are killed without waiting.
        self.stop_requests = 0

    def run(self) -> str | None:
        """Work until a stop is requested (None) or the cluster refuses the agent (the reason)."""
        self._node.adopt()
        self._look()
        thread = threading.Thread(target=self._session.run, name="session", daemon=True)
        thread.start()
        while not self.stop_requests and self._session.refused is None:
            self._look()
            self._pause()
        if self._session.refused is None:
            self._leave()
        self._pace.stop()
        self._pace.cut_if_due()
        thread.join(timeout=LEAVE_SECONDS)
        self._node.close()
        return self._session.refused

    def _look(self) -> None:
        if time.monotonic() >= self._notices_at:
            self._notices_at = time.monotonic() + NOTICE_SECONDS
            self._node.tend()
            notice = self._notices.poll()
            if notice is not None:
                self._node.notify(notice)
                self._session.tell(notice.deadline_ms)
            elif self._notices.advised:
                self._session.tell(None)
        for allocation in self._node.allocations():
            if not allocation.active and allocation.flushed():
                continue
            self._look_at(allocation)
        self._pace.cut_if_due()

    def _look_at(self, allocation: Allocation) -> None:
        try:
            allocation.poll()
            news = allocation.look()
        except OSError as error:
            # A full disk or too many files: the next look may fare better.
            self._tell_trouble(allocation.allocation, str(error))
            self._node.stirred.wait(TROUBLE_SECONDS)
            return
        if self._troubles.pop(allocation.allocation, None):
            self._say(f"{allocation.allocation} is looked after again")
        if news.urgent or news.patient:
            self._pace.news(urgent=news.urgent)

    def _tell_trouble(self, allocation: str, trouble: str) -> None:
        if self._troubles.get(allocation) != trouble:
            self._troubles[allocation] = trouble
            self._say(f"{allocation} could not be looked after, trying again: {trouble}")

    def _pause(self) -> None:
        active = sum(allocation.active for allocation in self._node.allocations())
        seconds = LOOK_SECONDS * max(1.0, active / ALLOCATIONS_PER_LOOK) if active else IDLE_SECONDS
        self._node.stirred.wait(seconds)
        self._node.stirred.clear()

    def _leave(self) -> None:
        """Ask the trials to checkpoint, wait for them, then kill what still runs."""
        self._node.stopping = True
        deadline_ms = time.time_ns() // 1_000_000 + int(self._stop_seconds * 1000)
        self._node.notify(Notice(deadline_ms, "the agent is stopping"))
        self._look_until(
            lambda: not self._node.active() or self.stop_requests > 1, self._stop_seconds
        )
        self._node.kill_all(1000)
        self._look_until(lambda: not self._node.active() and self._node.flushed(), LEAVE_SECONDS)

    def _look_until(self, done: Callable[[], bool], seconds: float) -> None:
        give_up_at = time.monotonic() + seconds
        while not done() and time.monotonic() < give_up_at:
            self._look()
            self._pause()
