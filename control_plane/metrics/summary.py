"""Summaries of reports, from which tables of metrics and charts of long series are made without the
reports themselves.

A summary has, for each metric, its count, mean and bounds, and the extremes of every BUCKET values,
which are the points of its chart.
"""

from __future__ import annotations

from array import array
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from math import fsum

from control_plane.metrics.columns import Columns
from control_plane.metrics.lttb import extremes

# Two of this many points are kept: from 16,384 reports on that is 4 times a chart of 500 points.
BUCKET = 16


@dataclass(frozen=True, slots=True)
class NameSummary:
    """The summary of one metric: `steps` and `values` are points of its chart, `last` is the latest
    value.
    """

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
    """The summary of one segment: the number of reports, the bounds of their steps and offsets, and
    the summaries of the metrics by name.
    """

    reports: int
    steps_min: int
    steps_max: int
    first_offset: int
    last_offset: int
    names: Mapping[str, NameSummary]


def summarise_columns(columns: Columns) -> Summary:
    """Summarise the reports, one or more."""
    names = {}
    for name in columns.names:
        steps, values = columns.numeric_values(name)
        if values:
            names[name] = summarise_numbers(steps, values)
    bounds = (min(columns.steps), max(columns.steps), columns.offsets[0], columns.offsets[-1])
    return Summary(len(columns), *bounds, names)


def summarise_numbers(
    steps: array[int], values: array[float], *, thinned: bool = True
) -> NameSummary:
    """Summarise the values of one metric, one or more; all are points if not `thinned`."""
    points: Sequence[int] = extremes(values, BUCKET) if thinned else range(len(values))
    return NameSummary(
        count=len(values),
        mean=_mean(values),
        minimum=min(values),
        maximum=max(values),
        last_steps=steps[-1],
        last=values[-1],
        steps=array("q", [steps[n] for n in points]) if thinned else steps,
        values=array("d", [values[n] for n in points]) if thinned else values,
    )


def combine_summaries(parts: Iterable[NameSummary]) -> NameSummary:
    """Combine the summaries of one metric in segments that follow each other, one or more."""
    summaries = list(parts)
    count = sum(part.count for part in summaries)
    steps, values = array("q"), array("d")
    for part in summaries:
        steps.extend(part.steps)
        values.extend(part.values)
    return NameSummary(
        count=count,
        # Weighted one by one: the sum of all values may be beyond a float.
        mean=fsum(part.mean * (part.count / count) for part in summaries),
        minimum=min(part.minimum for part in summaries),
        maximum=max(part.maximum for part in summaries),
        last_steps=summaries[-1].last_steps,
        last=summaries[-1].last,
        steps=steps,
        values=values,
    )


def _mean(values: array[float]) -> float:
    try:
        return fsum(values) / len(values)
    except OverflowError:
        return fsum(value / len(values) for value in values)
