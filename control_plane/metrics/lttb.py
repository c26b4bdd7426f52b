"""Downsampling of a series for a chart: Largest-Triangle-Three-Buckets.

S. Steinarsson, "Downsampling Time Series for Visual Representation", University of Iceland, 2013,
section 4.2. The first and the last point stay; the others fall into equal buckets, each of which
gives the point that spans the largest triangle with the point chosen before and the mean of the
next bucket.

A series much longer than the chart is first reduced to the extremes of small buckets, as in J. Van
Der Donckt et al., "MinMaxLTTB: Leveraging MinMax-Preselection to Scale LTTB", IEEE VIS 2023: the
same picture in a small part of the time.
"""

from collections.abc import Sequence

# Buckets of the preselection for each point of the chart; with 4, charts look as without it.
PRESELECTED_BUCKETS = 4
# Values beyond this are scaled, so that no area overflows.
MAGNITUDE_MAX = 1e100


def downsample(xs: Sequence[float], ys: Sequence[float], points: int) -> list[int]:
    """Select at most `points` (3 or more) of the points (xs[i], ys[i]); returns their positions, in
    order. A series no longer than that stays as it is.
    """
    buckets = PRESELECTED_BUCKETS * points
    if len(xs) <= 2 * buckets:
        return lttb(xs, ys, points)
    selected = extremes(ys, -(-len(ys) // buckets))
    chosen = lttb([xs[i] for i in selected], [ys[i] for i in selected], points)
    return [selected[i] for i in chosen]


def lttb(xs: Sequence[float], ys: Sequence[float], points: int) -> list[int]:
    """The positions of the `points` (3 or more) that Largest-Triangle-Three-Buckets keeps; all
    positions if there are no more points than that.

    `ys` are finite, `xs` no greater than 2^53. Of equal triangles the first one wins.
    """
    count = len(xs)
    if count <= points:
        return list(range(count))
    ys = _scale_down(ys)
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
    """The positions of the least and the greatest of every `size` values, in order, and of both
    ends.
    """
    positions = [0] if len(ys) else []
    for start in range(0, len(ys), size):
        bucket = ys[start : start + size]
        low, high = bucket.index(min(bucket)), bucket.index(max(bucket))
        for place in sorted((start + low, start + high)):
            if place > positions[-1]:
                positions.append(place)
    if positions and positions[-1] != len(ys) - 1:
        positions.append(len(ys) - 1)
    return positions


def _scale_down(values: Sequence[float]) -> Sequence[float]:
    top = max(abs(max(values)), abs(min(values)))
    return [value / top for value in values] if top > MAGNITUDE_MAX else values
