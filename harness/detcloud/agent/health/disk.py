"""The free space on the disk of the agent's work directory, and a trial's share of a full disk."""

from __future__ import annotations

import os
from pathlib import Path

FREE_BYTES_MIN = 256 << 20
"""The free space below which a disk is full, at most a hundredth of the disk."""
# The unit of `st_blocks`.
BLOCK_BYTES = 512
# A folder with more entries is counted as if it had filled the disk.
ENTRIES_MAX = 200_000


def disk_fault(work: Path, *, was_full: bool = False) -> str:
    """Return that the disk of a folder is full, with the free space; "" otherwise.

    A full disk counts as full until twice the space is free. Return "" for a folder that cannot be
    read.

    Args:
        work: the agent's work directory.
        was_full: whether the disk was full at the last call.
    """
    try:
        disk = os.statvfs(work)
    except OSError:
        return ""
    free, size = disk.f_bavail * disk.f_frsize, disk.f_blocks * disk.f_frsize
    limit = _free_bytes_min(size)
    if free >= limit * (2 if was_full else 1):
        return ""
    # Without the free space, because each change of the text would be reported.
    return f"the disk of {work} is full: it needs {limit / (1 << 20):.3g} MiB of free space"


def has_filled_disk(folder: Path) -> bool:
    """Return whether the disk of a folder would not be full without the files in the folder.

    A folder that cannot be read counts as empty. Links are not followed.
    """
    try:
        disk = os.statvfs(folder)
    except OSError:
        return False
    needed = _free_bytes_min(disk.f_blocks * disk.f_frsize) - disk.f_bavail * disk.f_frsize
    used = entries = 0
    for parent, folders, files in os.walk(folder):
        for name in (*folders, *files):
            entries += 1
            try:
                used += Path(parent, name).lstat().st_blocks * BLOCK_BYTES
            except OSError:
                continue
            if used >= needed or entries > ENTRIES_MAX:
                return True
    return False


def _free_bytes_min(disk_bytes: int) -> int:
    return min(FREE_BYTES_MIN, disk_bytes // 100)
