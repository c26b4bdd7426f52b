"""The wall clock that processes hand to their parts."""

import time


def now_ms() -> int:
    """Epoch milliseconds."""
    return time.time_ns() // 1_000_000
