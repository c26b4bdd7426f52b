"""The processes below a supervisor: entries of /proc, process groups, and forced ends.

The supervisor may import this module by its folder, so this module imports nothing of the package.
"""

from __future__ import annotations

import contextlib
import os
import signal
import sys
import time

PR_SET_PDEATHSIG = 1
PR_SET_CHILD_SUBREAPER = 36
SWEEP_SECONDS_MAX = 10.0


def adopt_orphans() -> None:
    """Make this process the parent of orphaned descendants.

    Do nothing on systems other than Linux; a failure is ignored. Without the effect, daemons become
    children of init, and `kill_descendants` misses daemons.
    """
    _set_process_option(PR_SET_CHILD_SUBREAPER, 1)


def die_with_parent() -> None:
    """Make the kernel kill this process when the parent process ends.

    Do nothing on systems other than Linux; a failure is ignored.
    """
    _set_process_option(PR_SET_PDEATHSIG, signal.SIGKILL)


def process_record(pid: int) -> dict[str, object]:
    """Return the record of a process: `pid`, `supervisor` and `start_time`.

    `supervisor` is the id of the calling process. `start_time` is the start of `pid` in ticks, as
    text; None if the process does not exist or /proc is missing.
    """
    fields = _stat_fields(str(pid))
    return {"pid": pid, "supervisor": os.getpid(), "start_time": fields[19] if fields else None}


def has_ended(leader: int) -> bool:
    """Return whether the child `leader` has ended but is not reaped yet.

    Neither wait nor reap the child. Always return False where Python lacks `waitid`. Raises
    ChildProcessError for a reaped child.
    """
    # Python on macOS has waitid since 3.13. Before, the group is killed only after the reaping.
    if not hasattr(os, "waitid"):
        return False
    return os.waitid(os.P_PID, leader, os.WEXITED | os.WNOHANG | os.WNOWAIT) is not None


def kill_group(group: int, number: int) -> None:
    """Send the signal `number` to a process group, or to the leader if no group exists yet.

    `group` is the process id of the leader, and the number of the group. Do nothing if neither
    exists or the system forbids the signal.
    """
    with contextlib.suppress(ProcessLookupError, PermissionError):
        try:
            os.killpg(group, number)
        except ProcessLookupError:
            # The leader has not created a session yet.
            os.kill(group, number)


def kill_descendants() -> None:
    """Kill and reap all descendants. Stop after SWEEP_SECONDS_MAX, even if some remain.

    Without /proc, kill none, but reap the children that end. Call `adopt_orphans` before, since
    only children of this process are found.
    """
    give_up_at = time.monotonic() + SWEEP_SECONDS_MAX
    while time.monotonic() < give_up_at:
        try:
            if os.waitpid(-1, os.WNOHANG)[0] != 0:
                continue
        except ChildProcessError:
            return
        for pid in _child_pids():
            with contextlib.suppress(ProcessLookupError, PermissionError):
                os.kill(pid, signal.SIGKILL)
        time.sleep(0.01)


def _child_pids() -> list[int]:
    """Return the ids of this process's children. Empty without /proc."""
    try:
        pids = [name for name in os.listdir("/proc") if name.isdigit()]  # noqa: PTH208
    except OSError:
        return []
    parent = str(os.getpid())
    return [int(pid) for pid in pids if _stat_fields(pid)[1:2] == [parent]]


def _stat_fields(pid: str) -> list[str]:
    """Return the fields of /proc/PID/stat from the state on. Empty without such a process."""
    try:
        with open(f"/proc/{pid}/stat", encoding="utf-8", errors="replace") as file:  # noqa: PTH123
            return file.read().rpartition(")")[2].split()
    except OSError:
        return []


def _set_process_option(option: int, value: int) -> None:
    """Call prctl, and ignore a failure. Do nothing on systems other than Linux."""
    if sys.platform != "linux":
        return
    import ctypes

    ctypes.CDLL(None).prctl(option, value, 0, 0, 0)
