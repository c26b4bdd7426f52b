"""The Python environment of a trial without a container: an overlay in the trial's home."""

from __future__ import annotations

import hashlib
import json
import os
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from detcloud.agent.assignment.declared_packages import (
    INSTALL_MODULE,
    REQUEST_FILE,
    write_request,
)
from detcloud.agent.assignment.environment import PACKAGES, variables_by_name
from detcloud.agent.assignment.startup_hook import HOOK_FILE
from detcloud.agent.package_cache import DECLARED, HOOK, experiment_layers
from detcloud.launch.packages.layers import fill_overlay, find_layer
from detcloud.launch.packages.overlay import (
    ParentPython,
    current_python,
    harness_path,
    jupyter_variables,
    make_overlay,
    overlay_python,
    overlay_variables,
    parent_scripts,
)

if TYPE_CHECKING:
    from collections.abc import Mapping

    from detcloud.agent.assignment.assignment import Assignment


@dataclass(frozen=True, slots=True)
class TrialPython:
    """The interpreter of a trial."""

    executable: str
    """The interpreter's path, in the trial's overlay."""
    variables: Mapping[str, str]
    """The environment variables by which the trial's programs find the overlay."""
    install: tuple[str, ...] = ()
    """The command that installs declared packages. Empty if none must be installed."""
    after_hook: tuple[str, ...] = ()
    """The command that stores the packages of startup-hook.sh as a layer.

    Empty without a hook, or if the layer exists.
    """


def lay_out_overlay(assignment: Assignment, path: str, *, is_own_user: bool = True) -> TrialPython:
    """Create the overlay of a trial, with the layers of earlier runs and of other machines.

    Fetch missing layers from the cluster if the agent uses archives.

    Args:
        assignment: the trial.
        path: the PATH that the overlay's programs are put in front of.
        is_own_user: whether the trial runs as the agent's user. Otherwise the hook's packages are
            not kept: the agent would link files of a folder that the user can change meanwhile.

    Raises:
        OSError: the overlay cannot be written.
    """
    parent = current_python()
    directory = assignment.directory
    folder = directory.overlay
    layer, install = _declared_packages(assignment, parent)
    make_overlay(folder, parent, layer, Path(PACKAGES))
    after_hook: tuple[str, ...] = ()
    if assignment.has_hook and is_own_user:
        cache = experiment_layers(directory.environments, assignment.spec)
        key = _hook_key(assignment, parent)
        if assignment.layers is not None:
            assignment.layers.obtain(HOOK, cache, key)
        if kept := find_layer(cache, key):
            fill_overlay(folder, parent.version, kept)
        else:
            after_hook = _store_command(parent, folder, cache, key)
    # Other users cannot read the folder of the machine.
    shared = directory.environments if is_own_user else folder
    scripts = parent_scripts(shared / "scripts", parent)
    variables = {
        **overlay_variables(folder, path, scripts),
        **jupyter_variables(parent),
        "PYTHONPATH": harness_path(folder, PACKAGES),
    }
    return TrialPython(str(overlay_python(folder)), variables, install, after_hook)


def _declared_packages(
    assignment: Assignment, parent: ParentPython
) -> tuple[Path | None, tuple[str, ...]]:
    """Return the layer of declared packages, and the command that installs the packages.

    With a layer, the command is empty. Without a layer, the first part is None. Without declared
    packages, return (None, ()). Write the request file for the installation, fetch the layer if
    possible, and mark a found layer as used now.
    """
    if not assignment.packages:
        return None, ()
    # The import would enlarge idle agents.
    from detcloud.launch.packages.install import Request, declared_layer_key

    write_request(assignment)
    directory = assignment.directory
    request = Request.read(directory.overlay / REQUEST_FILE)
    variables = variables_by_name(assignment.variables, device=assignment.device)
    key = declared_layer_key(request, parent, variables)
    if key and assignment.layers is not None:
        assignment.layers.obtain(DECLARED, request.cache, key)
    layer = find_layer(request.cache, key) if key else None
    if layer is None:
        return None, (*_own_module(parent, INSTALL_MODULE), str(directory.overlay))
    os.utime(layer)
    notice = f"[detcloud] environment.{request.installer}: packages found on this machine"
    directory.write_notices([notice])
    return layer, ()


def _hook_key(assignment: Assignment, parent: ParentPython) -> str:
    """Return the key of the hook's layer.

    The key depends on the agent's Python, the whole model code, the hook and the declared packages,
    because a hook may install packages that other files of the code name.
    """
    hook = (assignment.directory.code / HOOK_FILE).read_bytes()
    declared = json.dumps(assignment.packages, sort_keys=True)
    parts = (parent.identity, assignment.code_sha256, hook.hex(), declared)
    return hashlib.sha256("\n".join(parts).encode()).hexdigest()


def _store_command(parent: ParentPython, folder: Path, cache: Path, key: str) -> tuple[str, ...]:
    """Return the command that stores the hook's packages in the overlay `folder` as a layer."""
    words = _own_module(parent, "detcloud.launch.packages.store_hook_layer")
    return (*words, str(folder), parent.version, str(cache), key)


def _own_module(parent: ParentPython, module: str) -> tuple[str, ...]:
    """Return the command that runs a module of detcloud with the parent's interpreter.

    The command sets PYTHONPATH and ignores the working directory, because a hook may have changed
    variables and the model code may contain modules of any name.
    """
    return ("env", f"PYTHONPATH={PACKAGES}", parent.executable, "-P", "-m", module)
