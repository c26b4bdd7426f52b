"""A watch that kills hanging workers after the failure of another worker of the trial."""

from __future__ import annotations

import contextlib
import os
import signal
import threading
import time

from detcloud.launch.gang_failure import ATTEMPT_VARIABLE, list_failures, mark_lost_wrappers
from detcloud.shared.processes import PROC, Process, is_alive, list_descendants

# A wrapper kills the worker a second earlier, unless the wrapper is stopped.
STRAGGLER_SECONDS = 5.0
POLL_SECONDS = 0.25


class StragglerWatch:
    """A thread of a launcher that kills the remaining workers STRAGGLER_SECONDS after a failure.

    `folder` contains the marks of failures, a file for each failed attempt. An attempt is a start
    of all workers by torch's launcher, which may restart them. Torch's launcher would wait half a
    minute for workers that it has asked to end.
    """

    def __init__(self, folder: str) -> None:
        """Start the thread. `folder` is shared by this node's launcher and workers.

        Marks that are already in `folder` count, too.
        """
        self._folder = folder
        self._is_over = threading.Event()
        self._thread = threading.Thread(target=self._run, name="straggler-watch", daemon=True)
        self._thread.start()

    def close(self) -> None:
        """End the thread without killing the workers that still run, and wait for the end."""
        self._is_over.set()
        self._thread.join()

    def _run(self) -> None:
        """Watch for failed attempts until `close`, and end the workers of each, once.

        A wrapper of a worker that was killed could not mark its attempt as failed; write the mark
        in `folder`. Of each newly failed attempt, kill the workers that still run after
        STRAGGLER_SECONDS. The thread ends with OSError if a mark cannot be read.
        """
        seen: set[int] = set()
        while not self._is_over.wait(POLL_SECONDS):
            mark_lost_wrappers(self._folder)
            for attempt in list_failures(self._folder).keys() - seen:
                seen.add(attempt)
                self._end_attempt(attempt)

    def _end_attempt(self, attempt: int) -> None:
        """Kill the workers of the attempt that still run after STRAGGLER_SECONDS.

        Return early if all have ended or the watch is closed.
        """
        processes = list_descendants(os.getpid())
        left = [process for process in processes if _attempt_of(process) == attempt]
        kill_at = time.monotonic() + STRAGGLER_SECONDS
        while time.monotonic() < kill_at:
            if self._is_over.wait(POLL_SECONDS) or not any(map(is_alive, left)):
                return
        for process in filter(is_alive, left):
            with contextlib.suppress(ProcessLookupError, PermissionError):
                os.kill(process.pid, signal.SIGKILL)


def _attempt_of(process: Process) -> int | None:
    """Return the number of the attempt that a worker's process belongs to.

    An attempt is a start of all workers by torch's launcher. Return None if ATTEMPT_VARIABLE is
    missing or no number in the process's environment, or the environment cannot be read.
    """
    with contextlib.suppress(OSError):
        for variable in (PROC / str(process.pid) / "environ").read_bytes().split(b"\0"):
            name, _, value = variable.partition(b"=")
            if name == ATTEMPT_VARIABLE.encode() and value.isdigit():
                return int(value)
    return None
