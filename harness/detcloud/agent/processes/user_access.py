"""The access of another user's trial, without a container, to the folders of the agent.

The folders above a trial's own folders get the permission to pass through, but not to list. The
trial's own folders have mode 0700, so that no other user's trial can enter them.
"""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path
from typing import TYPE_CHECKING

from detcloud.agent.assignment.agent_user import (
    AgentUserUnavailable,
    MachineUser,
    find_machine_user,
    read_agent_user,
)
from detcloud.agent.assignment.checkpoint_folder import (
    find_written_folder,
    is_cluster_folder,
    prepare_checkpoint_folder,
    storage_folder,
)
from detcloud.agent.assignment.data_layer import make_owned_folder
from detcloud.agent.assignment.environment import PACKAGES
from detcloud.agent.package_cache import owner_folder

if TYPE_CHECKING:
    from collections.abc import Sequence

    from detcloud.agent.assignment.assignment import Assignment

PASS_BITS = 0o011
CHECK_SECONDS_MAX = 60.0
# The program prints an unreadable or unwritable folder. An unreadable package fails at its import.
CHECK = """
import os, sys
import detcloud
count = int(sys.argv[1])
for place in sys.argv[2 : 2 + count]:
    if not os.access(place, os.R_OK | os.X_OK):
        sys.exit(f"cannot read {place}")
for place in sys.argv[2 + count :]:
    if not os.access(place, os.W_OK | os.X_OK):
        sys.exit(f"cannot write to {place}")
"""


def find_launch_user(assignment: Assignment) -> MachineUser | None:
    """Return the user that the trial's processes must become.

    Return None for a trial that runs as the agent's own user. Raise AgentUserUnavailable if the
    machine knows the user's number by another name.
    """
    user = read_agent_user(assignment.spec)
    if user is None or user.owner == (os.geteuid(), os.getegid()):
        return None
    return find_machine_user(user)


def give_files(assignment: Assignment, user: MachineUser) -> None:
    """Give the trial's files to `user`, and check the user's access to all folders.

    Raise AgentUserUnavailable without access. Raise OSError if a file's owner cannot change.
    """
    directory = assignment.directory
    open_folders(assignment)
    writable = [directory.home]
    if checkpoints := storage_folder(assignment):
        if is_cluster_folder(assignment):
            checkpoints.mkdir(parents=True, exist_ok=True)
            prepare_checkpoint_folder(checkpoints, assignment)
        if written := find_written_folder(checkpoints, assignment):
            writable.append(written)
    directory.change_owner()
    check_access(user, [directory.code], writable)


def data_layer_folder(
    assignment: Assignment, user: MachineUser | None, default: Path | None
) -> Path | None:
    """Return the folder of cached data sets: `default`, but a separate folder for another user.

    Create the separate folder if needed. Return None without a default.
    """
    if user is None or default is None:
        return default
    folder = owner_folder(assignment.directory.environments, assignment.spec) / "data"
    make_owned_folder(folder, assignment.directory.owner)
    return folder


def open_folders(assignment: Assignment) -> None:
    """Let all users pass through the folders above the trial's own folders and its caches.

    Only folders of the agent in the work directory change. Raise OSError if a folder cannot be
    changed.
    """
    directory = assignment.directory
    environments = directory.environments
    caches = owner_folder(environments, assignment.spec)
    kernels = caches / "kernels"
    folders = (
        environments.parent,
        directory.path.parent,
        directory.path,
        environments,
        caches.parent,
        caches,
        kernels,
        *(kernels.iterdir() if kernels.is_dir() else ()),
    )
    for folder in folders:
        if folder.is_dir():
            folder.chmod(folder.stat().st_mode | PASS_BITS)


def check_access(
    user: MachineUser, readable: Sequence[Path], writable: Sequence[Path] = ()
) -> None:
    """Check as `user` that the interpreter, this package and the folders can be used.

    Raise AgentUserUnavailable with the reason if one of them cannot be used.
    """
    command = [sys.executable, "-P", "-c", CHECK, str(len(readable))]
    try:
        result = subprocess.run(
            [*command, *map(str, readable), *map(str, writable)],
            stdin=subprocess.DEVNULL,
            capture_output=True,
            cwd="/",
            env={"PYTHONPATH": PACKAGES, "PYTHONDONTWRITEBYTECODE": "1"},
            user=user.uid,
            group=user.gid,
            extra_groups=user.groups,
            timeout=CHECK_SECONDS_MAX,
            check=False,
        )
    except PermissionError as error:
        raise AgentUserUnavailable(
            f"{user.name} (uid {user.uid}) cannot run {sys.executable} on this machine ({error}); "
            "install detcloud in a folder that all users can read, such as /opt/detcloud"
        ) from error
    if result.returncode:
        lines = result.stderr.decode(errors="replace").strip().splitlines()
        reason = lines[-1] if lines else f"the check ended with {result.returncode}"
        raise AgentUserUnavailable(
            f"{user.name} (uid {user.uid}) cannot run trials on this machine: {reason}; "
            "all users need access to the folders above it"
        )
