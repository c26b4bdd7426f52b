"""What a tick looks after, wherever it ticks: late mail and timers, leases, books and budgets."""

import logging

from control_plane.actors.pool import POOLS
from control_plane.agents.audit import audit
from control_plane.agents.leases import PASS_MS, forget_lost, mark_lost
from control_plane.dispatch import due
from control_plane.dispatch.due import Driven
from control_plane.dispatch.engine import Engine
from control_plane.fleet.budget import check_budgets
from lambdas.pools import for_each

log = logging.getLogger(__name__)


class Upkeep:
    """Each method is one pass over the cluster of `engine`, and logs what was out of order. Those
    that look at pools raise PoolsFailed once all had their turn.
    """

    def __init__(self, engine: Engine) -> None:
        self._engine = engine

    def pools(self) -> list[str]:
        """The pools there are."""
        return [row.key.sort for row in self._engine.table.query(POOLS, " ", "\x7f").rows]

    def drive(self) -> Driven:
        """Mail that nobody followed, and timers."""
        return due.drive(self._engine)

    def mark_lost(self, pass_ms: int = PASS_MS) -> None:
        """Agents that are silent; one pass comes each `pass_ms`."""
        engine = self._engine

        def look(pool: str) -> None:
            for agent in mark_lost(engine.table, pool, engine.clock(), engine.follow, pass_ms):
                log.warning("agent %s was lost", agent)

        for_each(self.pools(), look)

    def forget_lost(self) -> None:
        """Agents that were lost long ago."""

        def look(pool: str) -> None:
            for agent in forget_lost(self._engine, pool):
                log.info("agent %s was forgotten", agent)

        for_each(self.pools(), look)

    def audit(self) -> None:
        """What pools believe, against what is."""
        for_each(self.pools(), self._audit)

    def _audit(self, pool: str) -> None:
        found = audit(self._engine, pool)
        for released in found.pool.stale:
            log.warning("pool %s held %s for nobody", pool, released)
        for session in found.sessions:
            log.warning("pool %s had not heard %s", pool, session)
        for agent, message in found.agents:
            log.warning("agent %s had not heard %s", agent, message)
        for number in found.experiments:
            log.warning("pool %s and experiment %s disagree on its job", pool, number)

    def check_budgets(self) -> None:
        """What pools have spent, against what they may."""

        def look(pool: str) -> None:
            if check_budgets(self._engine, [pool]):
                log.info("pool %s: its budget was checked", pool)

        for_each(self.pools(), look)
