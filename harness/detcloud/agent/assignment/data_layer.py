"""The folder of a machine in which the data layer of a trial keeps cached data sets."""

from __future__ import annotations

import posixpath
from typing import TYPE_CHECKING, Any

from detcloud.agent.assignment.bind_mounts import BindMount
from detcloud.shared.process_settings import data_layer_folders
from detcloud.shared.trial_directory import DATA_LAYER_PATH

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path

# Below an agent's work directory, where trials are processes and nothing else is configured.
DEFAULT_FOLDER = "cache/data-layer"


def data_layer_mount(config: Mapping[str, Any]) -> BindMount | None:
    """The mount that the section asks for; None if the folder is to be the trial's own."""
    host, container = data_layer_folders(config)
    if not host:
        return None
    return BindMount(posixpath.normpath(host), posixpath.normpath(container or host))


def data_layer_variables(config: Mapping[str, Any], default: Path | None) -> dict[str, str]:
    """The variable that tells a trial that is a process where the folder is."""
    mount = data_layer_mount(config)
    folder = mount.host_path if mount is not None else default
    return {} if folder is None else {DATA_LAYER_PATH: str(folder)}
