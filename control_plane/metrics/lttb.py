"""Downsampling of a series for a chart: Largest-Triangle-Three-Buckets.

S. Steinarsson, "Downsampling Time Series for Visual Representation", University of Iceland, 2013,
section 4.2. The first and the last point stay; the others fall into equal buckets, each of which
gives the point that spans the largest triangle with the point chosen before and the mean of the
next bucket.

What is much longer than the chart is first reduced to the extremes of small buckets, as in J. Van
Der Donckt et al., "MinMaxLTTB: Leveraging MinMax-Preselection to Scale LTTB", IEEE VIS 2023: the
same picture for a small part of the time.
"""

from collections.abc import Sequence

# Buckets of the preselection for each point of the chart; 4 gives the pictures of the whole series.
PRESELECTED_BUCKETS = 4
# Values beyond this are scaled, so that no area overflows.
MAGNITUDE_MAX = 1e100


def downsampled(xs: Sequence[float], ys: Sequence[float], points: int) -> list[int]:
    """Positions of at most `points` (3 or more) of the points (xs[i], ys[i]), in order.

    A series no longer than that stays whole.
    """
    buckets = PRESELECTED_BUCKETS * points
    if len(xs) <= 2 * buckets:
        return lttb(xs, ys, points)
    kept = extremes(ys, -(-len(ys) // buckets))
    chosen = lttb([xs[i] for i in kept], [ys[i] for i in kept], points)
    return [kept[i] for i in chosen]


def lttb(xs: Sequence[float], ys: Sequence[float], points: int) -> list[int]:
    """Positions of the `points` (3 or more) that Largest-Triangle-Three-Buckets keeps.

    `ys` are finite, `xs` no greater than 2^53. Of equal triangles the first one wins. Where there
    are no more points than that, all of them.
    """
    count = len(xs)
    if count <= points:
        return list(range(count))
    ys = _scaled(ys)
    edges = [n * (count - 2) // (points - 2) + 1 for n in range(points - 1)]
    chosen = [0]
    for n in range(points - 2):
        low, high = edges[n], edges[n + 1]
        after = edges[n + 2] if n + 2 < len(edges) else count
        size = after - high
        x, y = xs[chosen[-1]], ys[chosen[-1]]
        across, up = x - sum(xs[high:after]) / size, sum(ys[high:after]) / size - y
        areas = [
            abs(across * (b - y) + up * (a - x))
            for a, b in zip(xs[low:high], ys[low:high], strict=True)
        ]
        chosen.append(low + areas.index(max(areas)))
    chosen.append(count - 1)
    return chosen


def extremes(ys: Sequence[float], size: int) -> list[int]:
    """Positions of the least and the greatest of every `size` values in order, with both ends."""
    kept = [0] if len(ys) else []
    for start in range(0, len(ys), size):
        bucket = ys[start : start + size]
        low, high = bucket.index(min(bucket)), bucket.index(max(bucket))
        for place in sorted((start + low, start + high)):
            if place > kept[-1]:
                kept.append(place)
    if kept and kept[-1] != len(ys) - 1:
        kept.append(len(ys) - 1)
    return kept


def _scaled(values: Sequence[float]) -> Sequence[float]:
    top = max(abs(max(values)), abs(min(values)))
    return [value / top for value in values] if top > MAGNITUDE_MAX else values
