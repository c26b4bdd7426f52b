"""The Pools protocol, the provisioner's interface to resource pools, and a loop over pools."""

import logging
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Protocol

from control_plane.state.table import TableError
from provisioner.model import ConnectedAgent, Demand, ProvisionerSettings

log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class PoolSnapshot:
    """A pool's state at the time of a pass."""

    settings: ProvisionerSettings | None = None
    """The pool's provider settings; None if the pool has no provider or does not exist."""
    demand: Demand = field(default_factory=Demand)
    agents: Mapping[str, ConnectedAgent] = field(default_factory=dict)
    """The pool's connected agents, by name."""
    leases: Mapping[str, int] = field(default_factory=dict)
    """The revision of each agent's lease, read before `agents`.

    While a lease keeps its revision, an agent that `agents` lacks has not connected.
    """
    joining: frozenset[str] = frozenset()
    """Agents with a live lease whose session the pool has not processed yet."""
    api_down: bool = False
    """Whether agents cannot reach the cluster, or could not until shortly before."""


class Pools(Protocol):
    """The resource pools of a cluster."""

    def pool_names(self) -> Sequence[str]:
        """Return the names of the pools with a provider; empty without any. Raises TableError."""

    def pool_snapshot(self, pool: str) -> PoolSnapshot:
        """Return a pool's current state.

        The snapshot of an unknown pool has no settings, demand or agents.

        Raises:
            SettingsInvalid: the pool's provider settings are unusable.
            TableError: the state cannot be read.
        """

    def drain_agent(self, agent: str, ends_ms: int | None = None) -> None:
        """Stop new work on an agent, and pass the machine's announced end on to the agent.

        Running work goes on. Repeated calls, lost agents and unknown agents are harmless. Raises
        TableError if the state cannot be read or written.

        Args:
            agent: the agent's id.
            ends_ms: the time at which the machine ends, or None without an announcement.
        """

    def report_supply(self, pool: str, closed: str, until_ms: int) -> None:
        """Report to a pool whether instances are available.

        Store the report, if it is new, and let the pool show the reason to users. Repeated calls
        and unknown pools change nothing. Raises TableError if the state cannot be read or written.

        Args:
            pool: the pool's name.
            closed: the reason why the pool gets no instances, for users, or "" if it may get some.
            until_ms: the time of the next launch attempt in epoch ms, or 0 if unknown or `closed`
                is "".
        """

    def end_agent(self, pool: str, agent: str) -> None:
        """Report that an agent's machine has ended. Repeated calls are harmless.

        Work on the machine is lost at once, without waiting for the agent's lease to lapse. The
        report has no effect for an unknown agent, or if the agent calls at the same time. Raises
        TableError if the state cannot be read or written.
        """


class PoolsFailed(Exception):
    """The failure of pools, named in the message; raised after all pools were tried."""


def for_each_pool(pools: Iterable[str], act: Callable[[str], object]) -> None:
    """Call `act` with each pool in order, and log the failures.

    A failure, any Exception, does not stop the loop. An error of the iterable itself is passed on
    at once. Results of `act` are ignored. Do nothing without pools.

    Raises:
        PoolsFailed: at the end, if `act` raised for any pool; the message names the pools.
    """
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
