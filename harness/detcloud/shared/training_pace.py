"""The pace of training, from the times of reports."""

from collections.abc import Iterable
from itertools import pairwise


def seconds_per_batch(reports: Iterable[tuple[int, int]]) -> float | None:
    """Return the median of the times per batch between consecutive reports.

    Each time is weighted by its number of batches, so that pauses have little influence. Return
    None if no two consecutive reports differ in both batches and time.

    Args:
        reports: the batches trained and the time in epoch ms of each report, in order.
    """
    rates: list[tuple[float, int]] = []
    for (batches_before, before_ms), (batches_after, after_ms) in pairwise(reports):
        batches, took_ms = batches_after - batches_before, after_ms - before_ms
        if batches > 0 and took_ms > 0:
            rates.append((took_ms / batches / 1000, batches))
    batches_left = sum(batches for _, batches in rates) / 2
    for rate, batches in sorted(rates):
        batches_left -= batches
        if batches_left <= 0:
            return rate
    return None
