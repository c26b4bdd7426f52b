"""The reports of a stream that stay after the retention of detailed metrics."""

from control_plane.metrics.columns import Columns, MetricReport, is_number

NAMES_MAX = 128
"""The most metrics of a stream whose lowest and highest values stay."""


class ReportSelection:
    """The reports with the lowest, the highest and the last value of each metric.

    Parts of a stream are added in any order, and may repeat reports. Of equal values, the report
    with the smallest offset is kept. A selection from selected reports has the same reports.
    """

    def __init__(self) -> None:
        self._lowest: dict[str, tuple[float, int]] = {}
        self._highest: dict[str, tuple[float, int]] = {}
        self._latest: dict[str, int] = {}
        self._last = -1
        self._reports: dict[int, MetricReport] = {}

    def add(self, columns: Columns) -> None:
        """Add reports, and drop reports that are not selected any more.

        Values of metrics after the first NAMES_MAX only stay in the last report of the stream.
        """
        for report in columns.reports():
            self._reports[report.offset] = report
            self._last = max(self._last, report.offset)
            for name, value in report.metrics.items():
                if name in self._latest or len(self._latest) < NAMES_MAX:
                    self._add_value(name, value, report.offset)
        selected = self._selected_offsets()
        self._reports = {
            offset: report for offset, report in self._reports.items() if offset in selected
        }

    def reports(self) -> list[MetricReport]:
        """Return the selected reports, sorted by offset."""
        return [report for _, report in sorted(self._reports.items())]

    def _add_value(self, name: str, value: object, offset: int) -> None:
        """Add the value of a metric. Only a finite number can be the lowest or highest value."""
        self._latest[name] = max(self._latest.get(name, -1), offset)
        if isinstance(value, int | float) and is_number(value):
            number = float(value)
            self._lowest[name] = min(self._lowest.get(name, (number, offset)), (number, offset))
            # The negative number makes the smallest offset win among equal values.
            self._highest[name] = min(self._highest.get(name, (-number, offset)), (-number, offset))

    def _selected_offsets(self) -> set[int]:
        """Return the offsets of the selected reports."""
        extremes = (*self._lowest.values(), *self._highest.values())
        return {offset for _, offset in extremes} | {*self._latest.values(), self._last}
