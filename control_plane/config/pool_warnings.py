"""Warnings about settings of resource pools that have no effect."""

from collections.abc import Iterator, Mapping
from typing import Final

from control_plane.config.pools import ClusterConfig
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
    """Yield a warning for each setting of a pool that has no effect and is not the default."""
    for pool in config.resource_pools:
        place = f"pool {pool.pool_name}: "
        yield from _unused_settings(pool, UNUSED_POOL_SETTINGS, place)
        if pool.provider is not None:
            place += "provider."
            yield from _unused_settings(pool.provider, UNUSED_PROVIDER_SETTINGS, place)


def _unused_settings(section: Section, reasons: Mapping[str, str], place: str) -> Iterator[str]:
    for name, reason in reasons.items():
        field = type(section).model_fields.get(name)
        if field is not None and getattr(section, name) != field.get_default():
            yield f"{place}{name} is not used: {reason}"
