"""Queries of resource pools: states, settings, jobs and instances, and a summary of the cluster."""

from typing import Literal

from control_plane.actors import addresses
from control_plane.actors.job_row import POOLS, jobs_partition
from control_plane.actors.messages.pool import PoolSettings
from control_plane.actors.pool.actor import PoolState
from control_plane.errors import Code, RequestError
from control_plane.fleet.records import instances_partition
from control_plane.queries.answer import Answer
from control_plane.scheduling.quiet_hours import period_at
from control_plane.services import Services
from control_plane.state.row_ranges import read_rows

PoolStateName = Literal["OPEN", "DRAINING", "OVER_BUDGET", "QUIET_HOURS"]


class PoolSummary(Answer):
    """Summary of a resource pool.

    `queued` and `running` count allocations.
    """

    name: str
    slots: int
    free_slots: int
    queued: int
    running: int
    agents: int


class ClusterOverview(Answer):
    """Summary of the cluster and of its pools."""

    cluster_id: str
    version: str
    resource_pools: list[PoolSummary]


def cluster_overview(services: Services) -> ClusterOverview:
    """Return the cluster's identity and a summary of each pool, sorted by name. Skip removed
    pools.
    """
    states = [find_pool(services, name) for name in pool_names(services)]
    return ClusterOverview(
        cluster_id=services.cluster_id,
        version=services.version,
        resource_pools=[
            PoolSummary(**summary_fields(state)) for state in states if state is not None
        ],
    )


def pool_names(services: Services) -> list[str]:
    """Return the names of all pools, sorted. Reads all rows of pools."""
    return [row.key.sort for row in read_rows(services.table, POOLS)]


def find_pool(services: Services, name: str) -> PoolState | None:
    """Load the pool's state. Return None if the pool does not exist or was removed."""
    state = services.engine.read_state(addresses.pool(name))
    assert state is None or isinstance(state, PoolState)
    return None if state is None or state.removed else state


def get_pool(services: Services, name: str) -> PoolState:
    """Load the pool's state.

    Raises:
        RequestError: not_found, if the pool does not exist or was removed; the message lists the
            existing pools.
    """
    state = find_pool(services, name)
    if state is None:
        known = ", ".join(pool_names(services)) or "none"
        raise RequestError(Code.NOT_FOUND, f"Pool {name:.80} not found; existing pools: {known}")
    return state


def load_settings(services: Services, name: str) -> PoolSettings:
    """Load the pool's settings; return the defaults if no settings are stored, as for an unknown
    pool.
    """
    part = services.engine.read_part(addresses.pool(name), "settings")
    assert part is None or isinstance(part, PoolSettings)
    return part or PoolSettings()


def pool_state(settings: PoolSettings, now_ms: int) -> PoolStateName:
    """Return DRAINING for a draining pool, else OVER_BUDGET for a used-up budget.

    Otherwise return QUIET_HOURS in quiet hours, and OPEN at other times. Trials start if OPEN, and
    urgent trials also in QUIET_HOURS.
    """
    if settings.draining:
        return "DRAINING"
    if settings.over_budget:
        return "OVER_BUDGET"
    return "QUIET_HOURS" if period_at(settings.quiet_periods, now_ms) else "OPEN"


def pool_use(services: Services, name: str) -> str:
    """Return the counts of jobs, agents and instances in a pool, as text.

    A pool with any of these cannot be removed. For example "2 jobs and 1 agent"; "" if all are 0.
    """
    state = find_pool(services, name)
    counts = {
        "job": count_jobs(services, name),
        "agent": 0 if state is None else state.agents,
        "instance": count_instances(services, name),
    }
    texts = [f"{n} {noun}{'s' if n > 1 else ''}" for noun, n in counts.items() if n]
    return " and ".join(texts)


def count_jobs(services: Services, name: str) -> int:
    """Count the pool's experiments that have not ended, paused experiments included."""
    return sum(1 for _ in read_rows(services.table, jobs_partition(name)))


def count_instances(services: Services, name: str) -> int:
    """Count the pool's instances that have not ended."""
    return sum(1 for _ in read_rows(services.table, instances_partition(name)))


def summary_fields(state: PoolState) -> dict[str, str | int]:
    """Return the fields of `PoolSummary` by name: the pool's name, and counts of slots, allocations
    and agents.
    """
    return {
        "name": state.name,
        "slots": state.slots,
        "free_slots": state.free,
        "queued": state.queued,
        "running": state.running,
        "agents": state.agents,
    }
