"""The cluster's configuration in force, as the state table has it.

pool-configs / NAME          a pool's part of the configuration
cluster / configuration      what the pools share
"""

import json
from typing import Any

from control_plane.checkpoint_stores.registry import store_type
from control_plane.config.deletion_limit import DELETIONS_PER_SECOND
from control_plane.config.pools import ClusterConfig
from control_plane.config.storage import parse_storage
from control_plane.queries import pool as pools
from control_plane.services import Services
from control_plane.state.table import Key, Row, StateTable

POOL_CONFIGS = "pool-configs"
SHARED_CONFIG = Key("cluster", "configuration")


def cluster_config(services: Services) -> ClusterConfig:
    """The configuration in force; pools that nobody configured have the defaults."""
    shared = services.table.get(SHARED_CONFIG)
    fields: dict[str, Any] = {} if shared is None else json.loads(shared.body)
    names = pools.pool_names(services)
    present = [_pool_fields(name, services.table.get(Key(POOL_CONFIGS, name))) for name in names]
    return ClusterConfig.model_validate(fields | ({"resource_pools": present} if present else {}))


def allowed_endpoints(table: StateTable) -> tuple[str, ...]:
    """The endpoints of checkpoint stores that the configuration in force names, its own default's
    among them.
    """
    fields = _shared_fields(table)
    named = tuple(fields.get("checkpoint_endpoints", ()))
    if not fields.get("checkpoint_storage"):
        return named
    options = parse_storage(fields["checkpoint_storage"])
    own = store_type(str(options.type)).endpoints(options).values()
    return (*named, *(url.strip() for urls in own for url in urls.split(";")))


def page_origins(table: StateTable) -> frozenset[str]:
    """The origins of pages elsewhere that the configuration in force names."""
    return frozenset(_shared_fields(table).get("page_origins", ()))


def deletion_limit(table: StateTable) -> float:
    """How many files of checkpoints the configuration in force lets be deleted in a second."""
    limit: float = _shared_fields(table).get(
        "checkpoint_deletions_per_second", DELETIONS_PER_SECOND
    )
    return limit


def _shared_fields(table: StateTable) -> dict[str, Any]:
    """The fields of the current configuration, except its pools."""
    shared = table.get(SHARED_CONFIG)
    fields: dict[str, Any] = {} if shared is None else json.loads(shared.body)
    return fields


def _pool_fields(name: str, row: Row | None) -> dict[str, Any]:
    fields: dict[str, Any] = {"pool_name": name} if row is None else json.loads(row.body)
    return fields
