"""Putting detcloud's package `determined` first on a trial's path."""

from __future__ import annotations

import importlib.util
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from detcloud.compatibility.names import ROOT
from detcloud.shared.python_path import put_first_on_path

FOLDER = str(Path(__file__).parent / "on_path")
SETTING = "determined_compatibility"


def offer_determined(config: Mapping[str, Any]) -> str | None:
    """Make `import determined` import detcloud's package, in this process and its children.

    Change sys.path and the environment's path. Do nothing if `environment.determined_compatibility`
    of the configuration is false. Return a notice for the log if this hides an installed package
    `determined`, otherwise None.
    """
    if (config.get("environment") or {}).get(SETTING, True) is False:
        return None
    is_hiding = _find_other_package()
    if FOLDER not in sys.path:
        sys.path.insert(0, FOLDER)
    put_first_on_path(FOLDER)
    if not is_hiding:
        return None
    return (
        f"`import {ROOT}` is detcloud's compatibility package here, not the installed one, which"
        f" would not report to this cluster; environment.{SETTING}: false turns that off"
    )


def _find_other_package() -> bool:
    spec = importlib.util.find_spec(ROOT) if ROOT not in sys.modules else None
    return spec is not None and not (spec.origin or "").startswith(FOLDER)
