"""Limits on the number of threads for a kind of work, apart from the threads of other requests."""

from anyio import CapacityLimiter
from anyio.lowlevel import RunVar


class LoopLimiter:
    """A limit on the threads that do a kind of work at the same time, for each event loop.

    Args:
        work: the name of the kind of work.
        threads: the most threads.
    """

    def __init__(self, work: str, threads: int) -> None:
        self._threads = threads
        self._limiters: RunVar[CapacityLimiter] = RunVar(work)

    def limiter(self) -> CapacityLimiter:
        """Return the running event loop's limiter, for `anyio.to_thread.run_sync`.

        The first call in an event loop creates the limiter.
        """
        limiter = self._limiters.get(None)
        if limiter is None:
            limiter = CapacityLimiter(self._threads)
            self._limiters.set(limiter)
        return limiter
