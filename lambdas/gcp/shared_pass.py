"""One pass for all calls that come while it waits for its turn: the cloud brings each event by
itself, and a pass does the work of many.
"""

import threading
from collections.abc import Callable, Collection
from dataclasses import dataclass, field

from lambdas.clock import RESERVE_MS

LeftMs = Callable[[], int]


@dataclass
class _Round:
    """A pass and those who wait for it; `outcome` is None where it failed."""

    partitions: set[str] = field(default_factory=set)
    over: threading.Event = field(default_factory=threading.Event)
    outcome: bool | None = None


class PassFailed(Exception):
    """The pass that a call shared was made by another, where it failed."""


class SharedPass:
    """Passes of `run`, which takes the partitions of those who asked, one after the other."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._turn = threading.Lock()
        self._next: _Round | None = None

    def join(self, partition: str, run: Callable[[Collection[str]], bool], left_ms: LeftMs) -> bool:
        """Run the next pass, or wait for the thread that runs it, and return its result.

        Returns False if the caller's remaining time, `left_ms`, ends first. Raises what `run`
        raises, and PassFailed.
        """
        with self._lock:
            mine, leads = self._next, self._next is None
            if mine is None:
                mine = self._next = _Round()
            mine.partitions.add(partition)
        if leads:
            self._run_pass(mine, run, left_ms)
        elif not mine.over.wait(_wait_seconds(left_ms)):
            return False
        if mine.outcome is None:
            raise PassFailed("the pass failed")
        return mine.outcome

    def _run_pass(
        self, mine: _Round, run: Callable[[Collection[str]], bool], left_ms: LeftMs
    ) -> None:
        """Make the pass when it is its turn, unless the time is over by then."""
        is_on_turn = self._turn.acquire(timeout=_wait_seconds(left_ms))
        try:
            with self._lock:
                # Who comes from here on may have seen what this pass no longer sees.
                self._next = None
            mine.outcome = is_on_turn and left_ms() >= RESERVE_MS and run(mine.partitions)
        finally:
            mine.over.set()
            if is_on_turn:
                self._turn.release()


def _wait_seconds(left_ms: LeftMs) -> float:
    """Return how long a caller can wait and still answer."""
    return max(0.0, (left_ms() - RESERVE_MS) / 1000)
