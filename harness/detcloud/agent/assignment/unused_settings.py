"""Notices in a trial's log about settings that the agent's runtime cannot honour.

detcloud/shared/unused_settings.py lists settings without any effect.
detcloud/shared/process_settings.py lists settings that only work with containers.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from detcloud.agent.assignment.bind_mounts import bind_mounts
from detcloud.agent.assignment.environment import (
    configured_variables,
    is_reserved,
    variables_by_name,
)
from detcloud.compatibility.variables import VARIABLE_BYTES_MAX, overlong_variables
from detcloud.shared.process_settings import configured_image, process_setting_notices
from detcloud.shared.unused_settings import unused_setting_notices

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping


def process_notices(config: Mapping[str, Any], *, device: str) -> list[str]:
    """Return a log line for each configured setting that has no effect for a process.

    Settings with default values give no line. `device` is the type of the trial's slots. Raise
    MountImpossible if a bind mount is invalid.
    """
    return [f"[detcloud] {notice}" for notice in _unused_by_processes(config, device=device)]


def container_notices(config: Mapping[str, Any], image: str, *, device: str) -> list[str]:
    """Return a log line for each configured setting that has no effect for a container.

    `image` is the name of the container's image. Another configured image gives a line. Settings
    with default values give no line. `device` is the type of the trial's slots.
    """
    return [
        f"[detcloud] {notice}" for notice in _unused_by_containers(config, image, device=device)
    ]


def _unused_by_processes(config: Mapping[str, Any], *, device: str) -> Iterator[str]:
    # Raise MountImpossible before the notices, which expect valid mounts.
    bind_mounts(config)
    yield from process_setting_notices(config, device=device)
    yield from unused_setting_notices(config)
    yield from _reserved_variables(config, device=device)
    yield from _overlong_variables(config)


def _unused_by_containers(config: Mapping[str, Any], image: str, *, device: str) -> Iterator[str]:
    environment = _section(config, "environment")
    configured = configured_image(environment, device=device)
    if configured and configured != image:
        yield f"image {configured} is one of Determined's: {image} is used instead"
    yield from unused_setting_notices(config)
    yield from _reserved_variables(config, device=device)
    yield from _overlong_variables(config)


def _reserved_variables(config: Mapping[str, Any], *, device: str) -> Iterator[str]:
    ours = sorted(
        filter(is_reserved, variables_by_name(configured_variables(config), device=device))
    )
    if ours:
        subject = "variable" if len(ours) == 1 else "variables"
        yield f"environment {subject} {', '.join(ours)}: the runtime's value is used instead"


def _overlong_variables(config: Mapping[str, Any]) -> Iterator[str]:
    for name in overlong_variables({"config": config}):
        yield (
            f"environment variable {name} is not set: the configuration has more than"
            f" {VARIABLE_BYTES_MAX // 1024} KiB"
        )


def _section(config: Mapping[str, Any], name: str) -> Mapping[str, Any]:
    section = config.get(name)
    return section if isinstance(section, dict) else {}
