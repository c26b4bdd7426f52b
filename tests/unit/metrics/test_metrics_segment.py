"""Segments return the exact reports of a trial, and summaries of the reports."""

import json
from array import array
from dataclasses import replace
from itertools import pairwise
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from control_plane.metrics import segment
from control_plane.metrics.columns import (
    WHOLE_MAX,
    Columns,
    MetricReport,
    is_number,
    join_columns,
    parse_report,
    to_columns,
)
from control_plane.metrics.segment import (
    SUMMARY_REPORTS_MIN,
    decode_segment,
    decode_summary,
    encode_segment,
    report_count,
)
from control_plane.metrics.summary import (
    MOMENTS_MAX,
    Moments,
    Summary,
    combine_summaries,
    summarise_columns,
)

FLOATS = st.floats(allow_nan=False, allow_infinity=False)
INTEGERS = st.integers() | st.sampled_from([2**63 - 1, 2**63, -(2**63), 10**400])
OTHER = st.none() | st.booleans() | st.text(max_size=5) | st.sampled_from(["NaN", "-Infinity"])
SCALARS = FLOATS | INTEGERS | OTHER
METRICS = st.dictionaries(
    st.sampled_from(["loss", "a.b", "", "näme"]), SCALARS | st.lists(SCALARS, max_size=3)
)
ONE_KIND = st.sampled_from([FLOATS, st.integers(-(2**63), 2**63 - 1)])


@st.composite
def reports(draw: st.DrawFn, metrics: st.SearchStrategy[dict[str, Any]]) -> list[MetricReport]:
    drawn, offset = [], 0
    for _ in range(draw(st.integers(1, 12))):
        offset += draw(st.integers(1, 2**40))
        steps, time_ms = draw(st.integers(0, WHOLE_MAX - 1)), draw(st.integers(0, WHOLE_MAX - 1))
        drawn.append(MetricReport(offset, steps, time_ms, draw(metrics)))
    return drawn


def is_same(found: Any, expected: Any) -> bool:
    """Return whether values, types and signs are equal: 1 differs from 1.0, and 0.0 from -0.0."""
    return repr(found) == repr(expected)


def comparable_fields(report: MetricReport) -> tuple[Any, ...]:
    return report.offset, report.steps, report.time_ms, sorted(report.metrics.items())


def assert_same(columns: Columns, expected: list[MetricReport]) -> None:
    assert is_same(
        [comparable_fields(r) for r in columns.reports()], [comparable_fields(r) for r in expected]
    )


@given(reports(METRICS))
def test_reports_survive_encoding(given_reports: list[MetricReport]) -> None:
    body = encode_segment(to_columns(given_reports))
    assert_same(decode_segment(body, 0), given_reports)
    assert report_count(body) == len(given_reports)


@given(ONE_KIND.flatmap(lambda kind: reports(st.fixed_dictionaries({"x": kind}))))
def test_packed_columns_survive_encoding(given_reports: list[MetricReport]) -> None:
    columns = to_columns(given_reports)
    assert isinstance(columns.names["x"].values, array)
    assert_same(decode_segment(encode_segment(columns), 0), given_reports)


@given(reports(METRICS), st.data())
def test_joined_parts_equal_the_whole(
    given_reports: list[MetricReport], data: st.DataObject
) -> None:
    cuts = sorted(data.draw(st.lists(st.integers(0, len(given_reports)), max_size=3)))
    edges = [0, *cuts, len(given_reports)]
    parts = [to_columns(given_reports[start:end]) for start, end in pairwise(edges)]
    assert_same(join_columns(parts), given_reports)


@given(reports(METRICS), st.integers(0, 12), st.integers(0, 12))
def test_joined_overlapping_parts_have_no_duplicate_reports(
    given_reports: list[MetricReport], first: int, second: int
) -> None:
    low, high = sorted((first, second))
    parts = [to_columns(given_reports[:high]), to_columns(given_reports[low:])]
    assert_same(join_columns(parts), given_reports)


@given(reports(METRICS), st.data())
def test_reports_are_selected_by_position(
    given_reports: list[MetricReport], data: st.DataObject
) -> None:
    positions = range(len(given_reports))
    kept = sorted(data.draw(st.sets(st.sampled_from(positions))))
    assert_same(to_columns(given_reports).select_positions(kept), [given_reports[n] for n in kept])


def test_reports_are_selected_after_an_offset() -> None:
    columns = to_columns([MetricReport(n, n, 0, {"x": n}) for n in (10, 20, 30)])
    assert [list(columns.reports_after(offset).offsets) for offset in (9, 10, 25, 30)] == [
        [10, 20, 30],
        [20, 30],
        [30],
        [],
    ]


def test_rows_of_the_first_releases_are_read() -> None:
    line = {"kind": "metrics", "group": "g", "steps_completed": 5, "metrics": {"x": 1}}
    wrong = {**line, "steps_completed": "many"}
    body = json.dumps([line, wrong, {**line, "time_ms": 9}, "no line"]).encode()
    assert list(decode_segment(body, 100).reports()) == [
        MetricReport(100, 5, 0, {"x": 1}),
        MetricReport(102, 5, 9, {"x": 1}),
    ]
    assert (report_count(body), decode_summary(body)) == (0, None)


def test_damaged_reports_are_refused() -> None:
    body = encode_segment(to_columns([MetricReport(1, 1, 1, {})]))
    with pytest.raises(ValueError, match="damaged segment"):
        decode_segment(body[:-4], 0)


