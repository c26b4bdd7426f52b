"""Passes that several calls share.

The cloud delivers each event as a separate call, but a pass does the work of many events. All calls
that arrive before the next pass starts share the pass.
"""

import threading
from collections.abc import Callable, Collection
from dataclasses import dataclass, field

from lambdas.clock import RESERVE_MS

LeftMs = Callable[[], int]


@dataclass
class _Round:
    """A pass, and the calls that wait for the pass."""

    partitions: set[str] = field(default_factory=set)
    """The partitions of all calls."""
    over: threading.Event = field(default_factory=threading.Event)
    """Set after the pass."""
    outcome: bool | None = None
    """The result of the pass. None before the end of the pass, and if the pass failed."""


class PassFailed(Exception):
    """The pass failed in the thread of another call."""


class SharedPass:
    """A queue with at most two passes: the running pass and the next pass, which calls can join."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._turn = threading.Lock()
        self._next: _Round | None = None

    @property
    def waiting(self) -> frozenset[str]:
        """The partitions of the calls that have joined the next pass."""
        with self._lock:
            return frozenset(self._next.partitions if self._next is not None else ())

    def join(self, partition: str, run: Callable[[Collection[str]], bool], left_ms: LeftMs) -> bool:
        """Join the next pass, wait for the end of the pass, and return the result.

        The first call of a pass runs it after the end of the previous pass; further calls wait.
        Return False if a call's time ends first. A pass whose first call ran out of time is skipped
        and returns False to all its calls. The thread that runs the pass raises the error of `run`;
        in this case, other calls raise PassFailed.

        Args:
            partition: a partition that the pass must include.
            run: runs the pass with the partitions of all its calls, and returns whether all work is
                complete. Only the `run` of the first call is used.
            left_ms: returns the time until this call is stopped. RESERVE_MS of it is kept for the
                answer.
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
        """Run the pass after the end of the previous pass, and store the outcome.

        Store False without running the pass if less than RESERVE_MS is left. In every case, close
        the pass to new calls first, and wake the waiting calls at the end.
        """
        is_on_turn = self._turn.acquire(timeout=_wait_seconds(left_ms))
        try:
            with self._lock:
                # A later call may know rows that this pass no longer reads, so it needs a new pass.
                self._next = None
            mine.outcome = is_on_turn and left_ms() >= RESERVE_MS and run(mine.partitions)
        finally:
            mine.over.set()
            if is_on_turn:
                self._turn.release()


def _wait_seconds(left_ms: LeftMs) -> float:
    """Return the seconds that a call can wait and still answer, at least 0."""
    return max(0.0, (left_ms() - RESERVE_MS) / 1000)
