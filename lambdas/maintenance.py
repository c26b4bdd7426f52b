"""The maintenance of a cluster, for any host's tick: late mail and timers, leases, audits and
budgets.
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
from control_plane.state.table import EXPIRY_SHARDS
from provisioner.pools import for_each_pool

log = logging.getLogger(__name__)


class Maintenance:
    """Maintenance passes over the cluster of `engine`, which log what they corrected.

    Passes over pools process all pools before they raise PoolsFailed. `is_api_down` tells whether
    the API does not answer agents.

    Attributes:
        holds_for_outage: the last pass over the leases found agents that cannot reach the API, or
            have a while to come back to it.
    """

    def __init__(self, engine: Engine, is_api_down: Callable[[], bool] = lambda: False) -> None:
        self._engine = engine
        self._is_api_down = is_api_down
        self.holds_for_outage = False

    def pools(self) -> list[str]:
        """Return the names of all pools."""
        return [row.key.sort for row in self._engine.table.query(POOLS, " ", "\x7f").rows]

    def redrive_mail(
        self, budget_ms: int = due_rows.BUDGET_MS, *, with_expired: bool = True
    ) -> DueRowCounts:
        """Advance actors whose mail nobody followed, or whose timers are due, and delete rows whose
        time is over unless they may wait.
        """
        expiry_shards = EXPIRY_SHARDS if with_expired else ()
        return due_rows.process_due_rows(
            self._engine,
            expiry_shards=expiry_shards,
            budget_ms=budget_ms,
            holds_timers=self.holds_timers,
        )

    def holds_timers(self, address: str) -> bool:
        """Return whether an actor's timers wait: a trial that was told to stop, and could not hear
        it, is not overdue.
        """
        return self.holds_for_outage and address.startswith("trial#")

    def mark_lost_agents(self, pass_ms: int = PASS_INTERVAL_MS) -> None:
        """Mark agents that are silent as lost; one pass comes each `pass_ms`."""
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
        """Forget agents that were lost long ago."""

        def check(pool: str) -> None:
            for agent in forget_lost_agents(self._engine, pool):
                log.info("the record of lost agent %s was deleted", agent)

        for_each_pool(self.pools(), check)

    def audit_pools(self) -> None:
        """Audit pools: compare their state with their trials and agents."""
        for_each_pool(self.pools(), self._audit_pool)

    def _audit_pool(self, pool: str) -> None:
        # Few ticks make one, and it knows all actors (bench/gcp_cold_starts.py).
        from control_plane.agents.audit import audit_pool

        differences = audit_pool(self._engine, pool)
        for released in differences.pool.stale:
            log.warning("pool %s released allocations %s that belong to no trial", pool, released)
        for session in differences.sessions:
            log.warning("pool %s had not noticed %s", pool, session)
        for agent, message in differences.agents:
            log.warning("agent %s had not received %s", agent, message)
        for number in differences.experiments:
            log.warning("pool %s and experiment %s disagree on its job", pool, number)

    def check_budgets(self) -> None:
        """Compare what pools have spent with their budgets."""

        def check(pool: str) -> None:
            if check_budgets(self._engine, [pool]):
                log.info("pool %s: its budget was checked", pool)

        for_each_pool(self.pools(), check)
