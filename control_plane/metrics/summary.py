"""Summaries of metric reports.

Tables of metrics and charts of long series use summaries instead of the reports. A summary
contains, for each metric, the count, mean, minimum and maximum, and the extremes of every BUCKET
values as the points of a chart.
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

# A summary keeps 2 of every 16 points. From 16,384 reports, this is 4 times the number of points in
# a chart of 500 points.
BUCKET = 16
# The maximum number of moments in a summary. Times between two moments are interpolated linearly.
MOMENTS_MAX = 64


@dataclass(frozen=True, slots=True)
class NameSummary:
    """The summary of a metric."""

    count: int
    """The number of values."""
    mean: float
    minimum: float
    maximum: float
    last_steps: int
    """The steps of the latest value."""
    last: float
    """The latest value."""
    steps: array[int]
    """The steps of the points of the chart."""
    values: array[float]
    """The values of the points of the chart."""


@dataclass(frozen=True, slots=True)
class Moments:
    """The times at which some steps were reported. Both arrays ascend and have the same length."""

    steps: array[int] = field(default_factory=lambda: array("q"))
    times: array[int] = field(default_factory=lambda: array("q"))
    """The times in epoch ms."""

    def time_at(self, steps: int) -> int | None:
        """Return the time of a step in epoch ms, interpolated between known steps.

        Before the first known step, return its time; after the last known step, return its time.
        Return None without known steps.
        """
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
    """The summary of the reports of a segment."""

    reports: int
    """The number of reports."""
    steps_min: int
    """The smallest steps of a report."""
    steps_max: int
    first_offset: int
    """The offset of the first report."""
    last_offset: int
    names: Mapping[str, NameSummary]
    """The summary of each metric by name."""
    moments: Moments = field(default_factory=Moments)
    """The times of some steps. Empty in summaries of older releases."""


def summarise_columns(columns: Columns) -> Summary:
    """Summarise reports. `columns` must have at least one report."""
    names = {}
    for name in columns.names:
        steps, values = columns.numeric_values(name)
        if values:
            names[name] = summarise_numbers(steps, values)
    bounds = (min(columns.steps), max(columns.steps), columns.offsets[0], columns.offsets[-1])
    moments = thin_moments(report_moments(columns), MOMENTS_MAX)
    return Summary(len(columns), *bounds, names, moments)


def report_moments(columns: Columns) -> Moments:
    """Return the moments of reports, filtered as in `join_moments`."""
    return join_moments([Moments(columns.steps, columns.times)])


def join_moments(parts: Iterable[Moments]) -> Moments:
    """Join moments of consecutive reports into ascending moments.

    Skip a moment without a time, and a moment whose step is not greater than all earlier steps. A
    time that is earlier than the previous time is replaced by the previous time, because clocks may
    be set back.
    """
    joined = Moments()
    for part in parts:
        for steps, time_ms in zip(part.steps, part.times, strict=True):
            if time_ms > 0 and (not joined.steps or steps > joined.steps[-1]):
                joined.steps.append(steps)
                joined.times.append(max(time_ms, joined.times[-1] if joined.times else 0))
    return joined


def thin_moments(moments: Moments, most: int) -> Moments:
    """Return at most `most` of the moments: the first, the last, and a selection in between.

    Half of the moments are spread evenly. The others are the ends of the longest pauses between
    moments.

    Args:
        most: the maximum number of moments, 4 or more.
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
    """Summarise the values of a metric. At least one value is required.

    Args:
        thinned: keep only the extremes of every BUCKET values as points. Otherwise, keep all
            points.
    """
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
    """Combine the summaries of a metric from consecutive segments. At least one is required."""
    summaries = list(parts)
    count = sum(part.count for part in summaries)
    steps, values = array("q"), array("d")
    for part in summaries:
        steps.extend(part.steps)
        values.extend(part.values)
    return NameSummary(
        count=count,
        # Each mean is weighted separately, because the sum of all values may exceed the range of
        # floats.
        mean=fsum(part.mean * (part.count / count) for part in summaries),
        minimum=min(part.minimum for part in summaries),
        maximum=max(part.maximum for part in summaries),
        last_steps=summaries[-1].last_steps,
        last=summaries[-1].last,
        steps=steps,
        values=values,
    )


def _mean(values: array[float]) -> float:
    """Return the mean of the values, also if the sum exceeds the range of floats."""
    try:
        return fsum(values) / len(values)
    except OverflowError:
        return fsum(value / len(values) for value in values)
