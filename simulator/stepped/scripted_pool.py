"""A pool without actors for tests of the provisioner: waiting work, and agents with work."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from provisioner.model import ConnectedAgent, Demand, JobDemand, ProvisionerSettings
from provisioner.pools import PoolSnapshot
from simulator.stepped.small_search import POOL


@dataclass
class Work:
    """A job with a single trial."""

    slots: int
    left_ms: int
    """The remaining time of running."""
    agent: str = ""
    """The agent that runs the work. "" while the work waits."""


@dataclass
class ScriptedPool:
    """A pool that places work on connected agents. The work of a lost agent waits again."""

    settings: ProvisionerSettings | None
    """None for a pool that was removed."""
    slots_of: Callable[[str], int]
    """Returns the slots of an agent."""
    name: str = POOL
    yields_at_once: bool = False
    """Whether a drained agent gives its work back at once, as after a checkpoint."""
    work: list[Work] = field(default_factory=list)
    known: dict[str, int] = field(default_factory=dict)
    """The time at which each connected agent was last heard of."""
    leases: dict[str, int] = field(default_factory=dict)
    """The revision of each lease."""
    draining: set[str] = field(default_factory=set)
    ends_ms: dict[str, int] = field(default_factory=dict)
    """The announced ends of drained agents."""
    supply: tuple[str, int] = ("", 0)
    """The last report about offerings that are closed."""

    def pool_names(self) -> Sequence[str]:
        """Return the pool's name, unless the pool was removed."""
        return [self.name] if self.settings is not None else []

    def pool_snapshot(self, pool: str) -> PoolSnapshot:
        """Return the demand of waiting work, and the agents."""
        waiting: dict[int, int] = {}
        for work in self.work:
            if not work.agent:
                waiting[work.slots] = waiting.get(work.slots, 0) + 1
        jobs = (JobDemand(waiting),) if waiting else ()
        agents = {name: self._connected_agent(name) for name in self.known}
        return PoolSnapshot(self.settings, Demand(jobs), agents, dict(self.leases))

    def drain_agent(self, agent: str, ends_ms: int | None = None) -> None:
        """Place no more work on an agent. With `yields_at_once`, the agent's work waits again."""
        self.draining.add(agent)
        if ends_ms is not None:
            self.ends_ms[agent] = ends_ms
        if self.yields_at_once:
            self._release_work(agent)

    def report_supply(self, pool: str, closed: str, until_ms: int) -> None:
        """Keep the report in `supply`."""
        self.supply = closed, until_ms

    def end_agent(self, pool: str, agent: str) -> None:
        """Forget an agent. The agent's work waits again."""
        self.lose(agent)

    def connect(self, agent: str, now_ms: int = 0) -> None:
        """Record that an agent is connected at `now_ms`, and place waiting work."""
        self.known[agent] = now_ms
        self.place_work()

    def lose(self, agent: str) -> None:
        """Forget an agent. The agent's work waits again."""
        self.known.pop(agent, None)
        self._release_work(agent)

    def used_slots(self, agent: str) -> int:
        """Return the slots of the work on an agent."""
        return sum(self._work_slots(agent))

    def place_work(self) -> None:
        """Place waiting work on agents that are not drained and have enough free slots."""
        for work in self.work:
            if not work.agent:
                open_agents = (name for name in self.known if name not in self.draining)
                fitting = (name for name in open_agents if self._free_slots(name) >= work.slots)
                work.agent = next(fitting, "")

    @property
    def is_working(self) -> bool:
        """Whether any work runs."""
        return any(work.agent for work in self.work)

    def _connected_agent(self, name: str) -> ConnectedAgent:
        work = self._work_slots(name)
        is_drained, free_slots = name in self.draining, self._free_slots(name)
        return ConnectedAgent(not work, not is_drained, work, free_slots, is_drained)

    def _work_slots(self, name: str) -> tuple[int, ...]:
        return tuple(work.slots for work in self.work if work.agent == name)

    def _free_slots(self, name: str) -> int:
        return self.slots_of(name) - self.used_slots(name)

    def _release_work(self, agent: str) -> None:
        for work in self.work:
            if work.agent == agent:
                work.agent = ""
