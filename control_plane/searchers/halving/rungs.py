"""Rungs: lengths at which a halving compares trials, powers of the divisor below the longest."""

from functools import lru_cache
from math import inf
from sys import float_info

# The result of a trial that failed.
WORST_RESULT = float_info.max


def signed_metric(metric: float, smaller_is_better: bool) -> float:
    """Return the metric, negated if larger is better, so that the smallest result is the best."""
    return metric if smaller_is_better else -metric


def power(divisor: float, exponent: int) -> float:
    """Return divisor^exponent; infinite beyond what a float holds, as in Determined."""
    try:
        return divisor**exponent
    except OverflowError:
        return inf


def count_powers(most: int, divisor: float, powers_max: int) -> int:
    """Count the powers of a divisor above 1, beginning with the first, that are at most `most`; no
    more than `powers_max`.
    """
    # A float is a fraction of whole numbers, so that nothing is rounded.
    over, under = divisor.as_integer_ratio()
    exponents = range(1, powers_max + 1)
    beyond = (n - 1 for n in exponents if over**n > most * under**n)
    return next(beyond, powers_max)


# Cached because every result asks for it.
@lru_cache(maxsize=1_024)
def rung_lengths(max_length: int, divisor: float, num_rungs: int) -> tuple[int, ...]:
    """Return max_length / divisor^k rounded down, at least 1, the shortest first."""
    powers = (power(divisor, num_rungs - 1 - k) for k in range(num_rungs))
    return tuple(max(int(max_length / one), 1) for one in powers)
