"""The pauses before a request to a cloud's table is sent again.

They are random, between 0 and a ceiling that doubles ("full jitter"), so that those who were
refused together do not come back together.
"""

from collections.abc import Callable, Iterator
from random import uniform

from control_plane.state.table import Unavailable

TRIES_MAX = 8
PAUSE_SECONDS_FIRST = 0.025
PAUSE_SECONDS_MAX = 1.0


class RetryPauses:
    """The `TRIES_MAX` - 1 pauses between the attempts of one request. `sleep` waits for seconds."""

    def __init__(self, sleep: Callable[[float], None]) -> None:
        self._sleep = sleep
        self._pauses = _pause_lengths()

    def wait(self, trouble: str) -> None:
        """Wait before another try. Raises Unavailable, with the `trouble`, after the last."""
        pause = next(self._pauses, None)
        if pause is None:
            raise Unavailable(f"{trouble} ({TRIES_MAX} tries)")
        self._sleep(pause)


def _pause_lengths() -> Iterator[float]:
    for n in range(TRIES_MAX - 1):
        yield uniform(0, min(PAUSE_SECONDS_MAX, PAUSE_SECONDS_FIRST * 2**n))
