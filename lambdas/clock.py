"""The time of processes: their wall clock, and what a function keeps back of its time."""

import time

# Of a function's time: for the commit under way and the answer.
RESERVE_MS = 5_000


def now_ms() -> int:
    """Return the time as epoch milliseconds."""
    return time.time_ns() // 1_000_000
