"""Forked processes of tests: a function runs in a copy of the test's process."""

import os
import traceback
from collections.abc import Callable


def fork(work: Callable[[], object]) -> int:
    """Run `work` in a forked process, and return the process's id without a wait.

    The exit code is 0, or 1 after an exception, which is printed.
    """
    child = os.fork()
    if child:
        return child
    try:
        work()
    except BaseException:
        traceback.print_exc()
        os._exit(1)
    os._exit(0)


def await_exit_code(child: int) -> int:
    """Wait for the end of a forked process, and return its exit code, or -n after signal n."""
    return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
