"""The folder of a machine in which the data layer of a trial keeps cached data sets."""

from __future__ import annotations

import posixpath
from typing import TYPE_CHECKING, Any

from detcloud.agent.assignment.bind_mounts import BindMount
from detcloud.shared.trial_directory import DATA_LAYER_PATH

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping
    from pathlib import Path

# Below an agent's work directory, where trials are processes and nothing else is configured.
DEFAULT_FOLDER = "cache/data-layer"


def data_layer_mount(config: Mapping[str, Any]) -> BindMount | None:
    """The mount that the section asks for; None if the folder is to be the trial's own."""
    section = config.get("data_layer")
    if not isinstance(section, dict):
        return None
    host, container = (section.get(name) for name in _path_fields(section))
    if not host:
        return None
    return BindMount(posixpath.normpath(host), posixpath.normpath(container or host))


def data_layer_variables(config: Mapping[str, Any], default: Path | None) -> dict[str, str]:
    """The variable that tells a trial that is a process where the folder is."""
    mount = data_layer_mount(config)
    folder = mount.host_path if mount is not None else default
    return {} if folder is None else {DATA_LAYER_PATH: str(folder)}


def data_layer_notices(config: Mapping[str, Any]) -> Iterator[str]:
    """Yield a line where a trial that is a process finds the folder at another path than asked."""
    mount = data_layer_mount(config)
    if mount is not None and mount.container_path != mount.host_path:
        name = _path_fields(config["data_layer"])[1]
        yield (
            f"data_layer.{name} is not used: this agent runs trials as processes, which find the "
            f"folder at {mount.host_path}"
        )


def _path_fields(section: Mapping[str, Any]) -> tuple[str, str]:
    if section.get("type", "shared_fs") == "shared_fs":
        return "host_storage_path", "container_storage_path"
    return "local_cache_host_path", "local_cache_container_path"
