"""Warnings about resource pools: settings without an effect, and instance types by default."""

from collections.abc import Iterable, Iterator, Mapping
from typing import Final

from control_plane.config.pools import ClusterConfig, ResourcePool
from control_plane.config.section import Section

UNUSED_POOL_SETTINGS: Final[Mapping[str, str]] = {
    "agent_reconnect_wait": "an agent is lost when its lease lapses",
    "agent_reattach_enabled": "agents always continue their running trials",
}
"""The settings of a pool that have no effect, with the reasons."""

UNUSED_PROVIDER_SETTINGS: Final[Mapping[str, str]] = {
    "container_startup_script": "an instance's agent runs in no container; use startup_script",
    "launch_error_timeout": "launch errors are always shown, and retried with a back-off",
    "operation_timeout_period": "each pass polls an operation, for up to 10 minutes",
}
"""The settings of a pool's provider that have no effect, with the reasons."""


def pool_warnings(config: ClusterConfig) -> Iterator[str]:
    """Yield the warnings about pools: unused settings with other values than the default, and
    instance types that nobody named.
    """
    for pool in config.resource_pools:
        place = f"pool {pool.pool_name}: "
        yield from _unused_settings(pool, UNUSED_POOL_SETTINGS, place)
        if pool.provider is not None:
            place += "provider."
            yield from _unused_settings(pool.provider, UNUSED_PROVIDER_SETTINGS, place)
    yield from default_type_notices(config.resource_pools)


def default_type_notices(pools: Iterable[ResourcePool]) -> Iterator[str]:
    """Yield a notice for each pool in a cloud that names no instance type.

    The notice has the chosen type with GPUs and price, and larger types.
    """
    for pool in pools:
        notice = pool.provider.default_type_notice() if pool.provider else ""
        if notice:
            yield f"pool {pool.pool_name}: {notice}"


def _unused_settings(section: Section, reasons: Mapping[str, str], place: str) -> Iterator[str]:
    for name, reason in reasons.items():
        field = type(section).model_fields.get(name)
        if field is not None and getattr(section, name) != field.get_default():
            yield f"{place}{name} is not used: {reason}"
