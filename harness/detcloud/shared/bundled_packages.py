"""Packages for checkpoint stores that come with the agent's code, for images without them.

The archive of the agent's code contains the packages in the folder `_packages` of this package
(`control_plane/agents/bundled_packages.py`). Other installations of detcloud have no such folder. A
bundle is a group of packages in a folder of its own. A process searches a bundle last, and only
once this process opens a store whose package is missing. So packages of the image and of the user
are always preferred, and pip never sees a bundled package.
"""

from __future__ import annotations

import importlib.util
import sys
from pathlib import Path

FOLDER = Path(__file__).resolve().parents[1] / "_packages"
"""The folder of all bundles. Each bundle is a folder with the bundle's name."""


def offer_bundle(name: str, module: str) -> bool:
    """Append the folder of the bundle `name` to `sys.path` if `module` cannot be found without.

    `module` may be a dotted path; its parents are imported. Return whether the module is found in
    the bundle. Return False, and change nothing, if `module` exists elsewhere or the bundle does
    not exist. PYTHONPATH does not change, so started processes search the bundle only if they call
    this function too.
    """
    folder = FOLDER / name
    if _origin(module) is None and folder.is_dir():
        sys.path.append(str(folder))
    return is_bundled(name, module)


def is_bundled(name: str, module: str) -> bool:
    """Return whether Python finds `module` in the bundle `name`.

    `module` may be a dotted path; its parents are imported.
    """
    origin = _origin(module)
    return origin is not None and origin.is_relative_to(FOLDER / name)


def _origin(module: str) -> Path | None:
    """Return the file of a module that can be imported, or None."""
    try:
        spec = importlib.util.find_spec(module)
    except (ImportError, ValueError):
        # A parent is missing, or the module was replaced by an object without a specification.
        return None
    if spec is None:
        return None
    return Path(spec.origin or "")
