"""The clock and the pause of an engine."""

import random
import time
from collections.abc import Callable
from dataclasses import dataclass


def _pause_randomly() -> None:
    """Sleep for a random time of at most 20 ms."""
    time.sleep(random.uniform(0, 0.02))


@dataclass(frozen=True, slots=True)
class EngineTiming:
    """The clock and the pause of an engine, which tests replace."""

    monotonic_seconds: Callable[[], float] = time.monotonic
    """Returns the time in seconds of a clock that never goes back."""
    pause_after_conflict: Callable[[], None] = _pause_randomly
    """Waits before a command is tried again after another process committed first."""
