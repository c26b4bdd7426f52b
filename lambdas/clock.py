"""The wall clock, and the time that a function reserves for the end of a call."""

import time

# The time that a function reserves to finish the current commit and to answer.
RESERVE_MS = 5_000
# After this time, unfinished work for a new row is left to the tick of each minute.
TAKEOVER_MS = 60_000


def now_ms() -> int:
    """Return the time as epoch milliseconds."""
    return time.time_ns() // 1_000_000
