"""The tick of an embedded cluster: the recovery pass of the mail, timers, leases, audits and the
collection of checkpoints.
"""

import logging
import threading
from collections.abc import Callable

from control_plane.checkpoint_gc.collector import Collector
from control_plane.engine.engine import Engine
from control_plane.state.table import TableError
from lambdas.maintenance import Maintenance
from provisioner.pools import PoolsFailed

log = logging.getLogger(__name__)

TICK_SECONDS = 1.0
# Leases last 30 s, and each pass over them is a commit: a few seconds more cost nobody anything.
TICKS_PER_LEASE_PASS = 5
LEASE_PASS_MS = int(TICK_SECONDS * TICKS_PER_LEASE_PASS * 1000)
TICKS_PER_AUDIT = 30
TICKS_PER_BUDGET = 10
TICKS_PER_FORGETTING = 1200
TICKS_PER_MARK = 60
# A tick is late by no more than this for the mail: leases are looked at every few seconds.
REDRIVE_BUDGET_MS = 3_000


class TickThread:
    """Ticks once a second from `start` to `stop`."""

    def __init__(
        self, engine: Engine, collector: Collector, advance_mark: Callable[[], None]
    ) -> None:
        self._advance_mark = advance_mark
        self._maintenance = Maintenance(engine)
        self._collector = collector
        self._stopped = threading.Event()
        self._thread = threading.Thread(target=self._run, name="ticker", daemon=True)

    def start(self) -> None:
        """Start the thread."""
        self._thread.start()

    def stop(self) -> None:
        """End the thread after the tick under way."""
        self._stopped.set()
        self._thread.join(timeout=TICK_SECONDS * 5)

    def _run(self) -> None:
        ticks = 0
        while not self._stopped.wait(TICK_SECONDS):
            try:
                # Before the mail, of which there may be more than there is time for.
                if ticks % TICKS_PER_LEASE_PASS == 0:
                    self._maintenance.mark_lost_agents(LEASE_PASS_MS)
                self._maintenance.redrive_mail(REDRIVE_BUDGET_MS)
                if ticks % TICKS_PER_AUDIT == 0:
                    self._maintenance.audit_pools()
                if ticks % TICKS_PER_FORGETTING == 0:
                    self._maintenance.forget_lost_agents()
                if ticks % TICKS_PER_BUDGET == 0:
                    self._maintenance.check_budgets()
                if ticks % TICKS_PER_MARK == 0:
                    self._advance_mark()
                self._collector.collect()
            except (TableError, PoolsFailed) as error:
                log.warning("the tick was cut short: %s", error)
            except Exception:
                log.exception("the tick failed")
            ticks += 1
