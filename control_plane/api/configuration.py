"""A cluster configuration file made true: what it changes, whether it can, and the change itself.

Everything is looked at before anything is changed. Pools are then created and changed one by one,
what they share is stored, and what the file has no more is removed; each step can be repeated, so
that whoever is interrupted applies the file again.
"""

from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Literal

from control_plane.api.bodies import Body
from control_plane.api.errors import ApiError, Code, Detail
from control_plane.api.idempotency import Beside, nothing
from control_plane.api.pool_store import cluster_config, configure_pool, remove_pool, share
from control_plane.api.services import Services
from control_plane.api.views import pool as pools
from control_plane.config.pools import ClusterConfig, ResourcePool
from control_plane.config.section import REVEAL

Action = Literal["create", "change", "remove", "keep"]


class PoolChange(Body):
    """What becomes of a pool; `fields` are those of its configuration that change."""

    resource_pool: str
    action: Action
    fields: list[str] = []


class Applied(Body):
    """What a configuration changed, or with `dry_run` would change; `shared` are the fields of
    what the pools share.
    """

    changes: list[PoolChange]
    shared: list[str] = []
    dry_run: bool = False


@dataclass(frozen=True)
class Difference:
    """From the configuration `before` to the one `after`."""

    before: ClusterConfig
    after: ClusterConfig
    changes: tuple[PoolChange, ...]
    shared: tuple[str, ...]

    def names(self, action: Action) -> Iterator[str]:
        """The pools of which that becomes."""
        return (change.resource_pool for change in self.changes if change.action == action)


def difference(before: ClusterConfig, after: ClusterConfig, names: Collection[str]) -> Difference:
    """What has to be done where there are pools of these names, the pools of `after` first, in its
    order.
    """
    changes = [
        _change(before, after, pool)
        if pool.pool_name in names
        else PoolChange(resource_pool=pool.pool_name, action="create")
        for pool in after.resource_pools
    ]
    gone = [
        PoolChange(resource_pool=name, action="remove")
        for name in names
        if after.pool(name) is None
    ]
    return Difference(
        before, after, (*changes, *gone), tuple(_differing(_shared(before), _shared(after)))
    )


def checked_difference(services: Services, after: ClusterConfig) -> Difference:
    """What would have to be done on this cluster.

    Raises:
        ApiError: conflict, for a pool that is used and not in the configuration; invalid, for
            providers that the cluster does not have.
    """
    found = difference(cluster_config(services), after, pools.pool_names(services))
    places = {f"resource_pools[{n}].": pool for n, pool in enumerate(after.resource_pools)}
    check_providers(services, places)
    used = {name: pools.use_of(services, name) for name in found.names("remove")}
    problems = [f"pool {name} has {use}" for name, use in used.items() if use]
    if problems:
        text = f"{'; '.join(problems)}: keep what is used in the file, or drain and empty it first"
        raise ApiError(Code.CONFLICT, text)
    return found


def check_removable(services: Services, name: str) -> None:
    """Whether a pool can be removed alone; ApiError conflict."""
    shared = cluster_config(services).resource_manager
    if name in (shared.default_compute_resource_pool, shared.default_aux_resource_pool):
        text = f"pool {name} is where experiments go that name no pool; make another the default"
        raise ApiError(Code.CONFLICT, f"{text} with `detcloud cluster apply`")
    if use := pools.use_of(services, name):
        text = f"pool {name} has {use}; drain it, move or end the jobs and stop the agents first"
        raise ApiError(Code.CONFLICT, text)


def check_providers(services: Services, checked: Mapping[str, ResourcePool]) -> None:
    """Whether the cluster can launch what the pools, by their places, ask for; ApiError invalid."""
    known = ", ".join(sorted(services.providers)) or "none"
    details = [
        Detail(
            f"{place}provider.type",
            f"{pool.provider.type} is not available on this cluster; available: {known}",
        )
        for place, pool in checked.items()
        if pool.provider is not None and pool.provider.type not in services.providers
    ]
    if details:
        texts = "; ".join(f"{detail.path}: {detail.message}" for detail in details)
        raise ApiError(Code.INVALID, texts, details)


def apply(services: Services, asked: Difference, by: str, beside: Beside) -> None:
    """Carries it out; what stands beside goes with the last step."""
    # What a pool is kept as may be said otherwise, as a scheduler that was the cluster's.
    for pool in asked.after.resource_pools:
        configure_pool(services, pool, asked.after, by)
    gone = [*asked.names("remove")]
    share(services, asked.after, nothing if gone else beside)
    for name in gone:
        remove_pool(services, name, by, beside if name == gone[-1] else nothing)


def _change(before: ClusterConfig, after: ClusterConfig, pool: ResourcePool) -> PoolChange:
    known = before.pool(pool.pool_name)
    assert known is not None
    fields = sorted(_differing(_whole(before, known), _whole(after, pool)))
    action: Action = "change" if fields else "keep"
    return PoolChange(resource_pool=pool.pool_name, action=action, fields=fields)


def _whole(cluster: ClusterConfig, pool: ResourcePool) -> dict[str, Any]:
    """The pool's fields, with the scheduler it goes by."""
    fields = pool.model_dump(mode="json", context=REVEAL)
    return fields | {"scheduler": cluster.scheduler_of(pool).model_dump(mode="json")}


def _shared(cluster: ClusterConfig) -> dict[str, Any]:
    return cluster.model_dump(mode="json", context=REVEAL, exclude={"resource_pools"})


def _differing(one: object, other: object, path: str = "") -> Iterator[str]:
    """The paths below which two trees differ."""
    if isinstance(one, Mapping) and isinstance(other, Mapping):
        for key in sorted({*one, *other}):
            below = f"{path}.{key}" if path else str(key)
            yield from _differing(one.get(key), other.get(key), below)
    elif one != other:
        yield path
