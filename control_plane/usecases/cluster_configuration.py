"""Applying a cluster configuration file: what it changes, whether it can, and the changes.

Everything is checked before anything is changed. Pools are then created and changed one by one,
what they share is stored, and pools that the file has no more are removed; each step can be
repeated, so that after an interruption the file is applied again.
"""

from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Literal

from control_plane.config.pools import ClusterConfig, ResourcePool
from control_plane.config.section import REVEAL
from control_plane.errors import Code, Detail, RequestError
from control_plane.queries import pool as pools
from control_plane.queries.cluster_configuration import cluster_config
from control_plane.services import Services
from control_plane.usecases.idempotency import ExtraWrites, no_extra_writes
from control_plane.usecases.pool_settings import (
    configure_pool,
    remove_pool,
    store_shared_config,
)

Action = Literal["create", "change", "remove", "keep"]


@dataclass(frozen=True)
class PoolChange:
    """The action that a pool needs; `fields` are those of its configuration that change."""

    resource_pool: str
    action: Action
    fields: tuple[str, ...] = ()


@dataclass(frozen=True)
class ConfigurationDifference:
    """The changes from the configuration `before` to the one `after`; `shared` are the fields that
    change of what the pools share.
    """

    before: ClusterConfig
    after: ClusterConfig
    changes: tuple[PoolChange, ...]
    shared: tuple[str, ...]

    def names(self, action: Action) -> Iterator[str]:
        """The pools that need this action."""
        return (change.resource_pool for change in self.changes if change.action == action)


def configuration_difference(
    before: ClusterConfig, after: ClusterConfig, names: Collection[str]
) -> ConfigurationDifference:
    """The changes for a cluster that has pools of these names: the pools of `after` first, in its
    order.
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
    """The changes that the configuration needs on this cluster, which all are possible.

    Raises:
        RequestError: conflict, for a pool that is used and not in the configuration; invalid, for
            providers that the cluster does not have.
    """
    names = pools.pool_names(services)
    difference = configuration_difference(cluster_config(services), after, names)
    places = {f"resource_pools[{n}].": pool for n, pool in enumerate(after.resource_pools)}
    check_providers(services, places)
    uses = {name: pools.pool_use(services, name) for name in difference.names("remove")}
    problems = [f"pool {name} has {use}" for name, use in uses.items() if use]
    if problems:
        text = (
            f"{'; '.join(problems)}: keep the pools that are in use in the file, or drain and "
            "empty them first"
        )
        raise RequestError(Code.CONFLICT, text)
    return difference


def check_removable(services: Services, name: str) -> None:
    """Raise RequestError conflict unless the pool can be removed by itself."""
    shared = cluster_config(services).resource_manager
    if name in (shared.default_compute_resource_pool, shared.default_aux_resource_pool):
        text = f"pool {name} is the default pool; make another pool the default first"
        raise RequestError(Code.CONFLICT, f"{text} with `detcloud cluster apply`")
    if use := pools.pool_use(services, name):
        text = f"pool {name} has {use}; drain it, move or end the jobs and stop the agents first"
        raise RequestError(Code.CONFLICT, text)


def check_providers(services: Services, pools_by_place: Mapping[str, ResourcePool]) -> None:
    """Raise RequestError invalid unless the cluster has the providers of the pools, which are given
    by their places in the configuration.
    """
    known = ", ".join(sorted(services.providers)) or "none"
    remedy = f"; {services.provider_remedy}" if services.provider_remedy else ""
    details = [
        Detail(
            f"{place}provider.type",
            f"{pool.provider.type} is not available on this cluster; available: {known}{remedy}",
        )
        for place, pool in pools_by_place.items()
        if pool.provider is not None and pool.provider.type not in services.providers
    ]
    if details:
        texts = "; ".join(f"{detail.path}: {detail.message}" for detail in details)
        raise RequestError(Code.INVALID, texts, details)


def apply_configuration(
    services: Services, difference: ConfigurationDifference, by: str, extra_writes: ExtraWrites
) -> None:
    """Carry the changes out; the extra writes go with the last step."""
    # Unchanged pools too: a pool's settings may come from what the pools share, as its scheduler.
    for pool in difference.after.resource_pools:
        configure_pool(services, pool, difference.after, by)
    removed = [*difference.names("remove")]
    store_shared_config(services, difference.after, no_extra_writes if removed else extra_writes)
    for name in removed:
        is_last = name == removed[-1]
        remove_pool(services, name, by, extra_writes if is_last else no_extra_writes)


def _pool_change(before: ClusterConfig, after: ClusterConfig, pool: ResourcePool) -> PoolChange:
    present = before.find_pool(pool.pool_name)
    assert present is not None
    fields = sorted(_differing_paths(_pool_fields(before, present), _pool_fields(after, pool)))
    action: Action = "change" if fields else "keep"
    return PoolChange(resource_pool=pool.pool_name, action=action, fields=tuple(fields))


def _pool_fields(cluster: ClusterConfig, pool: ResourcePool) -> dict[str, Any]:
    """The pool's fields, with the scheduler that it uses."""
    fields = pool.model_dump(mode="json", context=REVEAL)
    return fields | {"scheduler": cluster.scheduler_of(pool).model_dump(mode="json")}


def _shared_fields(cluster: ClusterConfig) -> dict[str, Any]:
    return cluster.model_dump(mode="json", context=REVEAL, exclude={"resource_pools"})


def _differing_paths(one: object, other: object, path: str = "") -> Iterator[str]:
    """The paths below which two trees differ."""
    if isinstance(one, Mapping) and isinstance(other, Mapping):
        for key in sorted({*one, *other}):
            below = f"{path}.{key}" if path else str(key)
            yield from _differing_paths(one.get(key), other.get(key), below)
    elif one != other:
        yield path
