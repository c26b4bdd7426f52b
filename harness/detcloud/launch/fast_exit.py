"""The fast exit of a trial's process, which skips the interpreter's slow cleanup.

Threads are joined, atexit functions are called and open files are closed as usual; then the process
ends. An interpreter with torch would continue to free its objects one by one, for up to a second in
a forked process (docs/benchmarks.md, `starts`).
"""

from __future__ import annotations

import atexit
import sys
from typing import NoReturn

from detcloud.shared.process_end import end_process, requested_status

_installations: list[bool] = []


def install_fast_exit() -> None:
    """Prepare this process for a later call of `exit_process`. Repeated calls have no effect.

    Register an atexit function that ends the process at once, without the interpreter's cleanup.
    The function does nothing unless `exit_process` was called. Call this before other functions are
    registered, because atexit calls the first one last.
    """
    if not _installations:
        _installations.append(True)
        atexit.register(_end_if_requested)


def exit_process(status: int) -> NoReturn:
    """Raise SystemExit with `status`, and request the fast exit with this status.

    After `install_fast_exit`, the last atexit function ends the process with `status`, without
    the interpreter's cleanup. Without `install_fast_exit`, the process ends as usual.
    """
    requested_status.append(status)
    sys.exit(status)


def _end_if_requested() -> None:
    """End the process with the last requested status. Do nothing without a request."""
    if requested_status:
        end_process(requested_status[-1])
