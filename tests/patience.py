"""Time limits and polling of tests. The limits catch missing events, not slow events."""

import linecache
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import TypeVar

# Factor for busy machines on limits that suffice on a quiet machine. Only failing tests wait for
# the whole limit.
PATIENCE = 5
# For the end of a process.
PROCESS_SECONDS_MAX = 60.0 * PATIENCE
# For an answer on a socket, and for the end of a thread.
ANSWER_SECONDS_MAX = 20.0 * PATIENCE

T = TypeVar("T")


def wait_until(look: Callable[[], T], seconds: float = 30.0, what: str = "") -> T:
    """Call `look` until the result is true, and return the result.

    Raise AssertionError after PATIENCE times `seconds`. The message contains `what`, or the calling
    line of code. The pause between calls grows from 0.02 to 0.1 s.
    """
    return poll_until(look, seconds, what or _calling_line(), 0.02, pause_seconds_max=0.1)


def poll_until(
    look: Callable[[], T],
    seconds: float,
    what: str | Callable[[], str],
    pause_seconds: float,
    pause_seconds_max: float = 0.0,
) -> T:
    """Call `look` until the result is true, and return the result.

    Raise AssertionError with the text `what` after PATIENCE times `seconds`.

    The pause between two calls is at least `pause_seconds`, and grows to a twentieth of the elapsed
    time up to `pause_seconds_max`.
    """
    limit = seconds * PATIENCE
    began = time.monotonic()
    while not (seen := look()):
        waited = time.monotonic() - began
        if waited > limit:
            text = what() if callable(what) else what
            raise AssertionError(f"{text}: waited {limit:.0f} s in vain")
        time.sleep(max(pause_seconds, min(pause_seconds_max, waited / 20)))
    return seen


def _calling_line() -> str:
    """Return the file, number and text of the line that called the caller of this function."""
    caller = sys._getframe(2)
    path, number = Path(caller.f_code.co_filename), caller.f_lineno
    return f"{path.name}:{number} {linecache.getline(str(path), number).strip()}"
