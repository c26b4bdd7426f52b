"""A limit on an amount per second, with bursts."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable


class TokenBucket:
    """An allowance that grows by `per_second` each second, up to `burst`, and shrinks by use."""

    def __init__(
        self, per_second: float, burst: float, clock: Callable[[], float] = time.monotonic
    ) -> None:
        """Create a full bucket. `clock` returns seconds that never decrease."""
        self._clock = clock
        self._per_second = per_second
        self._burst = float(burst)
        self._allowance = self._burst
        self._updated_at = clock()

    def allowance(self) -> float:
        """Return the present allowance. A negative number means that too much was spent."""
        now = self._clock()
        refill = (now - self._updated_at) * self._per_second
        self._allowance = min(self._burst, self._allowance + refill)
        self._updated_at = now
        return self._allowance

    def spend(self, amount: float) -> None:
        """Subtract `amount`, even if the allowance is smaller."""
        self._allowance = self.allowance() - amount
