"""The selection of the metric reports that stay after their retention."""

from random import Random
from typing import Any

from control_plane.metrics.columns import MetricReport, to_columns
from control_plane.metrics.kept_reports import NAMES_MAX, ReportSelection


def report(offset: int, **metrics: Any) -> MetricReport:
    return MetricReport(offset, offset, 0, metrics)


def select(*parts: list[MetricReport]) -> list[MetricReport]:
    selection = ReportSelection()
    for part in parts:
        selection.add(to_columns(part))
    return selection.reports()


def test_lowest_highest_and_last_values_stay() -> None:
    reports = [report(n, loss=float(value)) for n, value in enumerate((5, 1, 3, 9, 4), 1)]
    assert [one.offset for one in select(reports)] == [2, 4, 5]


def test_first_of_equal_values_stays() -> None:
    reports = [report(n, loss=1.0) for n in range(1, 6)]
    assert [one.offset for one in select(reports)] == [1, 5]


def test_last_value_of_each_metric_stays() -> None:
    reports = [report(1, lr=0.5), report(2, loss=2.0), report(3, loss=1.0)]
    assert [one.offset for one in select(reports)] == [1, 2, 3]


def test_text_and_nonfinite_values_have_no_extremes() -> None:
    reports = [report(1, note="a"), report(2, note="b", loss=float("inf")), report(3, note="c")]
    # The last value of `loss` is that of report 2.
    assert [one.offset for one in select(reports)] == [2, 3]


def test_empty_stream_keeps_nothing() -> None:
    assert select([]) == []


def test_extremes_of_many_metrics_are_bounded() -> None:
    names = [f"m{n}" for n in range(NAMES_MAX + 50)]
    random = Random(1)
    reports = [report(n, **{name: random.random() for name in names}) for n in range(1, 1_000)]
    assert len(select(reports)) <= 2 * NAMES_MAX + 1


def test_selection_of_selected_reports_is_the_same() -> None:
    random = Random(2)
    reports = [
        report(n, loss=random.randrange(9), accuracy=random.random())
        for n in range(1, 200)
        if random.random() < 0.7
    ]
    once = select(reports[:80], reports[80:])
    assert select(once) == once
    # A crash left some of the other reports beside the selected reports.
    assert select(once, reports[40:90]) == once
