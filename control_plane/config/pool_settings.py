"""What a resource pool goes by, from its configuration."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from control_plane.actors.cost import micros_of
from control_plane.actors.pool_messages import PoolSettings
from control_plane.config.eras import LENGTH_ERA
from control_plane.config.merge import merged
from control_plane.config.pools import ClusterConfig, ResourcePool, Scheduler
from control_plane.config.registry_login import without_strayed_login
from control_plane.scheduling.model import SchedulerRules


def pool_settings(pool: ResourcePool, cluster: ClusterConfig, now: PoolSettings) -> PoolSettings:
    """The settings of a pool of the cluster; what no configuration says stays as it is `now`."""
    scheduler = cluster.scheduler_of(pool)
    return replace(
        now,
        scheduler=scheduler_rules(scheduler),
        default_priority=scheduler.default_priority,
        aux_per_agent=pool.max_aux_containers_per_agent,
        provider=pool.provider.to_json() if pool.provider else "",
        description=pool.description,
        budget_micros=None if pool.budget is None else micros_of(pool.budget),
    )


def scheduler_rules(scheduler: Scheduler) -> SchedulerRules:
    """By which the scheduler decides."""
    return SchedulerRules(
        scheduler.type,
        scheduler.preemption,
        scheduler.fitting_policy,
        scheduler.allow_heterogeneous_fits,
    )


def task_defaults(pool: ResourcePool, cluster: ClusterConfig) -> Mapping[str, Any]:
    """What lies below the configurations of the pool's experiments."""
    upper = pool.task_container_defaults
    lower = cluster.task_container_defaults
    above, below = (defaults.layer() if defaults else {} for defaults in (upper, lower))
    found: Mapping[str, Any] = merged(above, below, LENGTH_ERA)
    return without_strayed_login(found, (above, below))
