"""Snapshots of a pool: the settings, jobs and agents that the scheduler currently sees."""

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
from control_plane.scheduling.quiet_hours import QuietPeriod, period_at
from control_plane.scheduling.reservations import Reservation
from control_plane.services import Services
from control_plane.state.table import Key, Row

# After this many reads, a snapshot with rows of different moments is accepted.
_CONSISTENT_READS_MAX = 5
# After this many reads with contradictory rows, the request fails.
_READS_MAX = 20
# The most jobs and agents in the cache, over all pools: about 100 MB in the worst case.
_KEPT_MAX = 50_000

T = TypeVar("T")


@dataclass(frozen=True)
class PoolSnapshot:
    """The input of a pool's scheduling decision."""

    pool: str
    settings: PoolSettings
    jobs: tuple[Job, ...]
    """The jobs that hold or request slots."""
    agents: tuple[AgentCapacity, ...]
    startable: tuple[Job, ...]
    """The jobs as the scheduler sees them. In quiet hours, jobs that may not start are without
    requests.
    """
    reservation: Reservation | None = None
    """The agents that are reserved for a waiting job, if any."""
    period: QuietPeriod | None = None
    """The present period of quiet hours. None outside of quiet hours."""


def read_pool(services: Services, pool: str, use: Callable[[PoolSnapshot], T]) -> T:
    """Read a snapshot of the pool and return `use(snapshot)`.

    Parts of the snapshot are read while `use` iterates over the snapshot, so `use` may be called
    several times. If the pool changes in the meantime, the function reads the pool and calls `use`
    again. From the sixth attempt on, the result is returned even if the pool changed. An unknown
    pool has an empty snapshot with default settings.

    Raises:
        RequestError: unavailable, if all attempts read rows that contradict each other.
        Exception: any error of `use`. AssertionError, KeyError, TypeError and ValueError are raised
            only if the pool has not changed.
    """
    address = addresses.pool(pool)
    cache = services.cache_of(PoolContentsCache)
    for reads in range(_READS_MAX):
        before = services.table.get(Key(address, HEAD))
        try:
            parts = ActorParts(
                services.engine,
                address,
                CONTENT_FAMILIES,
                cache.find_parts(address),
            )
            snapshot, contents = _read_snapshot(services, parts, before)
            result = use(snapshot)
        except (AssertionError, KeyError, TypeError, ValueError):
            if before == services.table.get(Key(address, HEAD)):
                raise
            # The pool changed during the read, so that rows of different moments contradict each
            # other.
            continue
        is_consistent = before == services.table.get(Key(address, HEAD))
        if is_consistent and before is not None:
            cache.keep(before, contents, parts)
        if is_consistent or reads >= _CONSISTENT_READS_MAX:
            return result
    raise RequestError(Code.UNAVAILABLE, f"pool {pool} changes too fast to be read; try again")


class PoolContentsCache:
    """Cache of the contents of recently read pools. Safe to share between threads.

    Contents belong to a revision of the pool's head, the row with its state, because every change
    of a part (a named row of its larger state) changes the head. Contents read further rows while
    they are iterated. `read_pool` therefore checks the head again afterwards.
    """

    def __init__(self) -> None:
        self._lock = Lock()
        self._kept: BoundedCache[str, _KeptContents] = BoundedCache(_KEPT_MAX)

    def find(self, head: Row) -> PoolContents | None:
        """Return the cached contents of the pool for exactly this head. None if not cached."""
        with self._lock:
            kept = self._kept.find(head.key.partition)
        return kept.contents if kept is not None and kept.head == head else None

    def find_parts(self, address: str) -> ActorParts | None:
        """Return the cached parts of the pool at `address`, for any head. None if not cached."""
        with self._lock:
            kept = self._kept.find(address)
        return None if kept is None else kept.parts

    def keep(self, head: Row, contents: PoolContents, parts: ActorParts) -> None:
        """Cache contents that were read from `parts` while the pool had this head.

        The entry replaces an earlier entry of the pool, and least recently used pools are evicted.
        If the same contents object is cached already, nothing changes: the entry keeps the parts
        that the contents were first read from.
        """
        weight = len(contents.jobs) + len(contents.agents)
        with self._lock:
            known = self._kept.find(head.key.partition)
            if known is None or known.contents is not contents:
                kept = _KeptContents(head, contents, parts)
                self._kept.keep(head.key.partition, kept, weight)


@dataclass(frozen=True, slots=True)
class _KeptContents:
    """Cached contents of a pool, with the head and the parts that were read."""

    head: Row
    contents: PoolContents
    parts: ActorParts


def _read_snapshot(
    services: Services, parts: ActorParts, head: Row | None
) -> tuple[PoolSnapshot, PoolContents]:
    """Read the pool's snapshot; return the snapshot and the pool contents.

    The contents are taken from the cache if the cache has them for this head, or else read and not
    cached; the caller caches them. The snapshot shows what a scheduling pass would see at the
    present time. An unknown pool has an empty snapshot with default settings. Rows of different
    moments may raise AssertionError, KeyError, TypeError or ValueError: the caller reads again.

    Args:
        services: the services that read the pool.
        parts: the pool's parts (named rows of its larger state), read on first use.
        head: the row with the pool's state, just read; None for an unknown pool.
    """
    address = parts.address
    pool = address.partition("#")[2]
    context = read_only_context(services.engine, address, parts)
    settings = settings_of(context)
    contents = services.cache_of(PoolContentsCache).find(head) if head is not None else None
    if contents is None:
        contents = read_contents(settings, context)
    state = services.engine.read_state(address) or PoolState(pool)
    now_ms = services.now_ms()
    seen = view_at(contents, state, settings, now_ms)
    snapshot = PoolSnapshot(
        pool,
        settings,
        seen.jobs,
        seen.agents,
        seen.startable,
        seen.reservation,
        period_at(settings.quiet_periods, now_ms),
    )
    return snapshot, contents
