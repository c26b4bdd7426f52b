"""Application of a cluster configuration file: compare, check, and apply the changes.

All changes are checked before the first is made. Then pools are created and changed one by one, the
shared fields are stored, and pools that are not in the file are removed. Each step can be repeated:
after an interruption, apply the file again.
"""

from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Literal

from control_plane.config.durations import find_duration_ms
from control_plane.config.pools import ClusterConfig, ResourcePool
from control_plane.config.section import REVEAL
from control_plane.errors import Code, Detail, RequestError, invalid
from control_plane.queries import pool as pools
from control_plane.queries.cluster_configuration import cluster_config
from control_plane.services import Services
from control_plane.usecases.idempotency import ExtraWrites, no_extra_writes
from control_plane.usecases.pool_settings import (
    configure_pool,
    remove_pool,
    store_shared_config,
)
from control_plane.usecases.quiet_hours import check_quiet_hours
from detcloud.shared.dotted_paths import name_text

Action = Literal["create", "change", "remove", "keep"]


@dataclass(frozen=True)
class PoolChange:
    """The change of a pool by a new configuration."""

    resource_pool: str
    """The name of the pool."""
    action: Action
    fields: tuple[str, ...] = ()
    """The paths of the fields that change, for the action `change`."""


@dataclass(frozen=True)
class ConfigurationDifference:
    """The difference between two configurations of a cluster."""

    before: ClusterConfig
    after: ClusterConfig
    changes: tuple[PoolChange, ...]
    """One change for each pool."""
    shared: tuple[str, ...]
    """The paths of the fields outside the pools that change."""

    def names(self, action: Action) -> Iterator[str]:
        """Yield the names of the pools that need this action, in the order of `changes`."""
        return (change.resource_pool for change in self.changes if change.action == action)


def configuration_difference(
    before: ClusterConfig, after: ClusterConfig, names: Collection[str]
) -> ConfigurationDifference:
    """Compare two configurations of a cluster; read and write nothing.

    Args:
        before: the current configuration. It must have each pool of `names` that `after` has.
        after: the new configuration.
        names: the names of the existing pools.

    Returns:
        The difference. Pools of `after` come first, in their order, with the action `create`,
        `change` or `keep`. Then existing pools that `after` lacks follow, with `remove`.
    """
    changes = [
        _pool_change(before, after, pool)
        if pool.pool_name in names
        else PoolChange(resource_pool=pool.pool_name, action="create")
        for pool in after.resource_pools
    ]
    removals = [
        PoolChange(resource_pool=name, action="remove")
        for name in names
        if after.find_pool(name) is None
    ]
    shared = tuple(_differing_paths(_shared_fields(before), _shared_fields(after)))
    return ConfigurationDifference(before, after, (*changes, *removals), shared)


def check_configuration(services: Services, after: ClusterConfig) -> ConfigurationDifference:
    """Check that the configuration can be applied to this cluster; return the changes.

    Write nothing.

    Raises:
        RequestError: conflict, naming each pool that would be removed and has jobs, agents or
            instances; invalid, if a pool has a provider that the cluster does not support, quiet
            hours have an unknown time zone or no end, or the schedule of deletions has no time.
    """
    _check_deletion_times(after)
    names = pools.pool_names(services)
    difference = configuration_difference(cluster_config(services), after, names)
    places = {f"resource_pools[{n}].": pool for n, pool in enumerate(after.resource_pools)}
    check_providers(services, places, after)
    check_quiet_hours(places, services.now_ms())
    uses = {name: pools.pool_use(services, name) for name in difference.names("remove")}
    problems = [f"pool {name} has {use}" for name, use in uses.items() if use]
    if problems:
        text = (
            f"{'; '.join(problems)}: keep the pools that are in use in the file, or drain and "
            "empty them first"
        )
        raise RequestError(Code.CONFLICT, text)
    return difference


def _check_deletion_times(config: ClusterConfig) -> None:
    """Raise RequestError invalid for a cron expression that has no time or cannot be read."""
    schedule = config.retention_policy.schedule
    if schedule is None or find_duration_ms(schedule):
        return
    # Few configurations have a schedule, and the import takes 30 ms (bench/cold_starts.py).
    from control_plane.cron_times import CronInvalid, CronTimes

    try:
        CronTimes(schedule, "UTC")
    except CronInvalid as error:
        raise invalid("retention_policy.schedule", str(error)) from None


def check_removable(services: Services, name: str) -> None:
    """Check that the pool can be removed. A pool that does not exist passes.

    Raises:
        RequestError: conflict, if the pool is a default pool, or has jobs, agents or instances.
    """
    shared = cluster_config(services).resource_manager
    if name in (shared.default_compute_resource_pool, shared.default_aux_resource_pool):
        text = f"pool {name} is the default pool; make another pool the default first"
        raise RequestError(Code.CONFLICT, f"{text} with `detcloud cluster apply`")
    if use := pools.pool_use(services, name):
        text = f"pool {name} has {use}; drain it, move or end the jobs and stop the agents first"
        raise RequestError(Code.CONFLICT, text)


