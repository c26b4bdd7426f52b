"""A resource pool with its configuration, as the API shows it."""

from collections.abc import Sequence
from typing import Any, Literal

from control_plane.actors.pool import PoolState
from control_plane.api.bodies import Body
from control_plane.api.pool_store import cluster_config
from control_plane.api.services import Services
from control_plane.api.views import pool as pools
from control_plane.api.views.cost import PoolCosts, pool_costs
from control_plane.api.views.instance import FleetView, InstanceView, fleet, instances
from control_plane.config.pools import ClusterConfig, ResourcePool


class SchedulerView(Body):
    """By which a pool decides; the fields of the configuration."""

    type: str
    preemption: bool
    default_priority: int
    fitting_policy: str
    allow_heterogeneous_fits: bool


class ResourcePoolView(pools.PoolSummary):
    """See docs/api.md."""

    description: str
    scheduler: SchedulerView
    state: Literal["OPEN", "DRAINING", "OVER_BUDGET"]
    default_for: list[Literal["compute", "aux"]]
    waits: str
    instances: int
    config: dict[str, Any]


class ResourcePoolWhole(ResourcePoolView):
    """With its instances, and the number of jobs that are in it or may come back to it."""

    jobs: int
    instance_list: list[InstanceView]
    fleet: FleetView
    costs: PoolCosts


def resource_pool(services: Services, name: str) -> ResourcePoolWhole:
    """One pool; ApiError not_found."""
    shown = _shown(services, pools.existing(services, name), cluster_config(services))
    return ResourcePoolWhole(
        **shown.model_dump(),
        jobs=pools.jobs_in(services, name),
        instance_list=instances(services, name),
        fleet=fleet(services, name),
        costs=pool_costs(services, name, pools.settings(services, name).budget_micros),
    )


def resource_pools(services: Services, names: Sequence[str]) -> list[ResourcePoolView]:
    """The pools of these names."""
    config = cluster_config(services)
    states = [pools.found(services, name) for name in names]
    return [_shown(services, state, config) for state in states if state is not None]


def _shown(services: Services, state: PoolState, cluster: ClusterConfig) -> ResourcePoolView:
    config = cluster.pool(state.name)
    if config is None:
        # It was made between two readings.
        config = ResourcePool(pool_name=state.name)
    scheduler = cluster.scheduler_of(config).model_dump(mode="json")
    return ResourcePoolView(
        **pools.summary(state),
        description=config.description,
        scheduler=SchedulerView(**scheduler),
        state=pools.state_of(pools.settings(services, state.name)),
        default_for=_defaults(cluster, state.name),
        waits=state.waits,
        instances=pools.instances_in(services, state.name),
        config=config.public(),
    )


def _defaults(cluster: ClusterConfig, name: str) -> list[Literal["compute", "aux"]]:
    shared = cluster.resource_manager
    found: list[Literal["compute", "aux"]] = []
    if shared.default_compute_resource_pool == name:
        found.append("compute")
    if shared.default_aux_resource_pool == name:
        found.append("aux")
    return found
