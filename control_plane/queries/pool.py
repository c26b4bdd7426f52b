"""Resource pools: their states, settings and use, and the cluster as a whole."""

from typing import Literal

from control_plane.actors import addresses
from control_plane.actors.job_row import POOLS, jobs_partition
from control_plane.actors.messages.pool import PoolSettings
from control_plane.actors.pool.actor import PoolState
from control_plane.errors import Code, RequestError
from control_plane.fleet.records import instances_partition
from control_plane.queries.answer import Answer
from control_plane.queries.row_pages import read_rows
from control_plane.services import Services


class PoolSummary(Answer):
    """A pool at a glance. `queued` and `running` count allocations."""

    name: str
    slots: int
    free_slots: int
    queued: int
    running: int
    agents: int


class ClusterOverview(Answer):
    """The cluster at a glance."""

    cluster_id: str
    version: str
    resource_pools: list[PoolSummary]


def cluster_overview(services: Services) -> ClusterOverview:
    """Describe the cluster as it is now."""
    states = [find_pool(services, name) for name in pool_names(services)]
    return ClusterOverview(
        cluster_id=services.cluster_id,
        version=services.version,
        resource_pools=[
            PoolSummary(**summary_fields(state)) for state in states if state is not None
        ],
    )


def pool_names(services: Services) -> list[str]:
    """The names of the pools, in order."""
    return [row.key.sort for row in read_rows(services.table, POOLS, " ", "\x7f")]


def find_pool(services: Services, name: str) -> PoolState | None:
    """Load the pool's state, or None."""
    state = services.engine.read_state(addresses.pool(name))
    assert state is None or isinstance(state, PoolState)
    return None if state is None or state.removed else state


def get_pool(services: Services, name: str) -> PoolState:
    """Load the pool's state; RequestError not_found, naming the pools there are."""
    state = find_pool(services, name)
    if state is None:
        known = ", ".join(pool_names(services)) or "none"
        raise RequestError(Code.NOT_FOUND, f"Pool {name:.80} not found; there is {known}")
    return state


def load_settings(services: Services, name: str) -> PoolSettings:
    """Load the pool's settings; the defaults for one that does not exist yet."""
    part = services.engine.read_part(addresses.pool(name), "settings")
    assert part is None or isinstance(part, PoolSettings)
    return part or PoolSettings()


def pool_state(settings: PoolSettings) -> Literal["OPEN", "DRAINING", "OVER_BUDGET"]:
    """The answer's `state` of a pool: only in an OPEN one does anything start."""
    if settings.draining:
        return "DRAINING"
    return "OVER_BUDGET" if settings.over_budget else "OPEN"


def pool_use(services: Services, name: str) -> str:
    """The jobs, agents and instances that keep a pool from being removed, as text; "" for none."""
    state = find_pool(services, name)
    counts = {
        "job": count_jobs(services, name),
        "agent": 0 if state is None else state.agents,
        "instance": count_instances(services, name),
    }
    texts = [f"{n} {noun}{'s' if n > 1 else ''}" for noun, n in counts.items() if n]
    return " and ".join(texts)


def count_jobs(services: Services, name: str) -> int:
    """Count the experiments in the pool that have not ended; paused ones are among them."""
    return len(read_rows(services.table, jobs_partition(name), " ", "\x7f"))


def count_instances(services: Services, name: str) -> int:
    """Count the instances of the pool that have not ended."""
    return len(read_rows(services.table, instances_partition(name), " ", "\x7f"))


def summary_fields(state: PoolState) -> dict[str, str | int]:
    """The fields of a PoolSummary."""
    return {
        "name": state.name,
        "slots": state.slots,
        "free_slots": state.free,
        "queued": state.queued,
        "running": state.running,
        "agents": state.agents,
    }
