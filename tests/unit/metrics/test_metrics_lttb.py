"""Largest-Triangle-Three-Buckets: examples computed by hand, and properties."""

from array import array
from math import isfinite

import pytest
from hypothesis import given
from hypothesis import strategies as st

from control_plane.metrics.lttb import PRESELECTED_BUCKETS, downsample, extremes, lttb

VALUES = st.floats(allow_nan=False, allow_infinity=False)
SERIES = st.lists(VALUES, max_size=200)


def test_largest_triangle_of_a_bucket_is_kept() -> None:
    # Between (0, 0) and (4, 0) the area is 4 * |y| / 2: 2, 6 and 4 for the three in the middle.
    assert lttb(range(5), [0, 1, -3, 2, 0], 3) == [0, 2, 4]


def test_two_buckets_give_two_inner_points() -> None:
    # Buckets {1, 2} and {3, 4} of 6 points. The mean of the next bucket is (3.5, 5). From (0, 0):
    #   (1, 4): |(0 - 3.5) * (4 - 0) - (0 - 1) * (5 - 0)| / 2 = |-14 + 5| / 2 = 4.5
    #   (2, 0): |-3.5 * 0 + 2 * 5| / 2 = 5, the larger area
    # The last point is the next mean, (5, 0). From (2, 0):
    #   (3, 10): |(2 - 5) * 10 - (2 - 3) * 0| / 2 = 15, the larger area; (4, 0): 0
    assert lttb(range(6), [0, 4, 0, 10, 0, 0], 4) == [0, 2, 3, 5]


def test_triangle_area_depends_on_distance_and_height() -> None:
    # From (0, 0) to (100, 10): (10, 1) is on the line, area 0; (50, 4) is below the line:
    # |(0 - 100) * 4 + 50 * 10| / 2 = 50; (90, 9) is on the line.
    assert lttb([0, 10, 50, 90, 100], [0, 1, 4, 9, 10], 3) == [0, 2, 4]


def test_first_of_equal_triangles_is_kept() -> None:
    assert lttb(range(5), [0, 0, 0, 0, 0], 3) == [0, 1, 4]


@pytest.mark.parametrize("count", [0, 1, 2, 3])
def test_short_series_is_unchanged(count: int) -> None:
    assert lttb(range(count), [1.0] * count, 3) == list(range(count))
    assert downsample(range(count), [1.0] * count, 3) == list(range(count))


def test_single_peak_of_a_million_points_is_kept() -> None:
    steps, values = array("q", range(1_000_000)), array("d", bytes(8_000_000))
    values[654_321] = 1.0
    assert 654_321 in downsample(steps, values, 500)


@given(SERIES, st.integers(3, 50))
def test_points_are_in_order_with_both_ends(values: list[float], points: int) -> None:
    kept = lttb(range(len(values)), values, points)
    assert len(kept) == min(points, len(values))
    assert kept == sorted(set(kept))
    if values:
        assert (kept[0], kept[-1]) == (0, len(values) - 1)


@given(SERIES, st.integers(3, 6))
def test_preselected_points_are_in_order_with_both_ends(values: list[float], points: int) -> None:
    kept = downsample(range(len(values)), values, points)
    assert len(kept) == min(points, len(values))
    assert kept == sorted(set(kept))
    if values:
        assert (kept[0], kept[-1]) == (0, len(values) - 1)
    if len(values) <= 2 * PRESELECTED_BUCKETS * points:
        assert kept == lttb(range(len(values)), values, points)


@given(st.lists(VALUES, min_size=4, max_size=40))
def test_huge_values_cause_no_overflow(values: list[float]) -> None:
    huge = [*values, 1.7e308, -1.7e308]
    kept = lttb(range(len(huge)), huge, 4)
    assert len(kept) == 4
    assert all(isfinite(huge[n]) for n in kept)


@given(SERIES, st.integers(1, 30))
def test_extremes_have_minimum_and_maximum_of_buckets(values: list[float], size: int) -> None:
    kept = extremes(values, size)
    assert kept == sorted(set(kept))
    for start in range(0, len(values), size):
        bucket = values[start : start + size]
        shown = [values[n] for n in kept if start <= n < start + size]
        assert (min(shown), max(shown)) == (min(bucket), max(bucket))
    if values:
        assert (kept[0], kept[-1]) == (0, len(values) - 1)
