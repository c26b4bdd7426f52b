"""Downsampling of a series for a chart with Largest-Triangle-Three-Buckets (LTTB).

Source: S. Steinarsson, "Downsampling Time Series for Visual Representation", University of Iceland,
2013, section 4.2. The first and the last point are kept. The other points are divided into buckets
of equal size. Each bucket contributes the point of the largest triangle with the previously chosen
point and the mean of the next bucket.

A series that is much longer than the chart is first reduced to the extremes of small buckets.
Source: J. Van Der Donckt et al., "MinMaxLTTB: Leveraging MinMax-Preselection to Scale LTTB", IEEE
VIS 2023. The charts look the same, and take a fraction of the time.
"""

from collections.abc import Sequence

# The number of buckets of the preselection for each point of the chart. With 4, charts look the
# same as without preselection.
PRESELECTED_BUCKETS = 4
# The maximum magnitude of values. Series with larger values are scaled down, so that areas do not
# overflow.
MAGNITUDE_MAX = 1e100


def downsample(xs: Sequence[float], ys: Sequence[float], points: int) -> list[int]:
    """Return the ascending positions of at most `points` points that represent a series in a chart.

    Return all positions of a series with at most `points` points.

    Args:
        xs: the x values, at most 2^53.
        ys: the y values, which must be finite.
        points: the maximum number of points, 3 or more.
    """
    buckets = PRESELECTED_BUCKETS * points
    if len(xs) <= 2 * buckets:
        return lttb(xs, ys, points)
    selected = extremes(ys, -(-len(ys) // buckets))
    chosen = lttb([xs[i] for i in selected], [ys[i] for i in selected], points)
    return [selected[i] for i in chosen]


def lttb(xs: Sequence[float], ys: Sequence[float], points: int) -> list[int]:
    """Return the ascending positions of the points that LTTB selects from a series.

    Return all positions of a series with at most `points` points. Of equal triangles, the first is
    selected. For the arguments see `downsample`.
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
    """Return the ascending positions of the minimum and maximum of every `size` consecutive values.

    The positions of the first and the last value are included. Return [] for no values.
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
    """Return the values divided by the largest magnitude, if this exceeds MAGNITUDE_MAX."""
    top = max(abs(max(values)), abs(min(values)))
    return [value / top for value in values] if top > MAGNITUDE_MAX else values
