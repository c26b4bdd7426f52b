"""The Pools seam: what the provisioner asks of resource pools, and the little it tells them."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Protocol

from provisioner.model import AgentSeen, Demand, ProvisionerSettings


@dataclass(frozen=True, slots=True)
class Books:
    """A pool as of now. `settings` None: it has no provider, or is none any more.

    `leases`: the revision of each agent's lease, read before `agents`: while it stands an agent
    that is not in `agents` has not come.
    """

    settings: ProvisionerSettings | None = None
    demand: Demand = field(default_factory=Demand)
    agents: Mapping[str, AgentSeen] = field(default_factory=dict)
    leases: Mapping[str, int] = field(default_factory=dict)


class Pools(Protocol):
    """The resource pools of a cluster."""

    def names(self) -> Sequence[str]:
        """The pools there are."""

    def books(self, pool: str) -> Books:
        """A pool as of now; empty books for one that does not exist."""

    def drain(self, agent: str) -> None:
        """Lets an agent take no new work. Harmless when repeated, or when it is gone."""

    def ended(self, pool: str, agent: str) -> None:
        """Tells that the agent's machine has ended: what ran there is lost, and nobody waits for
        its lease. Harmless when repeated.
        """
