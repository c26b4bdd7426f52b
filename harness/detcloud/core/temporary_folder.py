"""Temporary folders of a trial's process, which the agent deletes if the process is killed."""

from __future__ import annotations

import os
import tempfile
from pathlib import Path

from detcloud.shared.trial_directory import TEMPORARY_FOLDER_VARIABLE


def make_temporary_folder(prefix: str) -> tempfile.TemporaryDirectory[str]:
    """Create a temporary folder in the allocation's own folder, which the agent deletes at the end.

    TMPDIR may name another folder, because long paths are unusable for sockets. Without an agent,
    or if the allocation's folder does not exist, use Python's default place. The caller deletes the
    folder by `cleanup` or as a context manager. Raises OSError.
    """
    place = Path(os.environ.get(TEMPORARY_FOLDER_VARIABLE) or tempfile.gettempdir())
    return tempfile.TemporaryDirectory(prefix=prefix, dir=place if place.is_dir() else None)
