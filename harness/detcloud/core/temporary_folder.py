"""Temporary folders of a trial's process, which are gone with it even where it is killed."""

from __future__ import annotations

import os
import tempfile
from pathlib import Path

from detcloud.shared.trial_directory import TEMPORARY_FOLDER_VARIABLE


def make_temporary_folder(prefix: str) -> tempfile.TemporaryDirectory[str]:
    """Make a folder in the allocation's own place, which the agent removes at its end.

    TMPDIR is the machine's folder where that place has too long a path for sockets. Without an
    agent, or where the place is gone, the folder is where Python makes temporary ones.
    """
    place = Path(os.environ.get(TEMPORARY_FOLDER_VARIABLE) or tempfile.gettempdir())
    return tempfile.TemporaryDirectory(prefix=prefix, dir=place if place.is_dir() else None)
