"""Where trials of a halving are compared: at powers of the divisor below the longest training."""

from functools import lru_cache
from math import inf
from sys import float_info

# The result of a trial that failed.
WORST = float_info.max


def signed(metric: float, smaller_is_better: bool) -> float:
    """A result by which less is better; the worst stays the worst either way."""
    return metric if smaller_is_better else -metric


def power(divisor: float, exponent: int) -> float:
    """divisor^exponent; infinite beyond what a float holds, as in the original."""
    try:
        return divisor**exponent
    except OverflowError:
        return inf


# A search asks with every result.
@lru_cache(maxsize=1_024)
def rung_lengths(max_length: int, divisor: float, num_rungs: int) -> tuple[int, ...]:
    """max_length / divisor^k rounded down, at least 1, the shortest first."""
    powers = (power(divisor, num_rungs - 1 - k) for k in range(num_rungs))
    return tuple(max(int(max_length / one), 1) for one in powers)
