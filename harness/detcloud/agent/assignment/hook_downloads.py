"""The downloads of startup-hook.sh in containers, which all runs of an experiment share.

Each container begins with the packages of its image, so the hook installs its packages in every
run. pip and uv then find the downloads and the wheels that they built in an earlier run here:

    WORK/environments/experiments/EXPERIMENT/KEY        a link to the folder
    WORK/environments/experiments/EXPERIMENT/build-...  the folder, with `pip` and `uv`

The folder is archived like a layer, so that the next machine has the downloads too. Installers run
code from the folder. Therefore only trials of the experiment use it.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
from typing import TYPE_CHECKING

from detcloud.agent.assignment.agent_user import read_agent_user
from detcloud.agent.assignment.environment import variables_by_name
from detcloud.agent.assignment.startup_hook import HOOK_FILE
from detcloud.agent.package_cache import HOOK, experiment_layers

if TYPE_CHECKING:
    from pathlib import Path

    from detcloud.agent.assignment.assignment import Assignment

DOWNLOAD_VARIABLES = {"PIP_CACHE_DIR": "pip", "UV_CACHE_DIR": "uv"}


def hook_downloads(assignment: Assignment, image: str) -> Path | None:
    """Return the folder of the hook's downloads, created or fetched from the cluster if needed.

    Return None without a hook. The folder belongs to the user of the trial's container. Failures of
    a fetch are written to the logs, not raised.

    Args:
        assignment: the trial, with the unpacked model code.
        image: the name of the container's image. Built wheels may need the image's libraries.

    Raises:
        OSError: the folder cannot be created.
    """
    if not assignment.has_hook:
        return None
    directory = assignment.directory
    cache = experiment_layers(directory.environments, assignment.spec)
    key = _downloads_key(assignment, image)
    if assignment.layers is not None:
        assignment.layers.obtain(HOOK, cache, key)
    if not (cache / key).is_dir():
        _create_folder(cache, key, directory.owner)
    # The container engine refuses a mount whose path contains a link.
    return (cache / key).resolve(strict=True)


def download_variables(folder: Path | None, assignment: Assignment) -> dict[str, str]:
    """Return the variables that name the folder for installers. Empty without a folder.

    A variable that the experiment sets itself is left out.
    """
    if folder is None:
        return {}
    own = variables_by_name(assignment.variables, device=assignment.device)
    return {
        variable: str(folder / name)
        for variable, name in DOWNLOAD_VARIABLES.items()
        if variable not in own
    }


def _downloads_key(assignment: Assignment, image: str) -> str:
    """Return the key of the folder, a digest of the image, the code, the hook and the packages.

    Each agent user of the experiment has a separate folder.
    """
    hook = (assignment.directory.code / HOOK_FILE).read_bytes()
    declared = json.dumps(assignment.packages, sort_keys=True)
    parts = ["downloads", image, assignment.code_sha256, hook.hex(), declared]
    if (user := read_agent_user(assignment.spec)) is not None:
        parts.append(f"{user.uid}:{user.gid}")
    return hashlib.sha256("\n".join(parts).encode()).hexdigest()


def _create_folder(cache: Path, key: str, owner: tuple[int, int] | None) -> None:
    """Create an empty folder with the link `key`, unless another launch was faster.

    A link whose folder is gone is replaced.
    """
    cache.mkdir(mode=0o700, parents=True, exist_ok=True)
    folder = cache / f"build-{os.urandom(8).hex()}"
    folder.mkdir(mode=0o700)
    if owner is not None:
        os.chown(folder, *owner, follow_symlinks=False)
    if not (cache / key).exists():
        (cache / key).unlink(missing_ok=True)
    try:
        (cache / key).symlink_to(folder.name)
    except FileExistsError:
        with contextlib.suppress(OSError):
            folder.rmdir()
