"""Summaries of reports: what a table of names or a chart needs without the reports themselves.

A summary keeps, of each name, its count, mean and bounds, and the extremes of every BUCKET values:
what a chart of a long series is drawn from.
"""

from __future__ import annotations

from array import array
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from math import fsum

from control_plane.metrics.columns import Columns
from control_plane.metrics.lttb import extremes

# Two points of this many are kept: from 16,384 reports on that is 4 times a chart of 500 points.
BUCKET = 16


@dataclass(frozen=True, slots=True)
class NameSummary:
    """The numbers of one name: `steps` and `values` are points of a chart, `last` the latest."""

    count: int
    mean: float
    minimum: float
    maximum: float
    last_steps: int
    last: float
    steps: array[int]
    values: array[float]


@dataclass(frozen=True, slots=True)
class Summary:
    """Of one segment: how many reports, the bounds of their steps and offsets, and the numbers by
    name.
    """

    reports: int
    steps_min: int
    steps_max: int
    first_offset: int
    last_offset: int
    names: Mapping[str, NameSummary]


def summarised(columns: Columns) -> Summary:
    """The summary of one report or more."""
    names = {}
    for name in columns.names:
        steps, values = columns.numbers(name)
        if values:
            names[name] = summary_of_numbers(steps, values)
    bounds = (min(columns.steps), max(columns.steps), columns.offsets[0], columns.offsets[-1])
    return Summary(len(columns), *bounds, names)


def summary_of_numbers(
    steps: array[int], values: array[float], *, thinned: bool = True
) -> NameSummary:
    """The summary of one name's numbers, of which there is one or more."""
    kept: Sequence[int] = extremes(values, BUCKET) if thinned else range(len(values))
    return NameSummary(
        count=len(values),
        mean=_mean(values),
        minimum=min(values),
        maximum=max(values),
        last_steps=steps[-1],
        last=values[-1],
        steps=array("q", [steps[n] for n in kept]) if thinned else steps,
        values=array("d", [values[n] for n in kept]) if thinned else values,
    )


def combined(parts: Iterable[NameSummary]) -> NameSummary:
    """One name over segments that follow each other, one or more."""
    found = list(parts)
    count = sum(part.count for part in found)
    steps, values = array("q"), array("d")
    for part in found:
        steps.extend(part.steps)
        values.extend(part.values)
    return NameSummary(
        count=count,
        # Weighted one by one: the sum of all values may be beyond a float.
        mean=fsum(part.mean * (part.count / count) for part in found),
        minimum=min(part.minimum for part in found),
        maximum=max(part.maximum for part in found),
        last_steps=found[-1].last_steps,
        last=found[-1].last,
        steps=steps,
        values=values,
    )


def _mean(values: array[float]) -> float:
    try:
        return fsum(values) / len(values)
    except OverflowError:
        return fsum(value / len(values) for value in values)
