"""A virtual clock that runs scheduled actions."""

from collections.abc import Callable
from heapq import heappop, heappush
from itertools import count
from math import inf


class VirtualClock:
    """A clock with the virtual time `now_ms`, in ms since the simulation began.

    The time does not advance while an action runs.
    """

    def __init__(self) -> None:
        self.now_ms = 0
        self._due: list[tuple[int, int, Callable[[], None]]] = []
        self._numbers = count()

    def call_at(self, due_ms: int, action: Callable[[], None]) -> None:
        """Schedule an action. An action whose time has passed is due now.

        Actions run in the order of due times. Actions with equal times run in the order of the
        calls.
        """
        heappush(self._due, (max(due_ms, self.now_ms), next(self._numbers), action))

    def run_next(self, until_ms: float = inf) -> bool:
        """Advance the time to the next scheduled action, run the action and return True.

        Return False, without a change, if no action is due up to `until_ms`.
        """
        if not self._due or self._due[0][0] > until_ms:
            return False
        self.now_ms, _, action = heappop(self._due)
        action()
        return True
