"""Metric series: the numbers of a group of a trial's metrics, with cached charts.

A series holds all valid reports of the group. A series of up to EXACT_MAX reports holds all
numbers. A longer series holds summaries.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from threading import Lock
from typing import NamedTuple

from control_plane.agents.metric_rows import Segment, Stream
from control_plane.metrics.columns import Columns
from control_plane.metrics.summary import Moments, NameSummary, combine_summaries, join_moments
from control_plane.objects.store import ObjectStore
from control_plane.queries.stream_reports import NAMES_MAX, StreamReports
from control_plane.queries.void_reports import Replaced, RunCuts

CHARTS_MAX = 200
"""The most cached charts of a series."""


class VoidReports(NamedTuple):
    """The limits of the valid reports of a series."""

    lasts: Mapping[int, float]
    """The last valid step of each run, by the run's epoch (its number within the trial)."""
    replaced: Mapping[int, Replaced]
    """The values of each run that later runs reported again, by the run's epoch."""

    def select_valid(self, epoch: int, columns: Columns) -> Columns:
        """Return the reports of a run without the void values, which later runs discarded or
        repeated.

        All reports of an unknown run are valid.

        Args:
            epoch: the number of the run within the trial.
            columns: the reports of the run.
        """
        valid = columns.up_to_step(self.lasts.get(epoch, float("inf")))
        return valid.without(self.replaced.get(epoch, {}))


@dataclass(eq=False)
class MetricSeries:
    """The valid numbers of a group of a trial's metrics. Hold `lock` during every access."""

    lock: Lock = field(default_factory=Lock)
    version: int = 0
    """Increases with every change of the series."""
    cuts: RunCuts = field(default_factory=RunCuts)
    """The limits of the valid reports of the trial's runs."""
    lasts: dict[int, float] = field(default_factory=dict)
    """The last valid step of each run, by the run's epoch (its number within the trial). Empty
    before rows are read.
    """
    replaced: dict[int, Replaced] = field(default_factory=dict)
    """The values of each run that later runs reported again, by the run's epoch."""
    parts: dict[Stream, StreamReports] = field(default_factory=dict)
    """The reports of each stream."""
    charts: dict[object, tuple[int, bytes]] = field(default_factory=dict)
    """Cached charts by key, each with the `version` that the chart shows."""
    names: dict[str, NameSummary] = field(default_factory=dict)
    """The cached result of `summaries`."""
    named_at: int = -1
    """The `version` at which `names` was computed."""
    joined_moments: tuple[int, Moments] = field(default_factory=lambda: (-1, Moments()))
    """The cached result of `moments`, with the `version` at which it was computed."""

    def add_segment(self, segment: Segment, objects: ObjectStore) -> bool:
        """Add the unread reports of a row, and increase `version` if the row had unread reports.

        Return False, without a change, if the row belongs to a run outside `lasts`. Otherwise
        return True. Raises OSError if the object store does not answer, and ValueError if a newer
        release has encoded the row.
        """
        epoch = segment.stream.epoch
        last = self.lasts.get(epoch)
        if last is None:
            return False
        is_unread = self.is_unread(segment)
        part = self.parts.setdefault(segment.stream, StreamReports())
        if is_unread:
            replaced = self.replaced.get(epoch, {})
            self.version += part.add_segment(segment, last, replaced, objects)
        return True

    def is_unread(self, segment: Segment) -> bool:
        """Return whether a row may have unread reports: the key follows the stream's last key read.

        True for every row of a new stream.
        """
        part = self.parts.get(segment.stream)
        return part is None or segment.row.key.sort > part.sort

    def sort_streams(self) -> None:
        """Put `parts` into the order of the streams, which is that of runs and writers."""
        self.parts = dict(sorted(self.parts.items()))

    def summaries(self) -> dict[str, NameSummary]:
        """Return the summary of each metric name over all reports. Cached per `version`.

        Names without a finite number are left out, and so are names beyond NAMES_MAX. Empty without
        reports.
        """
        if self.named_at != self.version:
            self.names, self.named_at = self._combined_summaries(), self.version
        return self.names

    def moments(self) -> Moments:
        """Return the times of reported steps, both ascending. Cached per `version`.

        Empty without reports. Of a long series, earlier reports are summarised, and the times of
        only some of their steps are known.
        """
        if self.joined_moments[0] != self.version:
            parts = (moments for part in self.parts.values() for moments in part.moments())
            self.joined_moments = self.version, join_moments(parts)
        return self.joined_moments[1]

    def cached_chart(self, key: object, draw: Callable[[], bytes]) -> bytes:
        """Return the cached chart of a key, or draw and cache the chart.

        A chart is drawn again after the series has changed. If CHARTS_MAX charts are cached, a new
        chart first removes all of them. Errors of `draw` are raised, and nothing is cached.
        """
        cached = self.charts.get(key)
        if cached is None or cached[0] != self.version:
            if len(self.charts) >= CHARTS_MAX:
                self.charts.clear()
            cached = self.charts[key] = self.version, draw()
        return cached[1]

    def count_numbers(self) -> int:
        """Return the approximate count of numbers that the series holds in memory."""
        return sum(part.count_numbers() for part in self.parts.values())

    def _combined_summaries(self) -> dict[str, NameSummary]:
        """Return the summary of each name over all streams, at most NAMES_MAX names."""
        summaries: dict[str, list[NameSummary]] = {}
        for part in self.parts.values():
            for names in part.summaries():
                for name, summary in names.items():
                    if name in summaries or len(summaries) < NAMES_MAX:
                        summaries.setdefault(name, []).append(summary)
        return {name: combine_summaries(parts) for name, parts in summaries.items()}
