"""The growth of a trial's output, by which the agent sees that the trial works."""

from __future__ import annotations

import contextlib
import os
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from detcloud.agent.allocation.directory import AllocationDirectory


class OutputGrowth:
    """Compares the sizes of a trial's log and report files with the sizes at the last look."""

    def __init__(self, directory: AllocationDirectory) -> None:
        """Take the present sizes as the first look."""
        self._directory = directory
        self._sizes = self._read_sizes()

    def look(self) -> bool:
        """Return whether a size has changed since the last look."""
        before, self._sizes = self._sizes, self._read_sizes()
        return self._sizes != before

    def _read_sizes(self) -> dict[str, int]:
        """Return the sizes by path. Files that cannot be read are left out."""
        sizes = {}
        with contextlib.suppress(OSError):
            sizes[str(self._directory.log)] = os.lstat(self._directory.log).st_size
        with contextlib.suppress(OSError), os.scandir(self._directory.out) as entries:
            for entry in entries:
                sizes[entry.path] = entry.stat(follow_symlinks=False).st_size
        return sizes
