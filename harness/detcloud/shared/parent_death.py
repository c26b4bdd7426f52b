"""The bond between a process and its parent: on Linux the child does not outlive it."""

from __future__ import annotations

import os
import signal
import sys

_PR_SET_PDEATHSIG = 1
_PR_SET_CHILD_SUBREAPER = 36


def end_with_parent(parent: int) -> None:
    """Make the system kill this process when its parent, which had that id, ends."""
    _prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
    if os.getppid() != parent:
        os._exit(127)


def adopt_orphans() -> None:
    """Adopt descendants whose parents end, so that this process can end them."""
    _prctl(_PR_SET_CHILD_SUBREAPER, 1)


def _prctl(option: int, value: int) -> None:
    if sys.platform != "linux":
        return
    import ctypes  # Not at a trial's start, where nothing needs it.

    ctypes.CDLL(None).prctl(option, value, 0, 0, 0)
