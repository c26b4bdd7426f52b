"""The periodic maintenance of a cluster: late mail and timers, leases, audits and budgets.

The tick of every host calls this maintenance.
"""

import logging
from collections.abc import Callable

from control_plane.actors.job_row import POOLS
from control_plane.agents.failed_syncs import has_failed_recently
from control_plane.agents.leases import PASS_INTERVAL_MS, forget_lost_agents, mark_lost_agents
from control_plane.engine import due_rows
from control_plane.engine.due_rows import DueRowCounts
from control_plane.engine.engine import Engine
from control_plane.fleet.budget import check_budgets
from control_plane.fleet.usage_days import sum_closed_days
from control_plane.rows import actor_rows, fleet_rows
from control_plane.state.row_ranges import read_rows
from control_plane.state.table import EXPIRY_SHARDS
from provisioner.pools import for_each_pool

# The import would slow down the start of the tick (bench/gcp_cold_starts.py).
TYPE_CHECKING = False
if TYPE_CHECKING:
    from control_plane.services import Services

log = logging.getLogger(__name__)


class Maintenance:
    """The maintenance passes of a cluster. Each pass logs its corrections.

    A pass over pools logs the failure of a pool and continues with the next pool. It raises
    PoolsFailed at the end if any pool failed. All passes raise TableError if the list of pools
    cannot be read.

    Args:
        is_api_down: returns whether agents cannot reach the API.
        find_services: returns the services that submit the experiments of due schedules. None
            leaves due schedules to another maintenance.

    Attributes:
        holds_for_outage: whether the last pass over the leases found the API down, or gave agents
            time to return after an outage.
    """

    def __init__(
        self,
        engine: Engine,
        is_api_down: Callable[[], bool] = lambda: False,
        find_services: "Callable[[], Services] | None" = None,
    ) -> None:
        self._engine = engine
        self._is_api_down = is_api_down
        self._find_services = find_services
        self.holds_for_outage = False

    def pools(self) -> list[str]:
        """Return the names of all pools, sorted. Raises TableError."""
        return [row.key.sort for row in read_rows(self._engine.table, POOLS)]

    def redrive_mail(
        self,
        budget_ms: int = due_rows.BUDGET_MS,
        *,
        with_expired: bool = True,
        on_events: Callable[[tuple[str, ...]], None] = lambda events: None,
    ) -> DueRowCounts:
        """Retry mail that was not processed and timers that are due, and run due schedules. Then
        delete expired rows.

        Return the numbers of retried, dead and deleted rows. During an outage of the API, the
        timers of trials are postponed. Raises Unavailable after the retries if the table was
        unavailable for any actor; no expired rows are deleted then.

        Args:
            budget_ms: the time after which the pass ends, even if rows are left.
            with_expired: whether to delete expired rows.
            on_events: gets the partitions of due events of webhooks, also before an error.
        """
        expiry_shards = EXPIRY_SHARDS if with_expired else ()
        return due_rows.process_due_rows(
            self._engine,
            expiry_shards=expiry_shards,
            budget_ms=budget_ms,
            holds_timers=self.holds_timers,
            run_schedule=self._run_schedule,
            on_events=on_events,
        )

    def _run_schedule(self, partition: str) -> None:
        """Submit the experiment of the due schedule with a time's row in `partition`.

        Do nothing without services. Raises RequestError and TableError, as `run_due_schedule` does.
        """
        if self._find_services is None:
            return
        # Few ticks run a schedule, and the check of a submission imports all configurations
        # (bench/gcp_cold_starts.py).
        from control_plane.usecases.scheduled_runs import run_due_schedule

        run_due_schedule(self._find_services(), partition)

    def holds_timers(self, address: str) -> bool:
        """Return whether the timers of the actor at `address` must wait.

        True for trials while `holds_for_outage` is set: a trial that could not receive a request to
        stop is not overdue.
        """
        return self.holds_for_outage and address.startswith(actor_rows.TRIAL)

    def mark_lost_agents(self, pass_ms: int = PASS_INTERVAL_MS) -> None:
        """Mark silent agents of all pools as lost, inform the pools, and log each lost agent.

        An agent is silent after LEASE_MS without a call. During an outage of the API, only agents
        that were silent for OUTAGE_MS_MAX are marked. No agent is marked shortly after an outage,
        after a gap between passes, and after many leases lapsed together. Also update
        `holds_for_outage`. Raises TableError if the pools cannot be listed, and PoolsFailed at the
        end if any pool failed.

        Args:
            pass_ms: the interval at which the caller runs this pass.
        """
        engine = self._engine
        self.holds_for_outage = False

        def is_api_down(is_silent: bool) -> bool:
            if self._is_api_down():
                return True
            return is_silent and has_failed_recently(engine.table, engine.clock())

        def check(pool: str) -> None:
            marking = mark_lost_agents(
                engine.table,
                pool,
                engine.clock(),
                engine.advance_until_idle,
                pass_ms,
                is_api_down,
            )
            self.holds_for_outage |= bool(marking.loss_detection.outage)
            for agent in marking.lost:
                log.warning("agent %s was lost", agent)

        for_each_pool(self.pools(), check)

    def forget_lost_agents(self) -> None:
        """Delete the records of agents that were lost more than a day ago, up to 100 per pool.

        The records are the rows of the agent's pool, session, token and lease. An agent that has
        enrolled again loses only the old lease. Log each agent. Raises TableError if the pools
        cannot be listed, and PoolsFailed at the end if any pool failed.
        """

        def check(pool: str) -> None:
            for agent in forget_lost_agents(self._engine, pool):
                log.info("the record of lost agent %s was deleted", agent)

        for_each_pool(self.pools(), check)

    def audit_pools(self) -> None:
        """Compare the state of all pools with trials, agents and experiments.

        Send messages that correct the differences, and log each difference. Raises TableError if
        the pools cannot be listed, and PoolsFailed at the end if any pool failed.
        """
        for_each_pool(self.pools(), self._audit_pool)

    def _audit_pool(self, pool: str) -> None:
        """Audit a pool: send messages that correct differences, and log each difference.

        Raises TableError.
        """
        # Few ticks run an audit, and the module imports all actors (bench/gcp_cold_starts.py).
        from control_plane.agents.audit import audit_pool

        differences = audit_pool(self._engine, pool)
        for released in differences.pool.stale:
            log.warning("pool %s released allocations %s that belong to no trial", pool, released)
        for session in differences.sessions:
            log.warning("pool %s missed the change %s", pool, session)
        for agent, message in differences.agents:
            log.warning("agent %s missed the change %s", agent, message)
        for number in differences.experiments:
            log.warning(
                "pool %s and experiment %s disagreed about the job of the experiment", pool, number
            )

    def check_budgets(self) -> None:
        """Compare the costs of each pool with the pool's budget, and the time with quiet hours.

        Pools whose quiet hours begin or end are notified. Notify each pool that went over or under
        budget, and log the pool's name. Raises TableError if the pools cannot be listed, and
        PoolsFailed at the end if any pool failed.
        """

        def check(pool: str) -> None:
            if check_budgets(self._engine, [pool]):
                log.info("pool %s went over or under its budget", pool)

        for_each_pool(self.pools(), check)

    def sum_usage(self) -> None:
        """Store the daily sums of the usage of all pools, removed pools included.

        Log the number of days of each pool that has new sums. Raises TableError if the pools cannot
        be listed, and PoolsFailed at the end if any pool failed.
        """

        def check(pool: str) -> None:
            if days := sum_closed_days(self._engine.table, pool, self._engine.clock()):
                log.info("the usage of pool %s was summed up for %d days", pool, days)

        fleets = read_rows(self._engine.table, fleet_rows.FLEET.partition)
        for_each_pool(sorted({*self.pools(), *(row.key.sort for row in fleets)}), check)
