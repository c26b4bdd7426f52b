"""The Pools protocol: what the provisioner reads from resource pools and reports to them."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Protocol

from provisioner.model import ConnectedAgent, Demand, ProvisionerSettings


@dataclass(frozen=True, slots=True)
class PoolSnapshot:
    """A pool's state at one moment. `settings` None: it has no provider, or does not exist.

    `leases`: the revision of each agent's lease, read before `agents`: while a lease keeps its
    revision, an agent that is not in `agents` has not connected.
    """

    settings: ProvisionerSettings | None = None
    demand: Demand = field(default_factory=Demand)
    agents: Mapping[str, ConnectedAgent] = field(default_factory=dict)
    leases: Mapping[str, int] = field(default_factory=dict)


class Pools(Protocol):
    """The resource pools of a cluster."""

    def pool_names(self) -> Sequence[str]:
        """The names of all pools."""

    def pool_snapshot(self, pool: str) -> PoolSnapshot:
        """Return a pool's current state; an empty snapshot for a pool that does not exist."""

    def drain_agent(self, agent: str) -> None:
        """Make an agent take no new work. Harmless when repeated, or when the agent is gone."""

    def end_agent(self, pool: str, agent: str) -> None:
        """Report that the agent's machine has ended: what ran there is lost at once, without
        waiting for its lease to lapse. Harmless when repeated.
        """
