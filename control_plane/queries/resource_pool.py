"""Queries of resource pools with configurations, instances and costs."""

from collections.abc import Sequence
from typing import Any, Literal

from control_plane.actors.pool.actor import PoolState
from control_plane.config.pools import ClusterConfig, ResourcePool
from control_plane.queries import pool as pools
from control_plane.queries.answer import Answer
from control_plane.queries.cluster_configuration import cluster_config
from control_plane.queries.cost import PoolCosts, pool_costs
from control_plane.queries.instance import (
    FleetView,
    InstanceView,
    OfferingView,
    describe_fleet,
    list_instances,
    list_offerings,
)
from control_plane.scheduling.quiet_hours import next_quiet_ms, quiet_end_ms
from control_plane.services import Services


class SchedulerView(Answer):
    """The scheduler settings of a pool, with the fields of the cluster's configuration."""

    type: str
    preemption: bool
    default_priority: int
    fitting_policy: str
    allow_heterogeneous_fits: bool


class ResourcePoolView(pools.PoolSummary):
    """A pool as an item of the list of pools; docs/api.md describes the fields."""

    description: str
    scheduler: SchedulerView
    state: pools.PoolStateName
    quiet_until_ms: int | None
    next_quiet_ms: int | None
    default_for: list[Literal["compute", "aux"]]
    waits: str
    instances: int
    offerings: list[OfferingView]
    config: dict[str, Any]


class ResourcePoolWhole(ResourcePoolView):
    """A pool with instances and costs.

    `jobs` counts the pool's jobs that have not ended, paused jobs included.
    """

    jobs: int
    instance_list: list[InstanceView]
    fleet: FleetView
    costs: PoolCosts


def describe_pool(services: Services, name: str) -> ResourcePoolWhole:
    """Return a pool with the configuration, instances and costs. Secrets are masked.

    Raises:
        RequestError: not_found, if the pool does not exist.
        ValueError: the stored configuration of the cluster is not valid.
    """
    answer = _pool_answer(services, pools.get_pool(services, name), cluster_config(services))
    return ResourcePoolWhole(
        **answer.model_dump(),
        jobs=pools.count_jobs(services, name),
        instance_list=list_instances(services, name),
        fleet=describe_fleet(services, name),
        costs=pool_costs(services, name, pools.load_settings(services, name).budget_micros),
    )


def describe_pools(services: Services, names: Sequence[str]) -> list[ResourcePoolView]:
    """Return the pools with the given names, in this order. Skip names of pools that do not exist.

    Secrets are masked. Raises ValueError if the stored configuration of the cluster is not valid.
    """
    config = cluster_config(services)
    states = [pools.find_pool(services, name) for name in names]
    return [_pool_answer(services, state, config) for state in states if state is not None]


def _pool_answer(services: Services, state: PoolState, cluster: ClusterConfig) -> ResourcePoolView:
    """Return the answer for a pool. Reads the pool's settings, instances and offerings.

    A pool that is not in `cluster` has the default configuration.
    """
    config = cluster.find_pool(state.name)
    if config is None:
        # The pool was created after the cluster's configuration was read.
        config = ResourcePool(pool_name=state.name)
    scheduler = cluster.scheduler_of(config).model_dump(mode="json")
    settings, now_ms = pools.load_settings(services, state.name), services.now_ms()
    return ResourcePoolView(
        **pools.summary_fields(state),
        description=config.description,
        scheduler=SchedulerView(**scheduler),
        state=pools.pool_state(settings, now_ms),
        quiet_until_ms=quiet_end_ms(settings.quiet_periods, now_ms),
        next_quiet_ms=next_quiet_ms(settings.quiet_periods, now_ms),
        default_for=_defaults(cluster, state.name),
        waits=state.wait_reason,
        instances=pools.count_instances(services, state.name),
        offerings=list_offerings(services, state.name),
        config=config.masked_values(),
    )


def _defaults(cluster: ClusterConfig, name: str) -> list[Literal["compute", "aux"]]:
    """Return the kinds of work for which the pool is the cluster's default pool."""
    shared = cluster.resource_manager
    kinds: list[Literal["compute", "aux"]] = []
    if shared.default_compute_resource_pool == name:
        kinds.append("compute")
    if shared.default_aux_resource_pool == name:
        kinds.append("aux")
    return kinds
