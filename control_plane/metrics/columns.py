"""Reports of metrics as columns: the offsets, steps and times of all reports, and a column per
metric.

A column of floats or of 64-bit integers is packed into an array. A column with other values that a
trial may report (text, lists, larger integers, mixed types) is a list.
"""

from __future__ import annotations

from array import array
from bisect import bisect_right
from collections.abc import Iterable, Iterator, Mapping, Sequence
from collections.abc import Set as AbstractSet
from dataclasses import dataclass, field
from functools import cached_property
from math import isfinite
from typing import Any, NamedTuple, TypeAlias

WHOLE_MAX = 2**53
_NONE: AbstractSet[int] = frozenset()


class MetricReport(NamedTuple):
    """A report of metrics at one step of a trial."""

    offset: int
    """The byte position in the writer's file after the report's line."""
    steps: int
    """The number of steps that the trial had completed."""
    time_ms: int
    """The time of the report in epoch ms, or 0 if unknown."""
    metrics: Mapping[str, Any]
    """The reported values by metric name."""


Values: TypeAlias = "array[float] | array[int] | list[Any]"


@dataclass(frozen=True)
class Column:
    """The values of a metric."""

    values: Values
    """The values in the order of the reports. Reports without a value are left out."""
    report_positions: array[int] | None = None
    """The positions of the reports that have a value. None if all reports have a value."""

    def positions(self, reports: int) -> Sequence[int]:
        """Return the positions of the reports to which the values belong.

        Args:
            reports: the number of all reports.
        """
        return range(reports) if self.report_positions is None else self.report_positions

    @cached_property
    def _value_indexes(self) -> dict[int, int]:
        """The index in `values` by position of the report. Empty if all reports have a value."""
        return (
            {}
            if self.report_positions is None
            else {position: index for index, position in enumerate(self.report_positions)}
        )

    def value_index(self, position: int) -> int | None:
        """Return the index in `values` for the report at `position`. Return None if it has no
        value.
        """
        return position if self.report_positions is None else self._value_indexes.get(position)


@dataclass(frozen=True)
class Columns:
    """The reports of a writer, sorted by offset."""

    offsets: array[int] = field(default_factory=lambda: array("q"))
    """The offset of each report."""
    steps: array[int] = field(default_factory=lambda: array("q"))
    """The steps of each report."""
    times: array[int] = field(default_factory=lambda: array("q"))
    """The time of each report in epoch ms."""
    names: Mapping[str, Column] = field(default_factory=dict)
    """The column of each metric by name."""

    def __len__(self) -> int:
        return len(self.offsets)

    def report(self, position: int) -> MetricReport:
        """Return the report at a position, with the metrics as the trial reported them."""
        metrics = {}
        for name, column in self.names.items():
            place = column.value_index(position)
            if place is not None:
                metrics[name] = column.values[place]
        return MetricReport(
            self.offsets[position], self.steps[position], self.times[position], metrics
        )

    def reports(self) -> Iterator[MetricReport]:
        """Yield all reports in order."""
        return map(self.report, range(len(self)))

    def numeric_values(self, name: str) -> tuple[array[int], array[float]]:
        """Return the steps and the values of a metric, for the reports with a finite number.

        Return two empty arrays for an unknown metric.
        """
        column = self.names.get(name)
        if column is None:
            return array("q"), array("d")
        if isinstance(column.values, array):
            steps = (
                self.steps
                if column.report_positions is None
                else [self.steps[position] for position in column.report_positions]
            )
            return array("q", steps), array("d", column.values)
        pairs = [
            (self.steps[position], float(value))
            for position, value in zip(column.positions(len(self)), column.values, strict=True)
            if is_number(value)
        ]
        return array("q", [step for step, _ in pairs]), array("d", [value for _, value in pairs])

    def reports_after(self, offset: int) -> Columns:
        """Return the reports with an offset greater than `offset`."""
        first = bisect_right(self.offsets, offset)
        return self if first == 0 else self.select_positions(range(first, len(self)))

    def select_positions(self, selected: Sequence[int]) -> Columns:
        """Return the reports at the positions `selected`, which must ascend."""
        places = {old: new for new, old in enumerate(selected)}
        names = {}
        for name, column in self.names.items():
            pairs = [
                (places[position], value)
                for position, value in zip(column.positions(len(self)), column.values, strict=True)
                if position in places
            ]
            if pairs:
                names[name] = _build_column(
                    [position for position, _ in pairs],
                    [value for _, value in pairs],
                    len(selected),
                )
        return Columns(
            array("q", [self.offsets[n] for n in selected]),
            array("q", [self.steps[n] for n in selected]),
            array("q", [self.times[n] for n in selected]),
            names,
        )

    def up_to_step(self, last: float) -> Columns:
        """Return the reports with steps of at most `last`."""
        if not len(self) or max(self.steps) <= last:
            return self
        return self.select_positions([n for n, steps in enumerate(self.steps) if steps <= last])

    def steps_of_names(self) -> dict[str, set[int]]:
        """Return the set of steps at which each metric has a value, by metric name."""
        return {
            name: {self.steps[position] for position in column.positions(len(self))}
            for name, column in self.names.items()
        }

    def without(self, replaced: Mapping[str, AbstractSet[int]]) -> Columns:
        """Return the reports without the replaced values.

        A report that loses all of its values is left out.

        Args:
            replaced: the steps at which values are left out, by metric name.
        """
        if all(replaced.get(name, _NONE).isdisjoint(self.steps) for name in self.names):
            return self
        kept = []
        for report in self.reports():
            metrics = {
                name: value
                for name, value in report.metrics.items()
                if report.steps not in replaced.get(name, _NONE)
            }
            if metrics or not report.metrics:
                kept.append(report._replace(metrics=metrics))
        return to_columns(kept)


