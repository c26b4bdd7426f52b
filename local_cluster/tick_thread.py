"""The tick thread of an embedded cluster: periodic maintenance and the deletion of checkpoints."""

import logging
from collections.abc import Callable, Sequence

from control_plane.checkpoint_gc.collector import Collector
from control_plane.engine.engine import Engine
from control_plane.services import Services
from control_plane.state.table import TableError
from lambdas.maintenance import Maintenance
from local_cluster.background_thread import BackgroundThread
from provisioner.pools import PoolsFailed

log = logging.getLogger(__name__)

TICK_SECONDS = 1.0
STOP_SECONDS_MAX = 5.0
# A pass over the leases commits a row. Leases last 30 s, so a lost agent may be found a few seconds
# later.
TICKS_PER_LEASE_PASS = 5
LEASE_PASS_MS = int(TICK_SECONDS * TICKS_PER_LEASE_PASS * 1000)
TICKS_PER_AUDIT = 30
TICKS_PER_BUDGET = 10
TICKS_PER_FORGETTING = 1200
TICKS_PER_ALARMS = 300
TICKS_PER_MARK = 60
TICKS_PER_SUMS = 3600
TICKS_PER_EXPORT = 10
# Limits the delay of the next pass over the leases, which is due every few seconds.
REDRIVE_BUDGET_MS = 3_000


class TickThread(BackgroundThread):
    """A thread that runs the periodic maintenance, from `start` to `stop`.

    - Each second: retry mail and timers that are due, run due schedules, and delete data that the
      collector finds due, such as old checkpoints.
    - Every 5 s: mark silent agents as lost. Every 10 s: compare costs with budgets.
    - Every 30 s: audit the pools. Every five minutes: check the alarms, which are logged. Every 20
      minutes: delete the records of agents that were lost more than a day ago.
    - Every hour: store the daily sums of usage.
    - Every 10 s: export spans and metrics, if a collector exists.

    An error is logged and skips the rest of the tick.

    Args:
        check_alarms: checks the alarms, given the time in ms that the oldest late message had
            waited.
        advance_mark: called every minute to advance the mark of the state (`StateMark`), a number
            by which a later server detects an older copy of the state.
        export_telemetry: called every 10 s to export spans and metrics, if a collector exists.
        deliver_events: called with the partitions of due events, which webhooks announce.
        find_services: returns the services that submit the experiments of due schedules. None
            submits none.
        is_on_duty: returns whether this server, of several servers, runs the tick now. The mark is
            advanced also without the duty. May raise TableError.
    """

    def __init__(
        self,
        engine: Engine,
        collector: Collector,
        check_alarms: Callable[[int], None],
        advance_mark: Callable[[], None],
        export_telemetry: Callable[[], None],
        deliver_events: Callable[[Sequence[str]], None] = lambda partitions: None,
        find_services: Callable[[], Services] | None = None,
        is_on_duty: Callable[[], bool] = lambda: True,
    ) -> None:
        super().__init__("ticker", STOP_SECONDS_MAX)
        self._deliver_events = deliver_events
        self._is_on_duty = is_on_duty
        self._export_telemetry = export_telemetry
        self._check_alarms = check_alarms
        self._advance_mark = advance_mark
        self._maintenance = Maintenance(engine, find_services=find_services)
        self._collector = collector

    def _run(self) -> None:
        """Run a tick every TICK_SECONDS until the thread is stopped. Log each error."""
        ticks = 0
        while not self._stopped.wait(TICK_SECONDS):
            try:
                self._tick(ticks)
            except (TableError, PoolsFailed) as error:
                log.warning("the tick was cut short: %s", error)
            except Exception:
                log.exception("the tick failed")
            ticks += 1

    def _tick(self, ticks: int) -> None:
        """Run the passes that are due in the tick with this number. Raises errors of the passes."""
        if ticks % TICKS_PER_MARK == 0:
            self._advance_mark()
        if not self._is_on_duty():
            return
        # Leases come before the mail, because the mail may use up the time of the tick.
        if ticks % TICKS_PER_LEASE_PASS == 0:
            self._maintenance.mark_lost_agents(LEASE_PASS_MS)
        driven = self._maintenance.redrive_mail(REDRIVE_BUDGET_MS)
        self._deliver_events(driven.events)
        if ticks % TICKS_PER_AUDIT == 0:
            self._maintenance.audit_pools()
        if ticks % TICKS_PER_FORGETTING == 0:
            self._maintenance.forget_lost_agents()
        if ticks % TICKS_PER_BUDGET == 0:
            self._maintenance.check_budgets()
        if ticks % TICKS_PER_SUMS == 0:
            self._maintenance.sum_usage()
        if ticks % TICKS_PER_ALARMS == 0:
            self._check_alarms(driven.late_ms)
        self._collector.collect()
        # A collector may be slow, so the export is last.
        if ticks % TICKS_PER_EXPORT == 0:
            self._export_telemetry()
