"""The clocks of an allocation, in milliseconds."""

from __future__ import annotations

import time


def now_ms() -> int:
    """Return the present time in epoch ms."""
    return time.time_ns() // 1_000_000


def monotonic_ms() -> int:
    """Return the present time of a clock that nobody sets, in ms."""
    return time.monotonic_ns() // 1_000_000
