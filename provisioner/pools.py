"""The Pools protocol: what the provisioner reads from resource pools and reports to them; and one
action for each pool, which is done for the others where it fails for one of them.
"""

import logging
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Protocol

from control_plane.state.table import TableError
from provisioner.model import ConnectedAgent, Demand, ProvisionerSettings

log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class PoolSnapshot:
    """A pool's state at one moment. `settings` None: it has no provider, or does not exist.

    `leases`: the revision of each agent's lease, read before `agents`: while a lease keeps its
    revision, an agent that is not in `agents` has not connected. `joining`: agents with a live
    lease that are not in `agents` yet, since the pool has not processed the message of their
    session. `api_down`: agents cannot reach the cluster, or have a while to come back.
    """

    settings: ProvisionerSettings | None = None
    demand: Demand = field(default_factory=Demand)
    agents: Mapping[str, ConnectedAgent] = field(default_factory=dict)
    leases: Mapping[str, int] = field(default_factory=dict)
    joining: frozenset[str] = frozenset()
    api_down: bool = False


class Pools(Protocol):
    """The resource pools of a cluster."""

    def pool_names(self) -> Sequence[str]:
        """The names of all pools."""

    def pool_snapshot(self, pool: str) -> PoolSnapshot:
        """Return a pool's current state; an empty snapshot for a pool that does not exist."""

    def drain_agent(self, agent: str, ends_ms: int | None = None) -> None:
        """Make an agent take no new work, and tell it when its machine is taken away, if that is
        announced. Harmless when repeated, or when the agent is gone.
        """

    def report_supply(self, pool: str, closed: str, until_ms: int) -> None:
        """Report why the pool gets no instances before `until_ms`, "" where it may get some.
        Harmless when repeated.
        """

    def end_agent(self, pool: str, agent: str) -> None:
        """Report that the agent's machine has ended: what ran there is lost at once, without
        waiting for its lease to lapse. Harmless when repeated.
        """


class PoolsFailed(Exception):
    """The pools that failed, each of which was logged; the others had their turn."""


def for_each_pool(pools: Iterable[str], act: Callable[[str], object]) -> None:
    """Call `act` with each of the pools. Raises PoolsFailed once all had their turn."""
    failed = []
    for pool in pools:
        try:
            act(pool)
        except TableError as error:
            log.warning("pool %s cannot be provisioned now: %s", pool, error)
            failed.append(pool)
        except Exception:
            log.exception("pool %s failed", pool)
            failed.append(pool)
    if failed:
        raise PoolsFailed(f"pools that failed: {', '.join(failed)}")
