"""Detection of times written by a host with a clock that was ahead.

A valid time is at most the length of the longest delay in the future. Callers replace a time that
is later by the current time (decision 0048).
"""

# The maximum difference between the clocks of two correct hosts.
SKEW_MS_MAX = 60_000


def is_from_future(time_ms: int, now_ms: int, delay_ms_max: int = 0) -> bool:
    """Return whether `time_ms` is so late that the clock of the writing host was ahead.

    This is true if `time_ms` is more than `delay_ms_max` plus SKEW_MS_MAX after `now_ms`.

    Args:
        time_ms: the time to check, in epoch ms.
        now_ms: the current time, in epoch ms.
        delay_ms_max: the longest valid distance of `time_ms` from now. 0 for a time that must be
            past.
    """
    return time_ms > now_ms + delay_ms_max + SKEW_MS_MAX
