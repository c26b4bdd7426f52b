"""Summaries of reports, from which tables of metrics and charts of long series are made without the
reports themselves.

A summary has, for each metric, its count, mean and bounds, and the extremes of every BUCKET values,
which are the points of its chart.
"""

from __future__ import annotations

from array import array
from bisect import bisect_left
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from heapq import nlargest
from math import fsum
from operator import sub

from control_plane.metrics.columns import Columns
from control_plane.metrics.lttb import extremes

# Two of this many points are kept: from 16,384 reports on that is 4 times a chart of 500 points.
BUCKET = 16
# Moments that a summary keeps of all its reports: between two of them time is taken to pass evenly.
MOMENTS_MAX = 64


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
class Moments:
    """When some steps were reported, in epoch milliseconds; both arrays ascend."""

    steps: array[int] = field(default_factory=lambda: array("q"))
    times: array[int] = field(default_factory=lambda: array("q"))

    def time_at(self, steps: int) -> int | None:
        """The time of a step, between two known ones by its distance; None without any."""
        if not self.steps:
            return None
        place = bisect_left(self.steps, steps)
        if place == len(self.steps):
            return self.times[-1]
        if place == 0 or self.steps[place] == steps:
            return self.times[place]
        low, high = self.steps[place - 1], self.steps[place]
        early, late = self.times[place - 1], self.times[place]
        return early + (late - early) * (steps - low) // (high - low)


@dataclass(frozen=True, slots=True)
class Summary:
    """The summary of one segment: the number of reports, the bounds of their steps and offsets, the
    summaries of the metrics by name, and moments, of which older summaries have none.
    """

    reports: int
    steps_min: int
    steps_max: int
    first_offset: int
    last_offset: int
    names: Mapping[str, NameSummary]
    moments: Moments = field(default_factory=Moments)


def summarise_columns(columns: Columns) -> Summary:
    """Summarise the reports, one or more."""
    names = {}
    for name in columns.names:
        steps, values = columns.numeric_values(name)
        if values:
            names[name] = summarise_numbers(steps, values)
    bounds = (min(columns.steps), max(columns.steps), columns.offsets[0], columns.offsets[-1])
    moments = thin_moments(report_moments(columns), MOMENTS_MAX)
    return Summary(len(columns), *bounds, names, moments)


def report_moments(columns: Columns) -> Moments:
    """The moments of reports. One without a time, or of no later step than one before, has none,
    and none is earlier than the one before: clocks may be set back.
    """
    return join_moments([Moments(columns.steps, columns.times)])


def join_moments(parts: Iterable[Moments]) -> Moments:
    """Join the moments of reports that follow each other, in any order of their steps."""
    joined = Moments()
    for part in parts:
        for steps, time_ms in zip(part.steps, part.times, strict=True):
            if time_ms > 0 and (not joined.steps or steps > joined.steps[-1]):
                joined.steps.append(steps)
                joined.times.append(max(time_ms, joined.times[-1] if joined.times else 0))
    return joined


def thin_moments(moments: Moments, most: int) -> Moments:
    """At most so many of the moments (4 or more): the first, the last, some evenly, and both ends
    of the longest pauses.
    """
    count = len(moments.steps)
    if count <= most:
        return moments
    evenly = most // 2
    kept = {n * (count - 1) // (evenly - 1) for n in range(evenly)}
    pauses = list(map(sub, moments.times[1:], moments.times))
    longest = nlargest((most - evenly) // 2, range(count - 1), key=pauses.__getitem__)
    places = sorted(kept.union(longest, (n + 1 for n in longest)))
    return Moments(
        array("q", [moments.steps[n] for n in places]),
        array("q", [moments.times[n] for n in places]),
    )


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
