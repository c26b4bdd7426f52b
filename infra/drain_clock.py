"""The clock of the wait for a cluster's instances to end, which tests replace."""

import time
from collections.abc import Callable
from dataclasses import dataclass


@dataclass(frozen=True)
class Clock:
    """A clock and a sleep function."""

    seconds: Callable[[], float] = time.monotonic
    """Returns seconds from an arbitrary start."""
    sleep: Callable[[float], None] = time.sleep
    """Waits for a number of seconds."""
