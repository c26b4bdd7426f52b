"""Queries of the cluster's current configuration. The rows in the state table:

pool-configs / NAME          the configuration of pool NAME
cluster / configuration      the configuration without the pools
"""

import json
import logging
from typing import Any

from control_plane.actors.records import DataRetention
from control_plane.checkpoint_stores.registry import store_type
from control_plane.config.alarms import Alarms
from control_plane.config.deletion_limit import DELETIONS_PER_SECOND
from control_plane.config.durations import find_duration_ms
from control_plane.config.pools import ClusterConfig, ResourcePool
from control_plane.config.provider_types import PROVIDERS
from control_plane.config.retention import stored_retention
from control_plane.config.storage import parse_storage
from control_plane.config.webhooks import Smtp
from control_plane.queries import pool as pools
from control_plane.rows import cluster_rows, pool_rows
from control_plane.services import Services
from control_plane.state.table import Key, Row, StateTable

log = logging.getLogger(__name__)

POOL_CONFIGS = pool_rows.POOL_CONFIG.partition
SHARED_CONFIG = Key(*cluster_rows.CONFIGURATION.only_key)


def cluster_config(services: Services) -> ClusterConfig:
    """Return the current configuration, secrets included. A pool without a stored one has the
    defaults.

    Fields that a newer version stored are ignored. Without a stored configuration, everything has
    the defaults. Reads a row for each pool.

    Raises:
        ValueError: a stored configuration is not valid.
    """
    shared = services.table.get(SHARED_CONFIG)
    fields: dict[str, Any] = {} if shared is None else json.loads(shared.body)
    names = pools.pool_names(services)
    present = [_pool_fields(name, services.table.get(Key(POOL_CONFIGS, name))) for name in names]
    known = {name: value for name, value in fields.items() if name in ClusterConfig.model_fields}
    return ClusterConfig.model_validate(known | ({"resource_pools": present} if present else {}))


def allowed_endpoints(table: StateTable) -> tuple[str, ...]:
    """Return the endpoints of checkpoint stores that the cluster may call.

    These are the configured `checkpoint_endpoints` and the endpoints of the cluster's default
    checkpoint store. Return () if the configuration names neither.

    Raises:
        ValueError, KeyError: the stored configuration of the checkpoint store is not valid.
    """
    fields = _shared_fields(table)
    named = tuple(fields.get("checkpoint_endpoints", ()))
    if not fields.get("checkpoint_storage"):
        return named
    options = parse_storage(fields["checkpoint_storage"])
    own = store_type(str(options.type)).endpoints(options).values()
    return (*named, *(url.strip() for urls in own for url in urls.split(";")))


def page_origins(table: StateTable) -> frozenset[str]:
    """Return the web origins that the configuration allows to call the API. Empty without a
    setting.
    """
    return frozenset(_shared_fields(table).get("page_origins", ()))


def deletion_limit(table: StateTable) -> float:
    """Return the configured maximum of checkpoint files to delete per second, or else the
    default.
    """
    limit: float = _shared_fields(table).get(
        "checkpoint_deletions_per_second", DELETIONS_PER_SECOND
    )
    return limit


def data_retention(table: StateTable) -> DataRetention:
    """Return the configured default days for which logs and metrics are kept."""
    return stored_retention(_shared_fields(table).get("retention_policy"))


def next_deletion_ms(table: StateTable, after_ms: int) -> int | None:
    """Return the first time of the configured deletions of logs and metrics after a time.

    Return None without a schedule, and for a schedule without any time.
    """
    schedule = _shared_fields(table).get("retention_policy", {}).get("schedule")
    if not schedule:
        return None
    period_ms = find_duration_ms(schedule)
    if period_ms:
        return (after_ms // period_ms + 1) * period_ms
    # Only clusters with a schedule pay for the import of cronsim.
    from control_plane.cron_times import CronInvalid, CronTimes

    try:
        return CronTimes(schedule, "UTC").next_time(after_ms)
    except CronInvalid as error:
        log.warning("retention_policy.schedule %s", error)
        return None


def alarm_settings(table: StateTable) -> Alarms:
    """Return the configured thresholds of alarms, or else the defaults.

    Fields that a newer version stored are ignored.

    Raises:
        ValueError: the stored thresholds are not valid.
    """
    fields = _shared_fields(table).get("alarms", {})
    return Alarms.model_validate(
        {name: value for name, value in fields.items() if name in Alarms.model_fields}
    )


def allowed_private_hosts(table: StateTable) -> tuple[str, ...]:
    """Return the private hosts that webhooks may reach. Empty without a setting."""
    return tuple(_shared_fields(table).get("webhooks", {}).get("allowed_private_hosts", ()))


def mail_domains(table: StateTable) -> tuple[str, ...]:
    """Return the domains to which users may send mails by webhooks. Empty without a setting."""
    return tuple(_shared_fields(table).get("webhooks", {}).get("mail_domains", ()))


def smtp_settings(table: StateTable) -> Smtp | None:
    """Return the mail server for webhooks, with the password. Return None without a setting.

    Fields that a newer version stored are ignored.

    Raises:
        ValueError: the stored settings are not valid.
    """
    fields = _shared_fields(table).get("webhooks", {}).get("smtp")
    if fields is None:
        return None
    known = {name: value for name, value in fields.items() if name in Smtp.model_fields}
    return Smtp.model_validate(known)


def _shared_fields(table: StateTable) -> dict[str, Any]:
    """Return the fields of the current configuration, except the pools; {} without stored
    fields.
    """
    shared = table.get(SHARED_CONFIG)
    fields: dict[str, Any] = {} if shared is None else json.loads(shared.body)
    return fields


def _pool_fields(name: str, row: Row | None) -> dict[str, Any]:
    """Return the known JSON fields in a pool's row. Without a row, return {"pool_name": name}.

    The provider's defaults are those of the version that stored the row.
    """
    fields: dict[str, Any] = {"pool_name": name} if row is None else json.loads(row.body)
    provider = fields.get("provider")
    if isinstance(provider, dict) and provider.get("type") in PROVIDERS:
        fields["provider"] = PROVIDERS[provider["type"]].complete_stored(provider)
    return {name: value for name, value in fields.items() if name in ResourcePool.model_fields}
