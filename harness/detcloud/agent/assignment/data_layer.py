"""The folder of a machine in which the data layer of a trial stores cached data sets."""

from __future__ import annotations

import os
import posixpath
from typing import TYPE_CHECKING, Any

from detcloud.agent.assignment.bind_mounts import BindMount
from detcloud.shared.process_settings import data_layer_folders
from detcloud.shared.trial_directory import DATA_LAYER_PATH

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path

# The default folder below an agent's work directory, for trials without containers.
DEFAULT_FOLDER = "cache/data-layer"


def data_layer_mount(config: Mapping[str, Any]) -> BindMount | None:
    """Return the mount of the configured data layer folder.

    The container's path defaults to the host's path. Return None if no host folder is configured.
    The trial then has a cache of its own.
    """
    host, container = data_layer_folders(config)
    if not host:
        return None
    return BindMount(posixpath.normpath(host), posixpath.normpath(container or host))


def data_layer_variables(config: Mapping[str, Any], default: Path | None) -> dict[str, str]:
    """Return the variable with the data layer's folder for a trial without a container.

    Use the folder `default` if the configuration names none. Return an empty dictionary without
    either.
    """
    mount = data_layer_mount(config)
    folder = mount.host_path if mount is not None else default
    return {} if folder is None else {DATA_LAYER_PATH: str(folder)}


def make_owned_folder(folder: Path, owner: tuple[int, int] | None) -> None:
    """Create a folder that a trial of `owner` may write to. An existing folder stays unchanged.

    The folder belongs to the agent if `owner` is None or the agent does not run as root.
    """
    if folder.exists():
        return
    folder.mkdir(parents=True, exist_ok=True)
    if owner is not None and os.getuid() == 0:
        os.chown(folder, *owner, follow_symlinks=False)
