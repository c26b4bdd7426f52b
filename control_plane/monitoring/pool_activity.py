"""The activity of pools: agents, slots, jobs, and the oldest wait, from the rows of the pools."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from threading import Lock

from control_plane.actors import addresses
from control_plane.actors.messages.pool import PoolSettings
from control_plane.actors.pool.agent_slots import AgentSlots
from control_plane.actors.pool.job_queue import JobQueue
from control_plane.actors.pool.state import (
    CONTENT_FAMILIES,
    PoolState,
    agents_of,
    job_queue_of,
    parse_allocation,
    settings_of,
)
from control_plane.engine.actor_types import actor_type_at
from control_plane.engine.head import HEAD, decode_head
from control_plane.engine.read_only import ActorParts, read_only_context
from control_plane.errors import Code, RequestError
from control_plane.queries.job_counts import JobCounts
from control_plane.services import Services
from control_plane.state.table import GET_MAX, Key, Row

WAITING_JOBS_MAX = 10
"""The most waiting jobs of a pool whose first requests are read. Jobs with low numbers come first.
"""
_READS_MAX = 5


@dataclass(frozen=True, slots=True)
class PoolActivity:
    """The activity of a pool, as of a commit of the pool."""

    state: PoolState
    settings: PoolSettings
    agents: Mapping[str, int]
    """The number of agents by state: enabled, draining or disabled."""
    slots: Mapping[str, int]
    """The number of slots by state: used, free or disabled."""
    agent_names: frozenset[str]
    """The ids of the pool's agents."""
    jobs: Mapping[int, JobCounts]
    """The allocations of each job that holds or requests slots."""
    queued_slots: int
    """The number of slots that queued requests need."""
    waits_since_ms: int | None
    """The time of the oldest request of a job without slots, in epoch ms. None: no such job waits.

    In a pool with more waiting jobs, the WAITING_JOBS_MAX jobs with the lowest numbers count.
    """
    allocations: Mapping[tuple[int, int], int]
    """The number of the start of each allocation with slots, by trial id and epoch."""


class PoolActivities:
    """A reader of the activities of pools, which keeps each activity until the pool changes.

    Threads may share a reader.
    """

    def __init__(self) -> None:
        self._lock = Lock()
        self._kept: dict[str, tuple[Row, PoolActivity]] = {}

    def read(self, services: Services, pools: Sequence[str]) -> dict[str, PoolActivity]:
        """Read the activities of pools, by name. Skip pools that were removed.

        A pool that has not changed since the last call costs a read of its head. Raises TableError,
        and RequestError unavailable if a pool changes too fast to be read.
        """
        with self._lock:
            before = dict(self._kept)
        kept: dict[str, tuple[Row, PoolActivity]] = {}
        for pool, head in _read_heads(services, pools).items():
            known = before.get(pool)
            if known is not None and known[0] == head:
                kept[pool] = known
            else:
                kept[pool] = _read_activity(services, pool, head)
        with self._lock:
            self._kept = kept
        return {
            pool: activity for pool, (_, activity) in kept.items() if not activity.state.removed
        }


def _read_heads(services: Services, pools: Sequence[str]) -> dict[str, Row]:
    """Read the heads of pools, by name. Skip pools without a head. Raises TableError."""
    heads: dict[str, Row] = {}
    for first in range(0, len(pools), GET_MAX):
        batch = pools[first : first + GET_MAX]
        keys = [Key(addresses.pool(pool), HEAD) for pool in batch]
        rows = zip(batch, services.table.get_many(keys), strict=True)
        heads |= {pool: row for pool, row in rows if row is not None}
    return heads


def _read_activity(services: Services, pool: str, head: Row) -> tuple[Row, PoolActivity]:
    """Read the activity of a pool, and return the head of the read with the activity.

    A pool that changes during the read is read again. After _READS_MAX reads, an activity with rows
    of different moments is returned. Raises TableError, and RequestError unavailable if all reads
    found rows that contradict each other.

    Args:
        services: the services that read the state table.
        pool: the name of the pool.
        head: the head of the pool, just read.
    """
    activity: PoolActivity | None = None
    for _ in range(_READS_MAX):
        try:
            activity = _activity_at(services, pool, head)
        except (AssertionError, KeyError, TypeError, ValueError):
            if services.table.get(head.key) == head:
                raise
        after = services.table.get(head.key)
        if after is None or after == head:
            break
        head = after
    if activity is None:
        raise RequestError(Code.UNAVAILABLE, f"pool {pool} changes too fast to be read; try again")
    return head, activity


def _activity_at(services: Services, pool: str, head: Row) -> PoolActivity:
    """Read the parts of a pool, and return the activity of the pool with this head.

    Parts that are newer than the head may raise AssertionError, KeyError, TypeError or ValueError.
    """
    address = addresses.pool(pool)
    state = actor_type_at(address).decode_state(decode_head(head.body)[1])
    assert isinstance(state, PoolState)
    parts = ActorParts(services.engine, address, CONTENT_FAMILIES)
    context = read_only_context(services.engine, address, parts)
    agents = dict(agents_of(context).items())
    queue = job_queue_of(context)
    groups = {number: group for number, group in queue.groups_at_work() if not group.is_idle}
    waiting = [number for number, group in groups.items() if group.waits_for_slots]
    return PoolActivity(
        state=state,
        settings=settings_of(context),
        agents=_count_agents(agents.values()),
        slots=_count_slots(agents.values()),
        agent_names=frozenset(agents),
        jobs={
            number: JobCounts(group.running, sum(group.pending.values()))
            for number, group in groups.items()
        },
        queued_slots=sum(
            slots * count for group in groups.values() for slots, count in group.pending.items()
        ),
        waits_since_ms=_oldest_request_ms(queue, waiting[:WAITING_JOBS_MAX]),
        allocations={
            parse_allocation(name): part.start
            for agent in agents.values()
            for name, part in agent.parts.items()
            if part.slots and part.rank == 0
        },
    )


def _count_agents(agents: Iterable[AgentSlots]) -> dict[str, int]:
    """Return the number of agents by state."""
    counts = {"enabled": 0, "draining": 0, "disabled": 0}
    for agent in agents:
        is_enabled, is_draining = agent.availability.enabled, agent.availability.draining
        counts["draining" if is_draining else "enabled" if is_enabled else "disabled"] += 1
    return counts


def _count_slots(agents: Iterable[AgentSlots]) -> dict[str, int]:
    """Return the number of slots by state. A held slot is used, even if it accepts no more work."""
    counts = {"used": 0, "free": 0, "disabled": 0}
    for agent in agents:
        counts["used"] += agent.held_count
        counts["free"] += agent.free_count
        counts["disabled"] += len(agent.slots) - agent.usable_count
    return counts


def _oldest_request_ms(queue: JobQueue, jobs: Sequence[int]) -> int | None:
    """Return the time of the oldest first request of the jobs, in epoch ms.

    Return None without requests.
    """
    first = [next(queue.requests(number), None) for number in jobs]
    # A ticket is "submitted_ms.requested_ms.trial_id".
    times = [int(request.ticket.split(".")[1]) for request in first if request is not None]
    return min(times, default=None)
