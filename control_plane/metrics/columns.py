"""Reports of metrics as columns: their offsets, steps and times, and one column per name.

A column of floats, or of integers of 64 bits, is packed; everything else a trial may have put
there (text, lists, larger integers, a mixture) is kept as it came.
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


class Reported(NamedTuple):
    """One report. `offset`: the byte after its line in the writer's file."""

    offset: int
    steps: int
    time_ms: int
    metrics: Mapping[str, Any]


Values: TypeAlias = "array[float] | array[int] | list[Any]"


@dataclass(frozen=True)
class Column:
    """The values of one name. `at`: positions of the reports that have one, None: all of them."""

    values: Values
    at: array[int] | None = None

    def positions(self, reports: int) -> Sequence[int]:
        """Where its values belong, in a segment of so many reports."""
        return range(reports) if self.at is None else self.at

    @cached_property
    def _places(self) -> dict[int, int]:
        return {} if self.at is None else {at: n for n, at in enumerate(self.at)}

    def place(self, position: int) -> int | None:
        """Where in `values` the report at `position` has its value, None without one."""
        return position if self.at is None else self._places.get(position)


@dataclass(frozen=True)
class Columns:
    """Reports of one writer, by ascending offset; all arrays have one entry per report."""

    offsets: array[int] = field(default_factory=lambda: array("q"))
    steps: array[int] = field(default_factory=lambda: array("q"))
    times: array[int] = field(default_factory=lambda: array("q"))
    names: Mapping[str, Column] = field(default_factory=dict)

    def __len__(self) -> int:
        return len(self.offsets)

    def report(self, position: int) -> Reported:
        """The report at a position, as it came."""
        metrics = {}
        for name, column in self.names.items():
            place = column.place(position)
            if place is not None:
                metrics[name] = column.values[place]
        return Reported(self.offsets[position], self.steps[position], self.times[position], metrics)

    def reports(self) -> Iterator[Reported]:
        """All of them."""
        return map(self.report, range(len(self)))

    def numbers(self, name: str) -> tuple[array[int], array[float]]:
        """Steps and values of the reports whose value is a finite number."""
        column = self.names.get(name)
        if column is None:
            return array("q"), array("d")
        if isinstance(column.values, array):
            steps = self.steps if column.at is None else [self.steps[at] for at in column.at]
            return array("q", steps), array("d", column.values)
        found = [
            (self.steps[at], float(value))
            for at, value in zip(column.positions(len(self)), column.values, strict=True)
            if is_number(value)
        ]
        return array("q", [step for step, _ in found]), array("d", [value for _, value in found])

    def behind(self, offset: int) -> Columns:
        """The reports after that offset."""
        first = bisect_right(self.offsets, offset)
        return self if first == 0 else self.picked(range(first, len(self)))

    def picked(self, kept: Sequence[int]) -> Columns:
        """The reports at these ascending positions only."""
        places = {old: new for new, old in enumerate(kept)}
        names = {}
        for name, column in self.names.items():
            pairs = [
                (places[at], value)
                for at, value in zip(column.positions(len(self)), column.values, strict=True)
                if at in places
            ]
            if pairs:
                names[name] = _column([at for at, _ in pairs], [v for _, v in pairs], len(kept))
        return Columns(
            array("q", [self.offsets[n] for n in kept]),
            array("q", [self.steps[n] for n in kept]),
            array("q", [self.times[n] for n in kept]),
            names,
        )


def columns_of(reports: Iterable[Reported]) -> Columns:
    """Reports as columns."""
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
    packed = {name: _column(at, values, len(offsets)) for name, (at, values) in names.items()}
    return Columns(offsets, steps, times, packed)


def joined(parts: Sequence[Columns]) -> Columns:
    """The reports of all parts, which follow each other; of what two parts have, the first's."""
    offsets, steps, times = array("q"), array("q"), array("q")
    names: dict[str, tuple[list[int], list[Values]]] = {}
    for part in parts:
        fresh = part.behind(offsets[-1]) if offsets else part
        for name, column in fresh.names.items():
            at, pieces = names.setdefault(name, ([], []))
            base = len(offsets)
            everywhere = range(base, base + len(fresh))
            at.extend(everywhere if column.at is None else (base + place for place in column.at))
            pieces.append(column.values)
        offsets.extend(fresh.offsets)
        steps.extend(fresh.steps)
        times.extend(fresh.times)
    packed = {
        name: _placed(at, _together(pieces), len(offsets)) for name, (at, pieces) in names.items()
    }
    return Columns(offsets, steps, times, packed)


def reported(offset: int, line: Mapping[str, Any]) -> Reported | None:
    """A line of metrics as a report, None for one that is not what it should be: a trial may write
    anything.
    """
    steps, time_ms = _whole(line.get("steps_completed")), _whole(line.get("time_ms", 0))
    metrics = line.get("metrics")
    if steps is None or time_ms is None or not isinstance(metrics, Mapping):
        return None
    return Reported(offset, steps, time_ms, metrics)


def is_number(value: object) -> bool:
    """Whether a value has a place in a chart: finite, and within the range of a float."""
    if isinstance(value, bool) or not isinstance(value, int | float):
        return False
    try:
        return isfinite(value)
    except OverflowError:
        return False


def _whole(value: object) -> int | None:
    if isinstance(value, float) and value.is_integer():
        value = int(value)
    is_whole = isinstance(value, int) and not isinstance(value, bool) and 0 <= value < WHOLE_MAX
    return value if is_whole and isinstance(value, int) else None


def _column(at: list[int], values: list[Any], reports: int) -> Column:
    return _placed(at, _packed(values), reports)


def _placed(at: list[int], values: Values, reports: int) -> Column:
    return Column(values, None if len(at) == reports else array("I", at))


def _packed(values: list[Any]) -> Values:
    """An array where it gives back exactly what it was given."""
    kinds = set(map(type, values))
    if kinds == {float} and all(map(isfinite, values)):
        return array("d", values)
    if kinds == {int}:
        try:
            return array("q", values)
        except OverflowError:
            return values
    return values


def _together(pieces: Sequence[Values]) -> Values:
    first = pieces[0]
    kinds = {piece.typecode if isinstance(piece, array) else "" for piece in pieces}
    if isinstance(first, array) and len(kinds) == 1:
        packed: array[Any] = array(first.typecode)
        for piece in pieces:
            packed.extend(piece)
        return packed
    return _packed([value for piece in pieces for value in piece])
