"""The lengths of rungs: the longest training, divided by powers of the divisor."""

from functools import lru_cache
from math import inf
from sys import float_info

WORST_RESULT = float_info.max
"""The result of a trial that exited early. Smaller results are better."""


def signed_metric(metric: float, smaller_is_better: bool) -> float:
    """Return the metric, negated unless smaller is better, so that smaller results are better.

    Applying the function twice returns the metric.
    """
    return metric if smaller_is_better else -metric


def power(divisor: float, exponent: int) -> float:
    """Return divisor^exponent. Infinity beyond the range of floats, as in Determined."""
    try:
        return divisor**exponent
    except OverflowError:
        return inf


def count_powers(most: int, divisor: float, powers_max: int) -> int:
    """Return the largest n <= `powers_max` with divisor^n <= `most`, for a divisor above 1.

    Return 0 if even divisor^1 is too large.
    """
    # Computed exactly, with the divisor as a fraction of integers.
    numerator, denominator = divisor.as_integer_ratio()
    exponents = range(1, powers_max + 1)
    too_large = (n - 1 for n in exponents if numerator**n > most * denominator**n)
    return next(too_large, powers_max)


# Cached, because every result needs the lengths.
@lru_cache(maxsize=1_024)
def rung_lengths(max_length: int, divisor: float, num_rungs: int) -> tuple[int, ...]:
    """Return the lengths max_length / divisor^k for k = num_rungs - 1 down to 0.

    Rounded down, but at least 1; in increasing order.
    """
    powers = (power(divisor, num_rungs - 1 - k) for k in range(num_rungs))
    return tuple(max(int(max_length / divided_by), 1) for divided_by in powers)
