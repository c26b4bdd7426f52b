"""Folders of ours that come first on the path of the interpreters that a process starts."""

from __future__ import annotations

import os

VARIABLE = "PYTHONPATH"


def put_first_on_path(folder: str) -> None:
    """Put the folder first on the path of every interpreter that this process starts."""
    paths = started_path()
    if folder not in paths:
        os.environ[VARIABLE] = os.pathsep.join([folder, *paths])


def started_path() -> list[str]:
    """The folders that come first on the path of an interpreter that this process starts."""
    return [path for path in os.environ.get(VARIABLE, "").split(os.pathsep) if path]
