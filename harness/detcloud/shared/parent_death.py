"""The end of child processes with their parent, through Linux's prctl."""

from __future__ import annotations

import os
import signal
import sys

_PR_SET_PDEATHSIG = 1
_PR_SET_CHILD_SUBREAPER = 36


def end_with_parent(parent: int) -> None:
    """Make the system kill this process with SIGKILL when its parent ends.

    The end of the parent's thread that started this process counts as the end of the parent.
    `parent` is the parent's process id. If the parent has already ended, exit at once with code
    127, without cleanup. On other systems than Linux, only this check is made. Child processes do
    not inherit the setting. A failure of the system call is ignored.
    """
    _prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
    if os.getppid() != parent:
        os._exit(127)


def adopt_orphans() -> None:
    """Make this process the new parent of descendants without a parent, from now on.

    A descendant whose parent ends becomes a child of this process, which can then find and end the
    child, and must wait for an ended child. Nothing is ended here. The setting lasts until the
    process ends, and child processes do not inherit it. A failure of the system call is ignored. Do
    nothing on other systems than Linux.
    """
    _prctl(_PR_SET_CHILD_SUBREAPER, 1)


def _prctl(option: int, value: int) -> None:
    if sys.platform != "linux":
        return
    import ctypes  # Imported here to keep the starts of trials fast.

    ctypes.CDLL(None).prctl(option, value, 0, 0, 0)
