"""The threads of Gloo, torch's exchange between processes, at the end of a process.

Such a thread drops the tensors of its last exchange after the code has its result, for which it
takes the interpreter's lock (torch 2.10 and later: for every tensor that code holds). Python before
3.14 ends a thread that waits for the lock while the interpreter ends, and the C++ above it makes an
abort of that: "terminate called without an active exception", with the exit code of a crash. A
process group that the code destroys changes nothing, since its models hold the group.

Interpreters import this file by itself (`detcloud/shared/at_start`): it needs nothing of ours.
"""

from __future__ import annotations

import atexit
import contextlib
import sys
import time
from collections.abc import Callable
from pathlib import Path

TASKS = Path("/proc/self/task")
THREAD_NAME = "pt_gloo"
# A thread that waits for the interpreter's lock asks for it again after each switch interval.
INTERVALS = 4
# An exchange that nobody waited for may take as long as its peers like; a thread that is still
# drops its tensors without the lock once the interpreter's end has begun.
WAIT_SECONDS_MAX = 5.0


def await_gloo_threads_at_exit() -> None:
    """Have this process wait at its end, with its other atexit functions, until Gloo's threads are
    still.
    """
    atexit.unregister(await_gloo_threads)
    atexit.register(await_gloo_threads)


def await_gloo_threads(
    list_activity: Callable[[], dict[str, str]] | None = None,
    sleep: Callable[[float], None] = time.sleep,
) -> None:
    """Wait until no thread of Gloo runs or waits for the interpreter's lock, for some seconds at
    most. A thread that waits for another process is still, so a dead peer holds nobody up.
    """
    look = list_activity or _list_activity
    before, end = look(), time.monotonic() + WAIT_SECONDS_MAX
    while before and time.monotonic() < end:
        # Meanwhile the lock is free.
        sleep(INTERVALS * sys.getswitchinterval())
        after = look()
        if after == before and not any(map(_is_running, after.values())):
            return
        before = after


def _list_activity() -> dict[str, str]:
    """The activity of each thread of Gloo so far, by its number: its state and how often it ran."""
    found = {}
    with contextlib.suppress(OSError):
        for task in TASKS.iterdir():
            # One may end between the two looks.
            with contextlib.suppress(OSError):
                if (task / "comm").read_text().startswith(THREAD_NAME):
                    lines = (task / "status").read_text().splitlines()
                    found[task.name] = " ".join(filter(_tells_activity, lines))
    return found


def _tells_activity(line: str) -> bool:
    return line.startswith(("State:", "voluntary_", "nonvoluntary_"))


def _is_running(activity: str) -> bool:
    return "State:\tR" in activity
