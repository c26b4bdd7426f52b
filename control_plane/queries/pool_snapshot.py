"""Snapshots of a pool: its settings, jobs and agents now, as its scheduler sees them."""

from collections.abc import Callable
from dataclasses import dataclass
from threading import Lock
from typing import TypeVar

from control_plane.actors import addresses
from control_plane.actors.messages.pool import PoolSettings
from control_plane.actors.pool.actor import PoolState, settings_of
from control_plane.actors.pool.scheduling import PoolContents, read_contents, view_at
from control_plane.actors.pool.state import CONTENT_FAMILIES
from control_plane.bounded_cache import BoundedCache
from control_plane.engine.head import HEAD
from control_plane.engine.read_only import ActorParts, read_only_context
from control_plane.errors import Code, RequestError
from control_plane.scheduling.model import AgentCapacity, Job
from control_plane.scheduling.reservations import Reservation
from control_plane.services import Services
from control_plane.state.table import Key, Row

# Readings of a pool that changes meanwhile before one of several moments is good enough, and before
# readings that contradict themselves are given up.
_CONSISTENT_READS_MAX = 5
_READS_MAX = 20
# Jobs and agents of the pools that are kept: some 100 MB in the worst case.
_KEPT_MAX = 50_000

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
            parts = ActorParts(
                services.engine,
                address,
                CONTENT_FAMILIES,
                services.pool_contents.find_parts(address),
            )
            snapshot, contents = _read_snapshot(services, parts, before)
            result = use(snapshot)
        except (AssertionError, KeyError, TypeError, ValueError):
            if before == services.table.get(Key(address, HEAD)):
                raise
            # Parts of different moments contradict each other.
            continue
        is_consistent = before == services.table.get(Key(address, HEAD))
        if is_consistent and before is not None:
            services.pool_contents.keep(before, contents, parts)
        if is_consistent or reads >= _CONSISTENT_READS_MAX:
            return result
    raise RequestError(Code.UNAVAILABLE, f"pool {pool} changes too fast to be read; try again")


class PoolContentsCache:
    """The contents of the pools looked at last, each as of a revision of the pool's head, which
    changes with every part of the pool. Safe to share between threads.

    What the contents read when they are iterated is read by `read_pool`, which finds out whether
    the head was still the same then.
    """

    def __init__(self) -> None:
        self._lock = Lock()
        self._kept: BoundedCache[str, _KeptContents] = BoundedCache(_KEPT_MAX)

    def find(self, head: Row) -> PoolContents | None:
        """The contents of the pool as of this head, None if they are not kept."""
        with self._lock:
            found = self._kept.find(head.key.partition)
        return found.contents if found is not None and found.head == head else None

    def find_parts(self, address: str) -> ActorParts | None:
        """The parts that the pool's contents were read from, of whatever head; None if they are not
        kept.
        """
        with self._lock:
            found = self._kept.find(address)
        return None if found is None else found.parts

    def keep(self, head: Row, contents: PoolContents, parts: ActorParts) -> None:
        """Keep contents that were read from these parts while the head was this one; the parts that
        they were read from first, if they are kept already.
        """
        weight = len(contents.jobs) + len(contents.agents)
        with self._lock:
            known = self._kept.find(head.key.partition)
            if known is None or known.contents is not contents:
                kept = _KeptContents(head, contents, parts)
                self._kept.keep(head.key.partition, kept, weight)


@dataclass(frozen=True, slots=True)
class _KeptContents:
    head: Row
    contents: PoolContents
    parts: ActorParts


def _read_snapshot(
    services: Services, parts: ActorParts, head: Row | None
) -> tuple[PoolSnapshot, PoolContents]:
    """A snapshot, and the contents that it was made of: those of the head where they are known."""
    address = parts.address
    pool = address.partition("#")[2]
    context = read_only_context(services.engine, address, parts)
    settings = settings_of(context)
    contents = services.pool_contents.find(head) if head is not None else None
    if contents is None:
        contents = read_contents(settings, context)
    state = services.engine.read_state(address) or PoolState(pool)
    seen = view_at(contents, state, settings, services.now_ms())
    return PoolSnapshot(pool, settings, seen.jobs, seen.agents, seen.reservation), contents
