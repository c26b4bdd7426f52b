"""The end of an idle cloud machine, which a cluster with a dead tick does not terminate."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING

from detcloud.shared.dead_tick import DEAD_TICK, TICK_SECONDS_MAX

if TYPE_CHECKING:
    from collections.abc import Callable

    from detcloud.agent.alive_file import AliveFile
    from detcloud.agent.node import Node
    from detcloud.agent.sync.session import Session

_MINUTES_MAX = TICK_SECONDS_MAX // 60


class SelfTermination:
    """Ends this machine if the cluster's tick is dead and the machine has no work.

    Create an object only on an instance that the provisioner launched. The machine's watchdog
    switches the machine off when the file `alive` is old.

    Args:
        node: the node, which refuses new trials while the tick is dead.
        session: the session, which watches the tick and reports the end.
        alive: the watchdog's file.
        log_line: writes to the agent's log.
        clock: returns seconds since the epoch.
    """

    def __init__(
        self,
        node: Node,
        session: Session,
        alive: AliveFile,
        log_line: Callable[[str], None],
        clock: Callable[[], float] = time.time,
    ) -> None:
        self._node = node
        self._session = session
        self._alive = alive
        self._log_line = log_line
        self._clock = clock
        self._deadline_ms: int | None = None

    def check(self, has_work: Callable[[], bool]) -> None:
        """Take the next step towards the machine's end, if any. Called about twice a second.

        While the tick is dead, the node starts no new trials. If the machine has no work either,
        report the machine's end to the cluster. The end follows the cluster's answer to the report,
        and no longer depends on the tick. Without an answer, nothing ends: the watchdog then ends
        the machine because of the cluster's silence. Log each change.

        Args:
            has_work: returns whether a trial runs, or the cluster has not acknowledged all exits.
        """
        if self._deadline_ms is None:
            self._follow_tick()
            if not self._node.refuses_new or has_work():
                return
            self._log_line("the machine will end: the cluster's tick is dead, and no trial runs")
            self._deadline_ms = int(self._clock() * 1000)
        # The session's thread may have begun a trial shortly before the node refused new trials. An
        # answer to the later report proves that this trial is visible here.
        if self._session.report_notice(self._deadline_ms, DEAD_TICK) and not has_work():
            # Repeated, because the session's thread may touch the file at the same time.
            self._alive.expire()

    def _follow_tick(self) -> None:
        """Let the node refuse new trials exactly while the tick is dead. Log each change."""
        is_dead = self._session.tick_watch.is_dead
        if is_dead == self._node.refuses_new:
            return
        self._node.refuses_new = is_dead
        if is_dead:
            self._log_line(
                f"the cluster's tick has not run for {_MINUTES_MAX} min: no new trial starts here, "
                "and the machine ends after its trials"
            )
        else:
            self._log_line("the cluster's tick runs again: new trials start here")
