"""Folders of detcloud at the front of PYTHONPATH, for interpreters that a process starts."""

from __future__ import annotations

import os

VARIABLE = "PYTHONPATH"


def put_first_on_path(folder: str) -> None:
    """Put the folder first in PYTHONPATH of this process's environment.

    Processes that are started later inherit the variable. `sys.path` of this process does not
    change. Empty entries are removed. Do nothing if PYTHONPATH contains the folder, at any place.
    """
    paths = started_path()
    if folder not in paths:
        os.environ[VARIABLE] = os.pathsep.join([folder, *paths])


def started_path() -> list[str]:
    """Return the folders in PYTHONPATH of this process's environment, in order.

    Empty entries are skipped. Return an empty list without PYTHONPATH.
    """
    return [path for path in os.environ.get(VARIABLE, "").split(os.pathsep) if path]
