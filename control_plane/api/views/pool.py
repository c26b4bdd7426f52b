"""Resource pools and the cluster as the API shows them."""

from typing import Literal

from control_plane.actors import addresses
from control_plane.actors.jobs import jobs_of
from control_plane.actors.pool import POOLS, PoolState
from control_plane.actors.pool_messages import PoolSettings
from control_plane.api.bodies import Body
from control_plane.api.errors import ApiError, Code
from control_plane.api.services import Services
from control_plane.api.views.rows import all_rows
from control_plane.fleet.records import instances_of


class PoolSummary(Body):
    """`queued` and `running` count allocations."""

    name: str
    slots: int
    free_slots: int
    queued: int
    running: int
    agents: int


class Overview(Body):
    """The cluster at a glance."""

    cluster_id: str
    version: str
    resource_pools: list[PoolSummary]


def overview(services: Services) -> Overview:
    """The cluster as it is now."""
    states = [found(services, name) for name in pool_names(services)]
    return Overview(
        cluster_id=services.cluster_id,
        version=services.version,
        resource_pools=[PoolSummary(**summary(state)) for state in states if state is not None],
    )


def pool_names(services: Services) -> list[str]:
    """The pools by name."""
    return [row.key.sort for row in all_rows(services.table, POOLS, " ", "\x7f")]


def found(services: Services, name: str) -> PoolState | None:
    """The pool's head, or None."""
    state = services.engine.state(addresses.pool(name))
    assert state is None or isinstance(state, PoolState)
    return None if state is None or state.removed else state


def existing(services: Services, name: str) -> PoolState:
    """The same; ApiError not_found, naming those there are."""
    state = found(services, name)
    if state is None:
        known = ", ".join(pool_names(services)) or "none"
        raise ApiError(Code.NOT_FOUND, f"Pool {name:.80} not found; there is {known}")
    return state


def settings(services: Services, name: str) -> PoolSettings:
    """What the pool goes by; the defaults for one that does not exist yet."""
    part = services.engine.part(addresses.pool(name), "settings")
    assert part is None or isinstance(part, PoolSettings)
    return part or PoolSettings()


def state_of(given: PoolSettings) -> Literal["OPEN", "DRAINING", "OVER_BUDGET"]:
    """Whether anything starts in the pool."""
    if given.draining:
        return "DRAINING"
    return "OVER_BUDGET" if given.over_budget else "OPEN"


def use_of(services: Services, name: str) -> str:
    """What keeps a pool from being removed, "" if nothing does."""
    state = found(services, name)
    counts = {
        "job": jobs_in(services, name),
        "agent": 0 if state is None else state.agents,
        "instance": instances_in(services, name),
    }
    texts = [f"{n} {noun}{'s' if n > 1 else ''}" for noun, n in counts.items() if n]
    return " and ".join(texts)


def jobs_in(services: Services, name: str) -> int:
    """How many experiments have the pool and have not ended, those that are paused among them."""
    return len(all_rows(services.table, jobs_of(name), " ", "\x7f"))


def instances_in(services: Services, name: str) -> int:
    """How many instances of the pool have not ended."""
    return len(all_rows(services.table, instances_of(name), " ", "\x7f"))


def summary(state: PoolState) -> dict[str, str | int]:
    """The fields of a PoolSummary."""
    return {
        "name": state.name,
        "slots": state.slots,
        "free_slots": state.free,
        "queued": state.queued,
        "running": state.running,
        "agents": state.agents,
    }
