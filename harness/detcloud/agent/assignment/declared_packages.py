"""The request file, from which the `packages` stage reads the declared packages of a trial."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

from detcloud.agent.package_cache import declared_layers
from detcloud.shared.files import write_atomically

if TYPE_CHECKING:
    from detcloud.agent.assignment.assignment import Assignment

# Names instead of imports, because the agent never imports the modules.
INSTALL_MODULE = "detcloud.launch.packages.install"
ENTER_MODULE = "detcloud.launch.packages.enter"
REQUEST_FILE = "request.json"


def write_request(assignment: Assignment, image: str = "") -> None:
    """Write request.json with the trial's declared packages into the trial's overlay.

    Create the overlay's folder and the cache folder of the owner's layers if needed. If the
    directory has an owner, make the owner the owner of the cache and the file.

    Args:
        assignment: the trial.
        image: the digest of the container's image, "" without a container.

    Raises:
        OSError: a folder or the file cannot be written.
    """
    directory = assignment.directory
    cache = declared_layers(directory.environments, assignment.spec)
    cache.mkdir(mode=0o700, parents=True, exist_ok=True)
    if directory.owner is not None:
        # The parent folder stays the agent's, so that no trial can replace the folder of kernels.
        os.chown(cache, *directory.owner, follow_symlinks=False)
    packages = assignment.packages or {}
    request = {
        "installer": packages.get("installer"),
        "packages": packages.get("packages"),
        "file": packages.get("file") or "",
        "cache": str(cache),
        "code": str(directory.code),
        "code_sha256": assignment.code_sha256,
        "image": image,
        "links_scripts": bool(image),
    }
    directory.overlay.mkdir(mode=0o700, exist_ok=True)
    write_atomically(directory.overlay / REQUEST_FILE, request, mode=0o400, owner=directory.owner)
