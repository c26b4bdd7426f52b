"""What the cluster's configuration says of resource pools, in the state table.

    pool-configs / NAME          a pool's part of the configuration
    cluster / configuration      what the pools share

The row of a pool moves in the commit that configures the pool itself, so that both say the same.
"""

import json
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from typing import Any

from control_plane.actors import addresses
from control_plane.actors.pool_messages import PoolConfigured, PoolRemoved, PoolSettings
from control_plane.api.errors import ApiError, Code
from control_plane.api.idempotency import Beside, nothing
from control_plane.api.row_changes import change_row
from control_plane.api.services import Services
from control_plane.api.views import pool as pools
from control_plane.config.pool_settings import pool_settings
from control_plane.config.pools import ClusterConfig, ResourcePool
from control_plane.state.table import Conflict, Delete, Expect, Key, Put, Row, Write

CONFIGS = "pool-configs"
CLUSTER = Key("cluster", "configuration")

_TRIES_MAX = 50


def cluster_config(services: Services) -> ClusterConfig:
    """The configuration in force; pools that nobody configured have the defaults."""
    shared = services.table.get(CLUSTER)
    fields: dict[str, Any] = {} if shared is None else json.loads(shared.body)
    names = pools.pool_names(services)
    found = [_pool_fields(name, services.table.get(Key(CONFIGS, name))) for name in names]
    return ClusterConfig.model_validate(fields | ({"resource_pools": found} if found else {}))


def configure_pool(
    services: Services,
    pool: ResourcePool,
    cluster: ClusterConfig,
    by: str,
    beside: Beside = nothing,
) -> None:
    """Creates the pool or changes it to be as configured, in one commit."""
    _change(
        services,
        pool.pool_name,
        lambda now: pool_settings(pool, cluster, now),
        lambda row: pool.to_json(),
        by,
        beside,
    )


def set_draining(
    services: Services, name: str, draining: bool, by: str, beside: Beside = nothing
) -> None:
    """Whether the pool starts nothing more."""

    def kept(row: Row | None) -> bytes:
        return row.body if row is not None else ResourcePool(pool_name=name).to_json()

    _change(services, name, lambda now: replace(now, draining=draining), kept, by, beside)


def remove_pool(services: Services, name: str, by: str, beside: Beside = nothing) -> None:
    """Removes a pool that is not used.

    Raises:
        Refused: conflict, for one that is.
    """
    gone = Delete(Key(CONFIGS, name), Expect.ANYTHING)
    services.engine.command(
        addresses.pool(name), PoolRemoved(), by=by, beside=lambda reply: (gone, *beside(reply))
    )


def share(services: Services, cluster: ClusterConfig, beside: Beside) -> None:
    """Stores what the pools share."""
    fields = json.loads(cluster.to_json())
    del fields["resource_pools"]
    body = json.dumps(fields, ensure_ascii=False).encode()

    def change(row: Row | None) -> tuple[None, tuple[Write, ...]]:
        revision = row.revision if row else 0
        return None, (Put(CLUSTER, revision + 1, body, revision or Expect.ABSENT), *beside(None))

    change_row(services.table, CLUSTER, change, "the cluster's configuration")


def _change(
    services: Services,
    name: str,
    change: Callable[[PoolSettings], PoolSettings],
    written: Callable[[Row | None], bytes],
    by: str,
    beside: Beside,
) -> None:
    """The row's revision guards the settings: no two changes are made from the same ones."""
    key = Key(CONFIGS, name)
    for _ in range(_TRIES_MAX):
        row = services.table.get(key)
        revision = row.revision if row else 0
        settings = change(pools.settings(services, name))
        put = Put(key, revision + 1, written(row), revision or Expect.ABSENT)
        try:
            services.engine.command(
                addresses.pool(name),
                PoolConfigured(name, settings),
                by=by,
                beside=partial(_beside, put, beside),
            )
        except Conflict as conflict:
            if conflict.key != key:
                raise
        else:
            return
    raise ApiError(Code.UNAVAILABLE, f"pool {name} changes too fast; try again")


def _beside(put: Put, beside: Beside, reply: object) -> tuple[Write, ...]:
    return (put, *beside(reply))


def _pool_fields(name: str, row: Row | None) -> dict[str, Any]:
    fields: dict[str, Any] = {"pool_name": name} if row is None else json.loads(row.body)
    return fields
