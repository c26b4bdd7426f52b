"""Generated traces with the statistics of published traces, and traces from files."""

import json
from itertools import groupby
from statistics import mean, median

import pytest

from control_plane.spot.traces import (
    PRICE,
    SIGMA,
    TICK_MS,
    SpotTrace,
    TraceInvalid,
    availability,
    generate_trace,
    read_trace,
)

DAY_MS = 86_400_000


def test_equal_arguments_give_equal_traces() -> None:
    assert (
        generate_trace(0.5, DAY_MS, 7)
        == generate_trace(0.5, DAY_MS, 7)
        != generate_trace(0.5, DAY_MS, 8)
    )


def test_trace_has_requested_length() -> None:
    assert generate_trace(0.5, 1, 0).length_ms == TICK_MS
    assert generate_trace(0.5, TICK_MS + 1, 0).length_ms == 2 * TICK_MS


@pytest.mark.parametrize("level", [0.2, 0.5, 0.8, 0.95])
def test_long_trace_has_expected_availability_and_periods(level: float) -> None:
    trace = generate_trace(level, 3000 * DAY_MS, 3)
    # About 9,000 periods with a standard deviation of 3 times the mean: within about 3 %.
    assert availability(trace, trace.length_ms) == pytest.approx(level, abs=0.04)
    hours = [len(list(run)) / 12 for up, run in groupby(trace.available) if up]
    # Rounding up to whole ticks makes short periods longer.
    assert mean(hours) == pytest.approx(8 * level, rel=0.15)
    # exp(SIGMA^2 / 2) = 3.08 times the median.
    assert SIGMA == 1.5
    assert mean(hours) / median(hours) == pytest.approx(3.08, rel=0.2)


@pytest.mark.parametrize(("level", "share"), [(0.0, 0.0), (1.0, 1.0)])
def test_availability_0_and_1_are_constant(level: float, share: float) -> None:
    assert availability(generate_trace(level, DAY_MS, 0), DAY_MS) == share


def test_prices_vary_by_5_percent_at_most() -> None:
    prices = generate_trace(0.5, 30 * DAY_MS, 1).prices
    # A price lasts for a day of 288 ticks.
    assert [len(list(run)) for _, run in groupby(prices)] == [288] * 30
    assert all(0.95 * PRICE <= price <= 1.05 * PRICE for price in prices)


def test_availability_counts_ticks_before_deadline() -> None:
    trace = SpotTrace(TICK_MS, (True, True, False, False), (0.3,) * 4)
    assert availability(trace, 4 * TICK_MS) == 0.5
    assert availability(trace, 3 * TICK_MS - 1) == 1.0
    assert availability(trace, 0) == 1.0


def test_reads_published_trace() -> None:
    text = '{"metadata": {"gap_seconds": 195}, "data": [1, 0, 16]}'
    assert read_trace(text) == SpotTrace(195_000, (True, False, True), (PRICE,) * 3)


def test_reads_trace_with_prices() -> None:
    document = {"metadata": {"gap_seconds": 300}, "data": [1, 0], "prices": [0.4, 0.5]}
    assert read_trace(json.dumps(document)).prices == (0.4, 0.5)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("[1, 0", "is not JSON"),
        ("[" * 100_000, "is not JSON"),
        ("[1, 0]", "gap_seconds must be a number of seconds"),
        ('{"metadata": {"gap_seconds": 0}, "data": [1]}', "gap_seconds must be"),
        ('{"metadata": {"gap_seconds": NaN}, "data": [1]}', "gap_seconds must be"),
        ('{"metadata": {"gap_seconds": 300}}', "data must be a list"),
        ('{"metadata": {"gap_seconds": 300}, "data": []}', "data must be a list"),
        ('{"metadata": {"gap_seconds": 300}, "data": ["1"]}', "only finite numbers"),
        ('{"metadata": {"gap_seconds": 300}, "data": [1], "prices": [1, 2]}', "has 2 entries"),
        ('{"metadata": {"gap_seconds": 300}, "data": [1], "prices": [0]}', "greater than 0"),
    ],
)
def test_rejects_invalid_trace_with_reason(text: str, message: str) -> None:
    with pytest.raises(TraceInvalid, match=message):
        read_trace(text)