def to_columns(reports: Iterable[MetricReport]) -> Columns:
    """Convert reports, sorted by offset, into columns."""
    offsets, steps, times = array("q"), array("q"), array("q")
    names: dict[str, tuple[list[int], list[Any]]] = {}
    for position, report in enumerate(reports):
        offsets.append(report.offset)
        steps.append(report.steps)
        times.append(report.time_ms)
        for name, value in report.metrics.items():
            positions, values = names.setdefault(name, ([], []))
            positions.append(position)
            values.append(value)
    packed = {
        name: _build_column(positions, values, len(offsets))
        for name, (positions, values) in names.items()
    }
    return Columns(offsets, steps, times, packed)


def join_columns(parts: Sequence[Columns]) -> Columns:
    """Join the reports of consecutive parts. Of reports that several parts contain, keep the first
    copy.
    """
    offsets, steps, times = array("q"), array("q"), array("q")
    names: dict[str, tuple[list[int], list[Values]]] = {}
    for part in parts:
        new_reports = part.reports_after(offsets[-1]) if offsets else part
        for name, column in new_reports.names.items():
            positions, pieces = names.setdefault(name, ([], []))
            base = len(offsets)
            everywhere = range(base, base + len(new_reports))
            positions.extend(
                everywhere
                if column.report_positions is None
                else (base + place for place in column.report_positions)
            )
            pieces.append(column.values)
        offsets.extend(new_reports.offsets)
        steps.extend(new_reports.steps)
        times.extend(new_reports.times)
    packed = {
        name: _place_values(positions, _join_values(pieces), len(offsets))
        for name, (positions, pieces) in names.items()
    }
    return Columns(offsets, steps, times, packed)


def parse_report(offset: int, line: Mapping[str, Any]) -> MetricReport | None:
    """Parse a line of metrics. Return None for a malformed line."""
    steps, time_ms = (
        _parse_whole_number(line.get("steps_completed")),
        _parse_whole_number(line.get("time_ms", 0)),
    )
    metrics = line.get("metrics")
    if steps is None or time_ms is None or not isinstance(metrics, Mapping):
        return None
    return MetricReport(offset, steps, time_ms, metrics)


def is_number(value: object) -> bool:
    """Return whether a chart can show a value: a finite number within the range of floats."""
    if isinstance(value, bool) or not isinstance(value, int | float):
        return False
    try:
        return isfinite(value)
    except OverflowError:
        return False


def _parse_whole_number(value: object) -> int | None:
    """Return a whole number from 0 to below WHOLE_MAX as an integer. Return None for other
    values.
    """
    if isinstance(value, float) and value.is_integer():
        value = int(value)
    is_whole = isinstance(value, int) and not isinstance(value, bool) and 0 <= value < WHOLE_MAX
    return value if is_whole and isinstance(value, int) else None


def _build_column(positions: list[int], values: list[Any], reports: int) -> Column:
    """Build the column of the values at these positions, out of `reports` reports."""
    return _place_values(positions, _pack_values(values), reports)


def _place_values(positions: list[int], values: Values, reports: int) -> Column:
    """Build a column. Positions are left out if all reports have a value."""
    return Column(values, None if len(positions) == reports else array("I", positions))


def _pack_values(values: list[Any]) -> Values:
    """Return the values as an array if the array preserves them exactly. Otherwise return the
    list.
    """
    kinds = set(map(type, values))
    if kinds == {float} and all(map(isfinite, values)):
        return array("d", values)
    if kinds == {int}:
        try:
            return array("q", values)
        except OverflowError:
            return values
    return values


def _join_values(pieces: Sequence[Values]) -> Values:
    """Join the values of consecutive parts, as an array if possible."""
    first = pieces[0]
    kinds = {piece.typecode if isinstance(piece, array) else "" for piece in pieces}
    if isinstance(first, array) and len(kinds) == 1:
        packed: array[Any] = array(first.typecode)
        for piece in pieces:
            packed.extend(piece)
        return packed
    return _pack_values([value for piece in pieces for value in piece])
