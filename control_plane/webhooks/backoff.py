"""The times of the attempts of a delivery. Pure."""

SECOND_MS = 1_000
MINUTE_MS = 60 * SECOND_MS
DELAYS_MS = (
    10 * SECOND_MS,
    30 * SECOND_MS,
    MINUTE_MS,
    2 * MINUTE_MS,
    5 * MINUTE_MS,
    10 * MINUTE_MS,
)
"""The delays after the first failed attempts."""
LAST_DELAY_MS = 30 * MINUTE_MS
"""The delay after each further failed attempt."""
GIVEN_UP_MS = 24 * 60 * MINUTE_MS
"""The time after the event at which a delivery counts as failed, in ms."""
FAILURES_MIN = 3
"""The fewest failed attempts of a failed delivery. A single host may have a wrong clock."""


def next_attempt_ms(failures: int, begun_ms: int, now_ms: int) -> int | None:
    """Return the time of the next attempt, in epoch ms.

    Return None after GIVEN_UP_MS and at least FAILURES_MIN failures.

    Args:
        failures: the number of failed attempts, at least 1.
        begun_ms: the time from which GIVEN_UP_MS counts, in epoch ms.
        now_ms: the time of the last failure, in epoch ms.
    """
    delay_ms = DELAYS_MS[failures - 1] if failures <= len(DELAYS_MS) else LAST_DELAY_MS
    next_ms = now_ms + delay_ms
    is_given_up = next_ms > begun_ms + GIVEN_UP_MS and failures >= FAILURES_MIN
    return None if is_given_up else next_ms
