"""The conversion of the cluster's configuration to settings of resource pools."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from control_plane.actors.cost import to_micros
from control_plane.actors.messages.pool import PoolSettings
from control_plane.config.eras import LENGTH_ERA
from control_plane.config.merge import merge_trees
from control_plane.config.pools import ClusterConfig, ResourcePool, Scheduler
from control_plane.config.quiet_hours import quiet_rules
from control_plane.config.registry_login import drop_foreign_login
from control_plane.config.section import REVEAL
from control_plane.scheduling.model import SchedulerRules


def pool_settings(pool: ResourcePool, cluster: ClusterConfig, now: PoolSettings) -> PoolSettings:
    """Return the settings of a pool for the pool actor. Periods of quiet hours stay as in `now`.

    Args:
        pool: the pool's configuration.
        cluster: the cluster's configuration, whose scheduler, check of gangs and exclusions apply
            if the pool has none.
        now: the present settings. Settings without a configuration field, such as `draining`, are
            copied from here.
    """
    scheduler = cluster.scheduler_of(pool)
    shared = cluster.resource_manager
    log_exclusion = pool.log_exclusion or shared.log_exclusion
    return replace(
        now,
        reserve_after_ms=scheduler.reserve_after or None,
        scheduler=scheduler_rules(scheduler),
        default_priority=scheduler.default_priority,
        aux_per_agent=pool.max_aux_containers_per_agent,
        provider=pool.provider.to_json() if pool.provider else "",
        description=pool.description,
        budget_micros=None if pool.budget is None else to_micros(pool.budget),
        stores_idle_jobs_apart=True,
        log_exclusion=log_exclusion.rules() if log_exclusion else None,
        gang_check=(pool.gang_check or shared.gang_check).rules(),
        quiet_hours=quiet_rules(pool.quiet_hours),
    )


def scheduler_rules(scheduler: Scheduler) -> SchedulerRules:
    """Return the rules of a scheduler section: type, preemption, fitting and heterogeneous fits."""
    return SchedulerRules(
        scheduler.type,
        scheduler.preemption,
        scheduler.fitting_policy,
        scheduler.allow_heterogeneous_fits,
    )


def task_defaults(pool: ResourcePool, cluster: ClusterConfig) -> Mapping[str, Any]:
    """Return the cluster's layer of the configurations of the pool's experiments.

    The layer contains the pool's container defaults merged over the cluster's. A registry login of
    the cluster is dropped if the pool's image is in another registry. The cluster's checkpoint
    storage is added, if configured. Secrets are unmasked. Return an empty map without any defaults.
    """
    upper = pool.task_container_defaults
    lower = cluster.task_container_defaults
    above, below = (section.config_layer() if section else {} for section in (upper, lower))
    defaults = drop_foreign_login(merge_trees(above, below, LENGTH_ERA), (above, below))
    storage = cluster.checkpoint_storage
    if storage is None:
        return defaults
    given = storage.model_dump(mode="json", context=REVEAL, exclude_unset=True)
    return {**defaults, "checkpoint_storage": given}