def check_providers(
    services: Services, pools_by_place: Mapping[str, ResourcePool], config: ClusterConfig
) -> None:
    """Check that the cluster supports the providers of the pools. Pools without a provider pass.

    Args:
        services: the services with the supported providers.
        pools_by_place: the pools by the prefix of their paths in error messages.
        config: the cluster configuration with the checkpoint store.

    Raises:
        RequestError: invalid, with a detail for each unsupported provider, and for each provider
            whose instances cannot reach the cluster's checkpoint store.
    """
    details = [
        Detail(f"{place}provider.type", problem)
        for place, pool in pools_by_place.items()
        if pool.provider is not None
        and (problem := _provider_problem(services, pool.provider.type, config))
    ]
    if details:
        texts = "; ".join(f"{detail.path}: {detail.message}" for detail in details)
        raise RequestError(Code.INVALID, texts, details)


def _provider_problem(services: Services, provider: str, config: ClusterConfig) -> str:
    """Return why pools of the cluster cannot have a provider type, or ""."""
    if provider not in services.providers:
        known = ", ".join(sorted(services.providers)) or "none"
        remedy = f"; {services.provider_remedy}" if services.provider_remedy else ""
        return f"{provider} is not available on this cluster; available: {known}{remedy}"
    if provider in services.distant_providers and config.checkpoint_storage is None:
        return (
            f"machines of {provider} cannot reach the checkpoint store, which is a folder of the "
            "server; set checkpoint_storage of the cluster configuration to a bucket"
        )
    return ""


def apply_configuration(
    services: Services, difference: ConfigurationDifference, by: str, extra_writes: ExtraWrites
) -> None:
    """Create and change pools, store the shared fields, and remove the pools that are left out.

    Each pool and the shared fields are a commit of their own. After an error, the commits before
    stay. Unchanged pools are configured too. The extra writes are part of the last commit.

    Args:
        services: the services with the engine and the state table.
        difference: the checked changes.
        by: the user, for the journal.
        extra_writes: returns further writes of the last commit.

    Raises:
        RequestError: unavailable, if other requests keep changing a pool or the shared fields;
            conflict, if a pool to remove has jobs or agents.
        Conflict: the condition of an extra write does not hold; the earlier commits stay.
    """
    # Unchanged pools are configured too, because shared fields, like the default scheduler, affect
    # the settings of all pools.
    for pool in difference.after.resource_pools:
        configure_pool(services, pool, difference.after, by)
    removed = [*difference.names("remove")]
    store_shared_config(services, difference.after, no_extra_writes if removed else extra_writes)
    for name in removed:
        is_last = name == removed[-1]
        remove_pool(services, name, by, extra_writes if is_last else no_extra_writes)


def _pool_change(before: ClusterConfig, after: ClusterConfig, pool: ResourcePool) -> PoolChange:
    """Return the change of an existing pool: `change` with the differing paths, or else `keep`.

    `pool` is the new configuration. `before` must have the pool.
    """
    present = before.find_pool(pool.pool_name)
    assert present is not None
    fields = sorted(_differing_paths(_pool_fields(before, present), _pool_fields(after, pool)))
    action: Action = "change" if fields else "keep"
    return PoolChange(resource_pool=pool.pool_name, action=action, fields=tuple(fields))


def _pool_fields(cluster: ClusterConfig, pool: ResourcePool) -> dict[str, Any]:
    """Return the fields of a pool's configuration as JSON values, secrets included.

    `scheduler` is the scheduler in use: the cluster's default if the pool names none.
    """
    fields = pool.model_dump(mode="json", context=REVEAL)
    return fields | {"scheduler": cluster.scheduler_of(pool).model_dump(mode="json")}


def _shared_fields(cluster: ClusterConfig) -> dict[str, Any]:
    """Return the configuration without `resource_pools` as JSON values, secrets included."""
    return cluster.model_dump(mode="json", context=REVEAL, exclude={"resource_pools"})


def _differing_paths(before: object, after: object, path: str = "") -> Iterator[str]:
    """Yield the paths of the values that differ between two trees of mappings, in sorted order.

    A key that one mapping lacks counts as None. Lists are compared as a whole. `path` is the path
    of the two trees themselves.
    """
    if isinstance(before, Mapping) and isinstance(after, Mapping):
        for key in sorted({*before, *after}):
            below = f"{path}.{name_text(key)}" if path else name_text(key)
            yield from _differing_paths(before.get(key), after.get(key), below)
    elif before != after:
        yield path
