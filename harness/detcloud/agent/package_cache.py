"""The folders of WORK/environments, which all trials of a machine share.

experiments/EXPERIMENT/   layers of startup-hook.sh, until the experiment ends
owners/OWNER/packages/    layers of declared packages, for all experiments of one user
owners/OWNER/kernels/     compiled kernels, for all experiments of one user
scripts/                  the console scripts of the agent's environment
"""

from __future__ import annotations

import contextlib
import hashlib
from pathlib import Path
from typing import TYPE_CHECKING, Any

from detcloud.agent.assignment.agent_user import read_agent_user
from detcloud.shared.files import delete_tree

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

EXPERIMENTS = "experiments"
OWNERS = "owners"
DECLARED, HOOK = "declared", "hook"
"""The kinds of layers: of declared packages, and of packages that startup-hook.sh installed."""


def experiment_layers(environments: Path, spec: Mapping[str, Any]) -> Path:
    """Return the folder of the layers that belong to a trial's experiment.

    The folder may not exist. A spec without `experiment_id` counts as experiment 0.
    """
    return environments / EXPERIMENTS / str(int(spec.get("experiment_id", 0)))


def owner_folder(environments: Path, spec: Mapping[str, Any]) -> Path:
    """Return the folder that all experiments of a trial's owner share on this machine.

    The folder may not exist. Its name is a digest of the owner's name. Different users never share
    a folder, because trials run code from it. Each agent user of an owner has a separate folder
    as well. If the spec names no owner, the experiment has a folder of its own.
    """
    owner = spec.get("owner") or f"experiment {int(spec.get('experiment_id', 0))}"
    user = read_agent_user(spec)
    if user is not None:
        # An owner whose agent user changes gets another folder.
        owner = f"{owner}\0{user.uid}:{user.gid}"
    digest = hashlib.sha256(str(owner).encode(errors="surrogateescape")).hexdigest()
    return environments / OWNERS / digest[:16]


def declared_layers(environments: Path, spec: Mapping[str, Any]) -> Path:
    """Return the folder with the layers of the owner's declared packages. It may not exist."""
    return owner_folder(environments, spec) / "packages"


def held_experiments(environments: Path) -> list[int]:
    """Return the sorted ids of the experiments that have layers on this machine.

    Return an empty list if the folder cannot be read. Skip entries with a name that is no number.
    """
    with contextlib.suppress(OSError):
        names = [entry.name for entry in (environments / EXPERIMENTS).iterdir()]
        return sorted(int(name) for name in names if name.isdecimal())
    return []


def remove_experiments(environments: Path, experiments: Iterable[int]) -> None:
    """Delete the layer folders of the experiments with these ids.

    Missing folders and files that cannot be deleted are skipped without an error.

    Raises:
        OSError: a link in place of a folder cannot be deleted.
    """
    for experiment in experiments:
        delete_tree(environments / EXPERIMENTS / str(experiment))
