"""A virtual clock: what is due at a time happens in the order of times, then of asking."""

from collections.abc import Callable
from heapq import heappop, heappush
from itertools import count
from math import inf


class Clock:
    """Times are ms since the simulation began; it stands still while something happens."""

    def __init__(self) -> None:
        self.now_ms = 0
        self._due: list[tuple[int, int, Callable[[], None]]] = []
        self._numbers = count()

    def at(self, due_ms: int, action: Callable[[], None]) -> None:
        """Has something happen, at once where its time has passed."""
        heappush(self._due, (max(due_ms, self.now_ms), next(self._numbers), action))

    def advance(self, until_ms: float = inf) -> bool:
        """Goes to what happens next and lets it; False: nothing more is due until then."""
        if not self._due or self._due[0][0] > until_ms:
            return False
        self.now_ms, _, action = heappop(self._due)
        action()
        return True
