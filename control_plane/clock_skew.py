"""How to recognize times written by a host whose clock was ahead.

A delay ends at most its own length from now. So a time that should be past and lies in the future,
or lies further in the future than any delay reaches, is read as now (decision 0048).
"""

# How far the clocks of hosts are apart if none of them is wrong.
SKEW_MS_MAX = 60_000


def is_from_future(time_ms: int, now_ms: int, delay_ms_max: int = 0) -> bool:
    """Whether a time was written with a clock that was ahead, where nothing is to last for longer
    than `delay_ms_max`.
    """
    return time_ms > now_ms + delay_ms_max + SKEW_MS_MAX
