"""Limits on the threads that do work of one kind, beside those that answer."""

from anyio import CapacityLimiter
from anyio.lowlevel import RunVar


class LoopLimiter:
    """A limit of so many threads on work of one kind, for each event loop."""

    def __init__(self, work: str, threads: int) -> None:
        self._threads = threads
        self._limiters: RunVar[CapacityLimiter] = RunVar(work)

    def limiter(self) -> CapacityLimiter:
        """The limiter of the loop that runs, for `anyio.to_thread.run_sync`."""
        limiter = self._limiters.get(None)
        if limiter is None:
            limiter = CapacityLimiter(self._threads)
            self._limiters.set(limiter)
        return limiter
