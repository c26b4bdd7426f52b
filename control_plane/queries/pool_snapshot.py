"""Snapshots of a pool: its settings, jobs and agents now, as its scheduler sees them."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import TypeVar

from control_plane.actors import addresses
from control_plane.actors.messages.pool import PoolSettings
from control_plane.actors.pool.actor import PoolState, settings_of
from control_plane.actors.pool.scheduling import pool_view
from control_plane.engine.head import HEAD
from control_plane.engine.read_only import read_only_context
from control_plane.errors import Code, RequestError
from control_plane.scheduling.model import AgentCapacity, Job
from control_plane.scheduling.reservations import Reservation
from control_plane.services import Services
from control_plane.state.table import Key

# Readings of a pool that changes meanwhile before one of several moments is good enough, and before
# readings that contradict themselves are given up.
_CONSISTENT_READS_MAX = 5
_READS_MAX = 20

T = TypeVar("T")


@dataclass(frozen=True)
class PoolSnapshot:
    """The input of a pool's scheduling decision. Jobs are those that hold or want slots;
    `reservation`: the agents that are held for one of them.
    """

    pool: str
    settings: PoolSettings
    jobs: tuple[Job, ...]
    agents: tuple[AgentCapacity, ...]
    reservation: Reservation | None = None


def read_pool(services: Services, pool: str, use: Callable[[PoolSnapshot], T]) -> T:
    """Return what `use` makes of a snapshot, which is read as it goes; again if the pool changes
    meanwhile, unless that happens all the time.

    Raises:
        RequestError: unavailable, if the readings contradict each other again and again.
    """
    address = addresses.pool(pool)
    for reads in range(_READS_MAX):
        before = services.table.get(Key(address, HEAD))
        try:
            result = use(_read_snapshot(services, pool))
        except (AssertionError, KeyError, TypeError, ValueError):
            if before == services.table.get(Key(address, HEAD)):
                raise
            # Parts of different moments contradict each other.
            continue
        if reads >= _CONSISTENT_READS_MAX or before == services.table.get(Key(address, HEAD)):
            return result
    raise RequestError(Code.UNAVAILABLE, f"pool {pool} changes too fast to be read; try again")


def _read_snapshot(services: Services, pool: str) -> PoolSnapshot:
    address = addresses.pool(pool)
    context = read_only_context(services.engine, address)
    settings = settings_of(context)
    state = services.engine.read_state(address)
    seen = pool_view(state or PoolState(pool), settings, context, services.now_ms())
    return PoolSnapshot(pool, settings, seen.jobs, seen.agents, seen.reservation)
