"""The machine's folder of checkpoints, with the subfolders that a trial of another user writes."""

from __future__ import annotations

import os
import stat
from pathlib import Path
from typing import TYPE_CHECKING

from detcloud.agent.assignment.agent_user import read_agent_user
from detcloud.shared.checkpoint_limits import STAGING_FOLDER
from detcloud.shared.event_parts import TENSORBOARD_FOLDER

if TYPE_CHECKING:
    from detcloud.agent.assignment.assignment import Assignment

SHARED_MODE = 0o1777
"""The mode of a folder in which all users write, and delete only their own entries."""


def storage_folder(assignment: Assignment) -> Path | None:
    """Return the machine's folder of checkpoints. None if the store has no folder."""
    storage = assignment.spec.get("storage")
    path = storage.get("path") if isinstance(storage, dict) else None
    return Path(str(path)) if path else None


def is_cluster_folder(assignment: Assignment) -> bool:
    """Whether the cluster's configuration, not the experiment's, names the checkpoint store."""
    return assignment.section("checkpoint_storage").get("type") is None


def find_written_folder(folder: Path, assignment: Assignment) -> Path | None:
    """Return the deepest existing folder of `folder` in which the trial creates checkpoints.

    Return None if `folder` itself does not exist.
    """
    experiment, trial = (str(assignment.spec[n]) for n in ("experiment_id", "trial_id"))
    places = (folder / experiment / trial, folder / experiment, folder)
    return next((place for place in places if place.is_dir()), None)


def prepare_checkpoint_folder(folder: Path, assignment: Assignment) -> None:
    """Create the subfolders of a trial in the folder of checkpoints, for the trial's owner.

    Do nothing unless the agent and the folder belong to root. On an NFS export with root_squash,
    and in a folder of another user, the trial itself must be able to create the subfolders.

    For a trial with an agent user, also do nothing if the experiment names the folder: the agent
    would otherwise open any folder of root. In the cluster's folder, the subfolders that all
    experiments share then belong to root, and every user may write to them.

    Raises:
        OSError: a subfolder cannot be created or changed.
    """
    owner = assignment.directory.owner
    has_agent_user = read_agent_user(assignment.spec) is not None
    if has_agent_user and not is_cluster_folder(assignment):
        return
    if owner is None or os.getuid() != 0 or folder.stat().st_uid != 0:
        return
    try:
        folder.chmod(folder.stat().st_mode | 0o011)
    except PermissionError:
        # An export with root_squash, whose root folder belongs to the server's root.
        return
    experiment, trial = (int(assignment.spec[n]) for n in ("experiment_id", "trial_id"))
    places = (f"{experiment}", f"{experiment}/{trial}")
    for place in (folder / STAGING_FOLDER, folder / TENSORBOARD_FOLDER):
        place.mkdir(exist_ok=True)
        if has_agent_user:
            os.chown(place, 0, 0, follow_symlinks=False)
            place.chmod(SHARED_MODE)
        elif not place.stat().st_mode & stat.S_ISVTX:
            os.chown(place, *owner, follow_symlinks=False)
    for name in (*places, *(f"{TENSORBOARD_FOLDER}/{name}" for name in places)):
        (folder / name).mkdir(exist_ok=True)
        os.chown(folder / name, *owner, follow_symlinks=False)
