"""Resource pools and the cluster as the API shows them."""

from pydantic import BaseModel

from control_plane.actors import addresses
from control_plane.actors.pool import POOLS, PoolState
from control_plane.api.services import Services
from control_plane.api.views.rows import all_rows


class ResourcePool(BaseModel):
    """`queued` and `running` count allocations."""

    name: str
    slots: int
    free_slots: int
    queued: int
    running: int
    agents: int


class Overview(BaseModel):
    """The cluster at a glance."""

    cluster_id: str
    version: str
    resource_pools: list[ResourcePool]


def overview(services: Services) -> Overview:
    """The cluster as it is now."""
    states = [found(services, name) for name in pool_names(services)]
    return Overview(
        cluster_id=services.cluster_id,
        version=services.version,
        resource_pools=[_shown(state) for state in states if state is not None],
    )


def pool_names(services: Services) -> list[str]:
    """The pools by name."""
    return [row.key.sort for row in all_rows(services.table, POOLS, " ", "\x7f")]


def found(services: Services, name: str) -> PoolState | None:
    """The pool's head, or None."""
    state = services.engine.state(addresses.pool(name))
    assert state is None or isinstance(state, PoolState)
    return state


def _shown(state: PoolState) -> ResourcePool:
    return ResourcePool(
        name=state.name,
        slots=state.slots,
        free_slots=state.free,
        queued=state.queued,
        running=state.running,
        agents=state.agents,
    )
