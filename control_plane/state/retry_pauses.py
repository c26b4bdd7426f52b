"""The pauses before a request to a cloud's table is repeated.

Each pause is random between 0 and a ceiling that doubles ("full jitter"). Requests that were
refused at the same time are therefore repeated at different times.
"""

from collections.abc import Callable, Iterator
from random import uniform

from control_plane.state.table import Unavailable

TRIES_MAX = 8
PAUSE_SECONDS_FIRST = 0.025
PAUSE_SECONDS_MAX = 1.0


class RetryPauses:
    """The pauses between the TRIES_MAX attempts of a request.

    Args:
        sleep: waits for a number of seconds.
    """

    def __init__(self, sleep: Callable[[float], None]) -> None:
        self._sleep = sleep
        self._pauses = _pause_lengths()

    def wait(self, trouble: str) -> None:
        """Wait before the next attempt. Raises Unavailable with the text `trouble` after the last
        attempt.
        """
        pause = next(self._pauses, None)
        if pause is None:
            raise Unavailable(f"{trouble} ({TRIES_MAX} tries)")
        self._sleep(pause)


def _pause_lengths() -> Iterator[float]:
    """Yield the TRIES_MAX - 1 random pauses in seconds."""
    for n in range(TRIES_MAX - 1):
        yield uniform(0, min(PAUSE_SECONDS_MAX, PAUSE_SECONDS_FIRST * 2**n))
