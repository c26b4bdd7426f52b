"""The waiting for Gloo's threads at the end of a process. Gloo exchanges tensors for torch.

After an exchange, a thread of Gloo drops its tensors, and needs the interpreter's lock for this (in
torch 2.10 and later for every tensor that code holds). Python before 3.14 ends a thread that waits
for the lock during the interpreter's end. Gloo's C++ code then aborts the process: "terminate
called without an active exception", with the exit code of a crash. Destroying the process group
does not help, since models hold the group.

`detcloud/shared/at_start` runs this file alone, so the file imports nothing of detcloud.
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
# A thread that waits for the interpreter's lock tries again after each switch interval.
INTERVALS = 4
# An exchange that no code waited for may last as long as the peers take, so the waiting is limited.
# An idle thread drops its tensors without the lock once the interpreter's end has begun.
WAIT_SECONDS_MAX = 5.0


def await_gloo_threads_at_exit() -> None:
    """Register `await_gloo_threads` to run at the end of this process, before earlier functions.

    A repeated call moves the function to the front, and the function still runs once.
    """
    atexit.unregister(await_gloo_threads)
    atexit.register(await_gloo_threads)


def await_gloo_threads(
    list_activity: Callable[[], dict[str, str]] | None = None,
    sleep: Callable[[float], None] = time.sleep,
) -> None:
    """Wait until all threads of Gloo are idle, for at most WAIT_SECONDS_MAX.

    Return at once without such threads or without /proc. Threads are idle if none runs, and none
    ran between two looks. A thread that waits for another process counts as idle, so a dead peer
    causes no delay. No error is raised after the limit. `list_activity` and `sleep` are
    replacements for tests; `list_activity` returns a text per thread, as in /proc/PID/status.
    """
    look = list_activity or _list_activity
    before, end = look(), time.monotonic() + WAIT_SECONDS_MAX
    while before and time.monotonic() < end:
        # The interpreter's lock is free during the sleep.
        sleep(INTERVALS * sys.getswitchinterval())
        after = look()
        if after == before and not any(map(_is_running, after.values())):
            return
        before = after


def _list_activity() -> dict[str, str]:
    """Return the state and the switch counts of each thread of Gloo, by the thread's number.

    Threads that end meanwhile are left out. Return an empty dictionary on systems without /proc.
    """
    found = {}
    with contextlib.suppress(OSError):
        for task in TASKS.iterdir():
            # A thread may end between the two reads.
            with contextlib.suppress(OSError):
                if (task / "comm").read_text().startswith(THREAD_NAME):
                    lines = (task / "status").read_text().splitlines()
                    found[task.name] = " ".join(filter(_tells_activity, lines))
    return found


def _tells_activity(line: str) -> bool:
    return line.startswith(("State:", "voluntary_", "nonvoluntary_"))


def _is_running(activity: str) -> bool:
    return "State:\tR" in activity
