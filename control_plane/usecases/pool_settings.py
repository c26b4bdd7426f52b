"""Changes of resource pools: configure, drain and remove pools, store the shared configuration.

A pool's stored configuration and the pool actor's settings change in the same commit, so that they
always agree. queries/cluster_configuration.py lists the rows.
"""

import json
from collections.abc import Callable
from dataclasses import replace
from functools import partial

from control_plane.actors import addresses
from control_plane.actors.messages.pool import PoolConfigured, PoolRemoved, PoolSettings
from control_plane.config.pool_settings import pool_settings
from control_plane.config.pools import ClusterConfig, ResourcePool
from control_plane.errors import Code, RequestError
from control_plane.queries import pool as pools
from control_plane.queries.cluster_configuration import POOL_CONFIGS, SHARED_CONFIG
from control_plane.services import Services
from control_plane.state.table import Conflict, Delete, Expect, Key, Put, Row, Write
from control_plane.usecases.idempotency import ExtraWrites, no_extra_writes
from control_plane.usecases.quiet_hours import with_quiet_periods
from control_plane.usecases.row_changes import change_row, replacing_put

_TRIES_MAX = 50


def configure_pool(
    services: Services,
    pool: ResourcePool,
    cluster: ClusterConfig,
    by: str,
    extra_writes: ExtraWrites = no_extra_writes,
) -> None:
    """Create the pool, or change an existing pool to this configuration, in a single commit.

    The commit writes the settings of the pool's actor and the row of the configuration. A draining
    pool stays draining.

    Args:
        services: the services with the engine and the state table.
        pool: the pool's configuration.
        cluster: the cluster's configuration, which supplies the pool's scheduler and defaults.
        by: the user, for the journal.
        extra_writes: returns further writes of the commit.

    Raises:
        RequestError: unavailable, if other requests keep changing the pool; too_large, if the
            pool's state does not fit into a commit.
        Conflict: the condition of an extra write does not hold; nothing was written.
    """
    _configure(
        services,
        pool.pool_name,
        lambda now: with_quiet_periods(pool_settings(pool, cluster, now), now, services.now_ms()),
        lambda row: pool.to_json(),
        by,
        extra_writes,
    )


def set_draining(
    services: Services,
    name: str,
    draining: bool,
    by: str,
    extra_writes: ExtraWrites = no_extra_writes,
) -> None:
    """Drain the pool or stop draining. While a pool drains, no new trials start, and others run on.

    The commit writes the pool's settings and the extra writes, also if the pool is in this state
    already.

    Args:
        services: the services with the engine and the state table.
        name: the name of the pool.
        draining: True to drain, False to stop.
        by: the user, for the journal.
        extra_writes: returns further writes of the commit.

    Raises:
        RequestError: not_found, if the pool does not exist; unavailable, if other requests keep
            changing the pool.
        Conflict: the condition of an extra write does not hold; nothing was written.
    """

    def change(now: PoolSettings) -> PoolSettings:
        # A pool may be removed after the first try, and must not be created again.
        pools.get_pool(services, name)
        return replace(now, draining=draining)

    def current_config(row: Row | None) -> bytes:
        return row.body if row is not None else ResourcePool(pool_name=name).to_json()

    _configure(
        services,
        name,
        change,
        current_config,
        by,
        extra_writes,
    )


def remove_pool(
    services: Services, name: str, by: str, extra_writes: ExtraWrites = no_extra_writes
) -> None:
    """Remove a pool without jobs and agents, with the pool's configuration, in a single commit.

    `by` is the user. `extra_writes` returns further writes of the commit. Instances are not
    checked.

    Raises:
        CommandRefused: conflict, if the pool has jobs or agents; not_found, if the pool never
            existed; unavailable, if the pool is too busy.
        Conflict: the condition of an extra write does not hold; nothing was written.
    """
    removal = Delete(Key(POOL_CONFIGS, name), Expect.ANYTHING)
    services.engine.execute_command(
        addresses.pool(name),
        PoolRemoved(),
        by=by,
        extra_writes=lambda reply: (removal, *extra_writes(reply)),
    )


def store_shared_config(
    services: Services, cluster: ClusterConfig, extra_writes: ExtraWrites
) -> None:
    """Store the cluster's configuration without the pools, in a commit with the extra writes.

    Raises:
        RequestError: unavailable, if other requests keep changing the configuration.
        Conflict: the condition of an extra write does not hold; nothing was written.
    """
    fields = json.loads(cluster.to_json())
    del fields["resource_pools"]
    body = json.dumps(fields, ensure_ascii=False).encode()

    def change(row: Row | None) -> tuple[None, tuple[Write, ...]]:
        revision = row.revision if row else 0
        return None, (
            Put(SHARED_CONFIG, revision + 1, body, revision or Expect.ABSENT),
            *extra_writes(None),
        )

    change_row(services.table, SHARED_CONFIG, change, "the cluster's configuration")


def _configure(
    services: Services,
    name: str,
    change: Callable[[PoolSettings], PoolSettings],
    config_body: Callable[[Row | None], bytes],
    by: str,
    extra_writes: ExtraWrites,
) -> None:
    """Change the pool's settings and the row of the configuration in a single commit.

    The commit is conditional on the row's revision. After a concurrent change, the function reads
    the pool and calls `change` and `config_body` again.

    Args:
        services: the services with the engine and the state table.
        name: the name of the pool; a missing pool is created.
        change: returns the new settings, given the current settings, which are the defaults for a
            missing pool. Errors are passed on.
        config_body: returns the new body of the row, given the current row or None. Errors are
            passed on.
        by: the user, for the journal.
        extra_writes: returns further writes of the commit.

    Raises:
        RequestError: unavailable, if other requests keep changing the pool.
        Conflict: the condition of an extra write does not hold; nothing was written.
    """
    key = Key(POOL_CONFIGS, name)
    for _ in range(_TRIES_MAX):
        row = services.table.get(key)
        settings = change(pools.load_settings(services, name))
        put = replacing_put(key, row, config_body(row), services.now_ms())
        try:
            services.engine.execute_command(
                addresses.pool(name),
                PoolConfigured(name, settings),
                by=by,
                extra_writes=partial(_with_config_row, put, extra_writes),
            )
        except Conflict as conflict:
            if conflict.key != key:
                raise
        else:
            return
    raise RequestError(Code.UNAVAILABLE, f"pool {name} changes too fast; try again")


def _with_config_row(put: Put, extra_writes: ExtraWrites, reply: object) -> tuple[Write, ...]:
    """Return the write of the pool's configuration, followed by the extra writes for `reply`."""
    return (put, *extra_writes(reply))
