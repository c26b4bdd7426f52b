"""The tick of an embedded cluster: the backstop of the mail, timers, leases, audits and the
collection of checkpoints.
"""

import logging
import threading

from control_plane.actors.pool import POOLS
from control_plane.agents.audit import audit
from control_plane.agents.leases import mark_lost
from control_plane.collection.collector import Collector
from control_plane.dispatch import due
from control_plane.dispatch.engine import Engine
from control_plane.fleet.budget import check_budgets
from control_plane.state.table import TableError

log = logging.getLogger(__name__)

TICK_SECONDS = 1.0
# Leases last 30 s, and each look at them is a commit: a few seconds more cost nobody anything.
TICKS_PER_LEASE_PASS = 5
LEASE_PASS_MS = int(TICK_SECONDS * TICKS_PER_LEASE_PASS * 1000)
TICKS_PER_AUDIT = 30
TICKS_PER_BUDGET = 10


class Ticker:
    """A thread that ticks once a second from `start` to `stop`."""

    def __init__(self, engine: Engine, collector: Collector) -> None:
        self._engine = engine
        self._collector = collector
        self._stopped = threading.Event()
        self._thread = threading.Thread(target=self._run, name="ticker", daemon=True)

    def start(self) -> None:
        """Begins."""
        self._thread.start()

    def stop(self) -> None:
        """Ends after the tick under way."""
        self._stopped.set()
        self._thread.join(timeout=TICK_SECONDS * 5)

    def _run(self) -> None:
        ticks = 0
        while not self._stopped.wait(TICK_SECONDS):
            try:
                due.drive(self._engine)
                if ticks % TICKS_PER_LEASE_PASS == 0:
                    self._mark_lost()
                if ticks % TICKS_PER_AUDIT == 0:
                    self._audit()
                if ticks % TICKS_PER_BUDGET == 0:
                    self._check_budgets()
                self._collector.collect()
            except TableError as error:
                log.warning("the tick was cut short: %s", error)
            except Exception:
                log.exception("the tick failed")
            ticks += 1

    def _mark_lost(self) -> None:
        engine = self._engine
        for pool in self._pools():
            for agent in mark_lost(
                engine.table, pool, engine.clock(), engine.follow, LEASE_PASS_MS
            ):
                log.warning("agent %s was lost", agent)

    def _audit(self) -> None:
        for pool in self._pools():
            found = audit(self._engine, pool)
            for released in found.pool.stale:
                log.warning("pool %s held %s for nobody", pool, released)
            for session in found.sessions:
                log.warning("pool %s had not heard %s", pool, session)
            for agent, message in found.agents:
                log.warning("agent %s had not heard %s", agent, message)
            for number in found.experiments:
                log.warning("pool %s and experiment %s disagree on its job", pool, number)

    def _check_budgets(self) -> None:
        for pool in check_budgets(self._engine, self._pools()):
            log.info("pool %s: its budget was checked", pool)

    def _pools(self) -> list[str]:
        return [row.key.sort for row in self._engine.table.query(POOLS, " ", "\x7f").rows]
