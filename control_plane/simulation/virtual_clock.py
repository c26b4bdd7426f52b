"""A virtual clock: actions run in the order of their times, then of their scheduling."""

from collections.abc import Callable
from heapq import heappop, heappush
from itertools import count
from math import inf


class VirtualClock:
    """A clock in ms since the simulation began; it stands still while an action runs."""

    def __init__(self) -> None:
        self.now_ms = 0
        self._due: list[tuple[int, int, Callable[[], None]]] = []
        self._numbers = count()

    def call_at(self, due_ms: int, action: Callable[[], None]) -> None:
        """Schedule an action, for now if its time has passed."""
        heappush(self._due, (max(due_ms, self.now_ms), next(self._numbers), action))

    def run_next(self, until_ms: float = inf) -> bool:
        """Advance to the next action and run it; False: nothing more is due until then."""
        if not self._due or self._due[0][0] > until_ms:
            return False
        self.now_ms, _, action = heappop(self._due)
        action()
        return True
