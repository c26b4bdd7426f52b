"""Reports of metrics as columns: their offsets, steps and times, and one column per metric.

A column of floats, or of 64-bit integers, is packed into an array; a column of anything else that a
trial may have reported (text, lists, larger integers, a mixture) stays a list.
"""

from __future__ import annotations

from array import array
from bisect import bisect_right
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from math import isfinite
from typing import Any, NamedTuple, TypeAlias

WHOLE_MAX = 2**53


class MetricReport(NamedTuple):
    """One report of metrics. `offset` is the byte after its line in the writer's file."""

    offset: int
    steps: int
    time_ms: int
    metrics: Mapping[str, Any]


Values: TypeAlias = "array[float] | array[int] | list[Any]"


@dataclass(frozen=True)
class Column:
    """The values of one metric. `report_positions` are the positions of the reports that have one,
    None if all have.
    """

    values: Values
    report_positions: array[int] | None = None

    def positions(self, reports: int) -> Sequence[int]:
        """The positions of the reports that the values belong to, among so many reports."""
        return range(reports) if self.report_positions is None else self.report_positions

    @cached_property
    def _value_indexes(self) -> dict[int, int]:
        return (
            {}
            if self.report_positions is None
            else {at: n for n, at in enumerate(self.report_positions)}
        )

    def value_index(self, position: int) -> int | None:
        """The index in `values` of the value of the report at `position`, None if it has none."""
        return position if self.report_positions is None else self._value_indexes.get(position)


@dataclass(frozen=True)
class Columns:
    """Reports of one writer, by ascending offset; all arrays have one entry per report."""

    offsets: array[int] = field(default_factory=lambda: array("q"))
    steps: array[int] = field(default_factory=lambda: array("q"))
    times: array[int] = field(default_factory=lambda: array("q"))
    names: Mapping[str, Column] = field(default_factory=dict)

    def __len__(self) -> int:
        return len(self.offsets)

    def report(self, position: int) -> MetricReport:
        """The report at a position, with its metrics as they were reported."""
        metrics = {}
        for name, column in self.names.items():
            place = column.value_index(position)
            if place is not None:
                metrics[name] = column.values[place]
        return MetricReport(
            self.offsets[position], self.steps[position], self.times[position], metrics
        )

    def reports(self) -> Iterator[MetricReport]:
        """All reports, in order."""
        return map(self.report, range(len(self)))

    def numeric_values(self, name: str) -> tuple[array[int], array[float]]:
        """The steps and values of the reports whose value of a metric is a finite number."""
        column = self.names.get(name)
        if column is None:
            return array("q"), array("d")
        if isinstance(column.values, array):
            steps = (
                self.steps
                if column.report_positions is None
                else [self.steps[at] for at in column.report_positions]
            )
            return array("q", steps), array("d", column.values)
        found = [
            (self.steps[at], float(value))
            for at, value in zip(column.positions(len(self)), column.values, strict=True)
            if is_number(value)
        ]
        return array("q", [step for step, _ in found]), array("d", [value for _, value in found])

    def reports_after(self, offset: int) -> Columns:
        """The reports after an offset."""
        first = bisect_right(self.offsets, offset)
        return self if first == 0 else self.select_positions(range(first, len(self)))

    def select_positions(self, selected: Sequence[int]) -> Columns:
        """Select the reports at these ascending positions."""
        places = {old: new for new, old in enumerate(selected)}
        names = {}
        for name, column in self.names.items():
            pairs = [
                (places[at], value)
                for at, value in zip(column.positions(len(self)), column.values, strict=True)
                if at in places
            ]
            if pairs:
                names[name] = _build_column(
                    [at for at, _ in pairs], [v for _, v in pairs], len(selected)
                )
        return Columns(
            array("q", [self.offsets[n] for n in selected]),
            array("q", [self.steps[n] for n in selected]),
            array("q", [self.times[n] for n in selected]),
            names,
        )


def to_columns(reports: Iterable[MetricReport]) -> Columns:
    """Convert reports into columns."""
    offsets, steps, times = array("q"), array("q"), array("q")
    names: dict[str, tuple[list[int], list[Any]]] = {}
    for position, report in enumerate(reports):
        offsets.append(report.offset)
        steps.append(report.steps)
        times.append(report.time_ms)
        for name, value in report.metrics.items():
            at, values = names.setdefault(name, ([], []))
            at.append(position)
            values.append(value)
    packed = {name: _build_column(at, values, len(offsets)) for name, (at, values) in names.items()}
    return Columns(offsets, steps, times, packed)


def join_columns(parts: Sequence[Columns]) -> Columns:
    """Join parts that follow each other; a report that two parts have is taken from the first."""
    offsets, steps, times = array("q"), array("q"), array("q")
    names: dict[str, tuple[list[int], list[Values]]] = {}
    for part in parts:
        fresh = part.reports_after(offsets[-1]) if offsets else part
        for name, column in fresh.names.items():
            at, pieces = names.setdefault(name, ([], []))
            base = len(offsets)
            everywhere = range(base, base + len(fresh))
            at.extend(
                everywhere
                if column.report_positions is None
                else (base + place for place in column.report_positions)
            )
            pieces.append(column.values)
        offsets.extend(fresh.offsets)
        steps.extend(fresh.steps)
        times.extend(fresh.times)
    packed = {
        name: _place_values(at, _join_values(pieces), len(offsets))
        for name, (at, pieces) in names.items()
    }
    return Columns(offsets, steps, times, packed)


def parse_report(offset: int, line: Mapping[str, Any]) -> MetricReport | None:
    """Parse a line of metrics, which may be anything; None for a malformed one."""
    steps, time_ms = (
        _parse_whole_number(line.get("steps_completed")),
        _parse_whole_number(line.get("time_ms", 0)),
    )
    metrics = line.get("metrics")
    if steps is None or time_ms is None or not isinstance(metrics, Mapping):
        return None
    return MetricReport(offset, steps, time_ms, metrics)


def is_number(value: object) -> bool:
    """Whether a value can be drawn in a chart: a finite number in the range of a float."""
    if isinstance(value, bool) or not isinstance(value, int | float):
        return False
    try:
        return isfinite(value)
    except OverflowError:
        return False


def _parse_whole_number(value: object) -> int | None:
    if isinstance(value, float) and value.is_integer():
        value = int(value)
    is_whole = isinstance(value, int) and not isinstance(value, bool) and 0 <= value < WHOLE_MAX
    return value if is_whole and isinstance(value, int) else None


def _build_column(at: list[int], values: list[Any], reports: int) -> Column:
    return _place_values(at, _pack_values(values), reports)


def _place_values(at: list[int], values: Values, reports: int) -> Column:
    return Column(values, None if len(at) == reports else array("I", at))


def _pack_values(values: list[Any]) -> Values:
    """Pack values into an array if it gives back exactly the same values."""
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
    first = pieces[0]
    kinds = {piece.typecode if isinstance(piece, array) else "" for piece in pieces}
    if isinstance(first, array) and len(kinds) == 1:
        packed: array[Any] = array(first.typecode)
        for piece in pieces:
            packed.extend(piece)
        return packed
    return _pack_values([value for piece in pieces for value in piece])
