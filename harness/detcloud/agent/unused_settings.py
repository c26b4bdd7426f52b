"""Settings of an experiment that mean something to containers only: told once in a trial's log."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from detcloud.agent.bind_mounts import bind_mounts, mount_notices
from detcloud.agent.environment import by_name, configured_variables, is_ours

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

REASON = "this agent runs trials as processes"
ENVIRONMENT = ("force_pull_image", "registry_auth", "ports", "pod_spec", "proxy_ports")
CAPABILITIES = ("add_capabilities", "drop_capabilities")
RESOURCES = ("shm_size", "devices")


def notices(config: Mapping[str, Any], *, cuda: bool) -> list[str]:
    """A line for each that the configuration has and a process cannot have; defaults are silent."""
    return [f"[detcloud] {notice}" for notice in _notices(config, cuda=cuda)]


def _notices(config: Mapping[str, Any], *, cuda: bool) -> Iterator[str]:
    environment, resources = _section(config, "environment"), _section(config, "resources")
    image = environment.get("image")
    if isinstance(image, dict):
        image = image.get("cuda" if cuda else "cpu") or (image.get("gpu") if cuda else None)
    if image:
        yield f"image {image} is not used: {REASON}"
    given = [f"environment.{name}" for name in ENVIRONMENT + CAPABILITIES if environment.get(name)]
    given += [f"resources.{name}" for name in RESOURCES if _is_given(resources.get(name))]
    for name in given:
        yield f"{name} is not used: {REASON}"
    yield from mount_notices(bind_mounts(config))
    ours = sorted(filter(is_ours, by_name(configured_variables(config), cuda=cuda)))
    if ours:
        subject = "variable" if len(ours) == 1 else "variables"
        yield f"environment {subject} {', '.join(ours)}: the runtime's value is used instead"


def _section(config: Mapping[str, Any], name: str) -> Mapping[str, Any]:
    section = config.get(name)
    return section if isinstance(section, dict) else {}


def _is_given(value: object) -> bool:
    return value is not None and value != []