def test_segment_of_a_later_version_is_refused() -> None:
    body = b"\x07" + encode_segment(to_columns([MetricReport(1, 1, 1, {})]))[1:]
    with pytest.raises(ValueError, match="version 7"):
        decode_segment(body, 0)


@pytest.mark.parametrize(
    "line",
    [
        {},
        {"steps_completed": 1},
        {"steps_completed": 1, "metrics": []},
        {"steps_completed": -1, "metrics": {}},
        {"steps_completed": True, "metrics": {}},
        {"steps_completed": 1.5, "metrics": {}},
        {"steps_completed": float("inf"), "metrics": {}},
        {"steps_completed": 2**53, "metrics": {}},
        {"steps_completed": 10**400, "metrics": {}},
        {"steps_completed": 1, "metrics": {}, "time_ms": "now"},
    ],
)
def test_malformed_line_is_no_report(line: dict[str, Any]) -> None:
    assert parse_report(1, line) is None


def test_whole_floats_are_steps() -> None:
    line = {"steps_completed": 5.0, "metrics": {"x": 1}, "time_ms": 7}
    assert parse_report(3, line) == MetricReport(3, 5, 7, {"x": 1})


def test_numeric_values_omit_other_values() -> None:
    values = [1, 2.5, "NaN", None, True, [1], 10**400, -0.0]
    columns = to_columns([MetricReport(n, n, 0, {"x": value}) for n, value in enumerate(values)])
    steps, numbers = columns.numeric_values("x")
    assert (list(steps), list(numbers)) == ([0, 1, 7], [1.0, 2.5, -0.0])
    assert columns.numeric_values("y") == (array("q"), array("d"))
    assert not is_number(float("nan"))


def test_numeric_values_skip_reports_without_the_name() -> None:
    columns = to_columns(
        [MetricReport(n, 10 * n, 0, {"x": float(n)} if n % 2 else {"y": n}) for n in range(5)]
    )
    steps, numbers = columns.numeric_values("x")
    assert (list(steps), list(numbers)) == ([10, 30], [1.0, 3.0])


def long_columns() -> Columns:
    return to_columns(
        [
            MetricReport(100 * n, n, 7, {"x": float((37 * n) % 101), "name": f"run {n}"})
            for n in range(1, SUMMARY_REPORTS_MIN + 1)
        ]
    )


def test_long_segment_has_a_summary() -> None:
    columns = long_columns()
    stored = decode_summary(encode_segment(columns))
    assert stored == summarise_columns(columns)
    assert stored is not None
    assert (stored.reports, stored.steps_min, stored.steps_max) == (512, 1, 512)
    assert (stored.first_offset, stored.last_offset) == (100, 51_200)
    assert list(stored.names) == ["x"]
    summary = stored.names["x"]
    values = [float((37 * n) % 101) for n in range(1, 513)]
    # 37 n mod 101 takes all values from 0 to 100 within 101 steps, so both bounds occur.
    assert (summary.count, summary.minimum, summary.maximum) == (512, 0.0, 100.0)
    assert summary.mean == pytest.approx(sum(values) / 512)
    assert (summary.last_steps, summary.last) == (512, values[-1])
    assert len(summary.steps) <= 2 * 512 // 16 + 2


def test_short_segment_has_no_summary() -> None:
    columns = long_columns().select_positions(range(SUMMARY_REPORTS_MIN - 1))
    assert decode_summary(encode_segment(columns)) is None


def test_segment_with_too_many_names_has_no_summary() -> None:
    columns = to_columns([MetricReport(n, n, 0, {f"x{n}": n}) for n in range(1, 600)])
    assert decode_summary(encode_segment(columns)) is None


def test_summaries_are_combined_in_order() -> None:
    first = to_columns([MetricReport(1, 1, 0, {"x": 1.0}), MetricReport(2, 2, 0, {"x": 4.0})])
    second = to_columns([MetricReport(3, 3, 0, {"x": -2.0})])
    summary = combine_summaries(summarise_columns(part).names["x"] for part in (first, second))
    # (1 + 4 - 2) / 3 = 1
    assert (summary.count, summary.minimum, summary.maximum) == (3, -2.0, 4.0)
    assert summary.mean == pytest.approx(1.0)
    assert (summary.last_steps, summary.last) == (3, -2.0)
    assert (list(summary.steps), list(summary.values)) == ([1, 2, 3], [1.0, 4.0, -2.0])


def test_mean_is_finite_although_the_sum_overflows() -> None:
    columns = to_columns([MetricReport(n, n, 0, {"x": 1.7e308}) for n in range(1, 5)])
    summary = summarise_columns(columns).names["x"]
    assert summary.mean == pytest.approx(1.7e308)
    assert combine_summaries([summary, summary]).mean == pytest.approx(1.7e308)


def test_summary_without_moments_is_read() -> None:
    reports = [MetricReport(n, n, 1000 + n, {"x": float(n)}) for n in range(1, 601)]
    summary = decode_summary(encode_segment(to_columns(reports)))
    assert summary is not None
    assert 32 <= len(summary.moments.steps) <= MOMENTS_MAX
    assert summary.moments.time_at(600) == 1600
    without = replace(summary, moments=Moments())
    assert decode_summary(_with_summary(without)) == without
    assert without.moments.time_at(5) is None


def _with_summary(summary: Summary) -> bytes:
    """Return a segment of 600 reports with this summary, encoded like releases without moments."""
    encoded = segment._encode_summary(summary)
    return segment._PREFIX.pack(segment.VERSION, 600, len(encoded)) + encoded
