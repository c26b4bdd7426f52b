"""How long tests wait for what must come: limits are for what never comes, not for what is slow."""

import linecache
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import TypeVar

# A limit is what a quiet machine needs with room to spare; one that is busy may take so many times
# as long. Only a test that fails waits for all of it.
PATIENCE = 5
# For a process that ends by itself.
PROCESS_SECONDS_MAX = 60.0 * PATIENCE
# For an answer on a socket, and for a thread that is about to end.
ANSWER_SECONDS_MAX = 20.0 * PATIENCE

T = TypeVar("T")


def wait_until(look: Callable[[], T], seconds: float = 30.0, what: str = "") -> T:
    """Returns what `look` finds once that is true. Raises AssertionError after PATIENCE times
    `seconds`, which names `what` was waited for, or else the line that waits. Whoever has waited
    long looks less often: a look may cost a request, and others need the machine.
    """
    return poll_until(look, seconds, what or _calling_line(), 0.02, pause_seconds_max=0.1)


def poll_until(
    look: Callable[[], T],
    seconds: float,
    what: str | Callable[[], str],
    pause_seconds: float,
    pause_seconds_max: float = 0.0,
) -> T:
    """Returns what `look` finds once that is true. Raises AssertionError, which names `what` was
    waited for, after PATIENCE times `seconds`.

    The pause between two looks grows with the wait, to a twentieth of it, up to
    `pause_seconds_max`.
    """
    limit = seconds * PATIENCE
    began = time.monotonic()
    while not (seen := look()):
        waited = time.monotonic() - began
        if waited > limit:
            told = what() if callable(what) else what
            raise AssertionError(f"{told}: waited {limit:.0f} s in vain")
        time.sleep(max(pause_seconds, min(pause_seconds_max, waited / 20)))
    return seen


def _calling_line() -> str:
    """The place and the line of the test, or of its helper, that called the function that asks."""
    caller = sys._getframe(2)
    path, number = Path(caller.f_code.co_filename), caller.f_lineno
    return f"{path.name}:{number} {linecache.getline(str(path), number).strip()}"
