"""A pool's books as they are now: settings, jobs and agents, as a scheduler sees them."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import TypeVar

from control_plane.actors import addresses
from control_plane.actors.pool import agents_of, settings_of, waiting_in
from control_plane.actors.pool_messages import PoolSettings
from control_plane.api.errors import ApiError, Code
from control_plane.api.services import Services
from control_plane.dispatch.head import HEAD
from control_plane.dispatch.outside import looking_at
from control_plane.scheduling.model import Capacity, Job
from control_plane.state.table import Key

# Looks at a pool that changes meanwhile before one is taken that is of several moments, and before
# one is given up that contradicts itself.
_STILL_MAX = 5
_LOOKS_MAX = 20

T = TypeVar("T")


@dataclass(frozen=True)
class Books:
    """What a decision of the pool is made from. Jobs are those that hold or want something."""

    pool: str
    settings: PoolSettings
    jobs: tuple[Job, ...]
    agents: tuple[Capacity, ...]


def looked_at(services: Services, pool: str, look: Callable[[Books], T]) -> T:
    """What `look` makes of the books, which are read as it goes; again if the pool changes
    meanwhile, as long as that is not all the time.

    Raises:
        ApiError: unavailable, if the readings contradict each other again and again.
    """
    address = addresses.pool(pool)
    for looks in range(_LOOKS_MAX):
        before = services.table.get(Key(address, HEAD))
        try:
            found = look(_read(services, pool))
        except (AssertionError, KeyError, TypeError, ValueError):
            if before == services.table.get(Key(address, HEAD)):
                raise
            # Parts of different moments contradict each other.
            continue
        if looks >= _STILL_MAX or before == services.table.get(Key(address, HEAD)):
            return found
    raise ApiError(Code.UNAVAILABLE, f"pool {pool} changes too fast to be read; try again")


def _read(services: Services, pool: str) -> Books:
    address = addresses.pool(pool)
    turn = looking_at(services.engine, address)
    settings, agents = settings_of(turn), agents_of(turn)
    jobs = tuple(waiting_in(turn).jobs(settings.default_priority, agents.holdings))
    return Books(pool, settings, jobs, tuple(agents.capacities(settings.aux_per_agent)))
