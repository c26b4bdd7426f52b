"""Folders of detcloud at the front of PYTHONPATH, for interpreters that a process starts."""

from __future__ import annotations

import os

VARIABLE = "PYTHONPATH"


def put_first_on_path(folder: str) -> None:
    """Put the folder first in PYTHONPATH of this process's environment.

    Do nothing if PYTHONPATH contains the folder, at any place.
    """
    paths = started_path()
    if folder not in paths:
        os.environ[VARIABLE] = os.pathsep.join([folder, *paths])


def started_path() -> list[str]:
    """Return the folders in PYTHONPATH of this process's environment. Empty without PYTHONPATH."""
    return [path for path in os.environ.get(VARIABLE, "").split(os.pathsep) if path]
