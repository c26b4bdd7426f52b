"""One pass for all calls that come while it waits for its turn: the cloud brings each event by
itself, and a pass does the work of many.
"""

import threading
from collections.abc import Callable, Collection
from dataclasses import dataclass, field

PASS_SECONDS_MAX = 600.0


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

    def join(self, partition: str, run: Callable[[Collection[str]], bool]) -> bool:
        """Make the next pass, or wait for whoever makes it, and return what it returned. Raises
        what `run` raises, and PassFailed.
        """
        with self._lock:
            mine, leads = self._next, self._next is None
            if mine is None:
                mine = self._next = _Round()
            mine.partitions.add(partition)
        if leads:
            with self._turn:
                with self._lock:
                    # Who comes from here on may have seen what this pass no longer sees.
                    self._next = None
                try:
                    mine.outcome = run(mine.partitions)
                finally:
                    mine.over.set()
        elif not mine.over.wait(PASS_SECONDS_MAX):
            raise PassFailed("the pass is not over")
        if mine.outcome is None:
            raise PassFailed("the pass failed")
        return mine.outcome
