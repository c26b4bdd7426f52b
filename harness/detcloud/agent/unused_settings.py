"""Settings of an experiment that its agent's runtime cannot honour: told once in a trial's log."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from detcloud.agent.bind_mounts import bind_mounts, mount_notices
from detcloud.agent.environment import by_name, configured_variables, is_ours

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

PROCESSES = "this agent runs trials as processes"
NETWORK, USER = "containers use the machine's own network", "the user of a trial has none"
NOWHERE = {
    "ports": NETWORK,
    "pod_spec": "this agent runs containers, no pods",
    "proxy_ports": NETWORK,
    "add_capabilities": USER,
    "drop_capabilities": USER,
}
CONTAINERS_ONLY = ("force_pull_image", "registry_auth")
RESOURCES = ("shm_size", "devices")


def process_notices(config: Mapping[str, Any], *, cuda: bool) -> list[str]:
    """A line for each that the configuration has and a process cannot have; defaults are silent."""
    return [f"[detcloud] {notice}" for notice in _of_processes(config, cuda=cuda)]


def container_notices(config: Mapping[str, Any], image: str, *, cuda: bool) -> list[str]:
    """A line for each that the configuration has and a container of `image` has not."""
    return [f"[detcloud] {notice}" for notice in _of_containers(config, image, cuda=cuda)]


def _of_processes(config: Mapping[str, Any], *, cuda: bool) -> Iterator[str]:
    environment, resources = _section(config, "environment"), _section(config, "resources")
    if image := configured_image(environment, cuda=cuda):
        yield f"image {image} is not used: {PROCESSES}"
    names = (*CONTAINERS_ONLY, *NOWHERE)
    given = [f"environment.{name}" for name in names if environment.get(name)]
    given += [f"resources.{name}" for name in RESOURCES if _is_given(resources.get(name))]
    for name in given:
        yield f"{name} is not used: {PROCESSES}"
    yield from mount_notices(bind_mounts(config))
    yield from _of_variables(config, cuda=cuda)


def _of_containers(config: Mapping[str, Any], image: str, *, cuda: bool) -> Iterator[str]:
    environment = _section(config, "environment")
    configured = configured_image(environment, cuda=cuda)
    if configured and configured != image:
        yield f"image {configured} is one of Determined's: {image} is used instead"
    for name, reason in NOWHERE.items():
        if environment.get(name):
            yield f"environment.{name} is not used: {reason}"
    yield from _of_variables(config, cuda=cuda)


def configured_image(environment: Mapping[str, Any], *, cuda: bool) -> str:
    """The image that the configuration names for the kind of device, "" for none."""
    image = environment.get("image")
    if isinstance(image, dict):
        image = image.get("cuda" if cuda else "cpu") or (image.get("gpu") if cuda else None)
    return str(image or "")


def _of_variables(config: Mapping[str, Any], *, cuda: bool) -> Iterator[str]:
    ours = sorted(filter(is_ours, by_name(configured_variables(config), cuda=cuda)))
    if ours:
        subject = "variable" if len(ours) == 1 else "variables"
        yield f"environment {subject} {', '.join(ours)}: the runtime's value is used instead"


def _section(config: Mapping[str, Any], name: str) -> Mapping[str, Any]:
    section = config.get(name)
    return section if isinstance(section, dict) else {}


def _is_given(value: object) -> bool:
    return value is not None and value != []
