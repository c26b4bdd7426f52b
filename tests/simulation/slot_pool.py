"""A pool as the provisioner sees it: requests that wait, and agents that take one each."""

from collections.abc import Sequence
from dataclasses import dataclass, field

from provisioner.model import ConnectedAgent, Demand, JobDemand, ProvisionerSettings
from provisioner.pools import PoolSnapshot

POOL = "blue"


@dataclass
class SlotPool:
    """One pool with `waiting` requests of four slots; an agent that is up takes one of them, and
    gives it back when it is drained: its trial has written a checkpoint.
    """

    settings: ProvisionerSettings
    waiting: int = 0
    busy: set[str] = field(default_factory=set)
    up: set[str] = field(default_factory=set)
    draining: set[str] = field(default_factory=set)

    def pool_names(self) -> Sequence[str]:
        return [POOL]

    def pool_snapshot(self, pool: str) -> PoolSnapshot:
        agents = {
            name: ConnectedAgent(
                name not in self.busy, name not in self.draining, (4,) * (name in self.busy)
            )
            for name in self.up
        }
        jobs = (JobDemand({4: self.waiting}),) if self.waiting else ()
        return PoolSnapshot(self.settings, Demand(jobs), agents)

    def drain_agent(self, agent: str, ends_ms: int | None = None) -> None:
        self.draining.add(agent)
        self._give_back(agent)

    def report_supply(self, pool: str, closed: str, until_ms: int) -> None:
        """Nothing here has another pool to go to."""

    def end_agent(self, pool: str, agent: str) -> None:
        self.lose(agent)

    def bring_up(self, name: str) -> None:
        self.up.add(name)
        if self.waiting:
            self.waiting -= 1
            self.busy.add(name)

    def lose(self, name: str) -> None:
        self._give_back(name)
        self.up.discard(name)

    def _give_back(self, name: str) -> None:
        self.waiting += name in self.busy
        self.busy.discard(name)
