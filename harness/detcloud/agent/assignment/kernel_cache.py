"""The folder of compiled kernels that all trials of an owner share on a machine.

PyTorch's compiler and Triton execute the content of the folder. Each owner therefore has a separate
folder. Each image has a separate folder too, because compiled code may need the image's libraries.

    WORK/environments/owners/OWNER/kernels/IMAGE/NUMBER/

The folder with the highest number is used. If a folder is too large while trials use it, an empty
successor is created, and the folder is deleted later.
"""

from __future__ import annotations

import hashlib
import os
from pathlib import Path
from typing import TYPE_CHECKING

from detcloud.agent.package_cache import owner_folder
from detcloud.shared.files import write_atomically

if TYPE_CHECKING:
    from detcloud.agent.assignment.assignment import Assignment

SETTING = "kernel_cache"
KERNEL_VARIABLES = {"TORCHINDUCTOR_CACHE_DIR": "inductor", "TRITON_CACHE_DIR": "triton"}
USE_FILE = "kernels.json"
"""The file in an allocation's `agent` folder that names the folder of its kernels."""


def kernel_folder(assignment: Assignment, image: str = "") -> Path | None:
    """Create the folder of compiled kernels for a trial if needed, and return its path.

    Return None if the machine keeps no kernels or the experiment sets environment.kernel_cache to
    false. Mark the folder as used now, and record it in USE_FILE of the allocation.

    Args:
        assignment: the trial.
        image: the name of the container's image, "" without a container.

    Raises:
        OSError: the folder or the record cannot be written.
    """
    if not assignment.keeps_kernels or assignment.section("environment").get(SETTING) is False:
        return None
    directory = assignment.directory
    kind = hashlib.sha256(image.encode()).hexdigest()[:12] if image else "processes"
    parent = owner_folder(directory.environments, assignment.spec) / "kernels" / kind
    folder = latest_folder(parent)
    for name in ("", *KERNEL_VARIABLES.values()):
        place = folder / name
        place.mkdir(mode=0o700, parents=True, exist_ok=True)
        if directory.owner is not None:
            os.chown(place, *directory.owner, follow_symlinks=False)
    os.utime(folder)
    write_atomically(directory.agent / USE_FILE, {"folder": str(folder)})
    return folder


def kernel_variables(folder: Path | None) -> dict[str, str]:
    """Return the variables by which compilers find the kernel folder. Empty without a folder."""
    if folder is None:
        return {}
    return {variable: str(folder / name) for variable, name in KERNEL_VARIABLES.items()}


def latest_folder(parent: Path) -> Path:
    """Return the path of the folder in `parent` with the highest number.

    Return the path of folder 1, which may not exist, if `parent` has no numbered folder.
    """
    try:
        numbers = [int(entry.name) for entry in parent.iterdir() if entry.name.isdecimal()]
    except OSError:
        numbers = []
    return parent / str(max(numbers, default=1))
