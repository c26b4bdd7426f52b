"""The reports of a stream of a trial's metrics in memory, for charts.

The latest reports are exact. A stream with more than EXACT_MAX reports holds summaries of the
earlier reports. Large rows store their own summaries, so that a million reports are read without
decoding them.
"""

from collections.abc import Iterator
from dataclasses import dataclass, field, replace

from control_plane.agents.metric_rows import Segment
from control_plane.metrics.columns import Columns, join_columns
from control_plane.metrics.segment import decode_summary
from control_plane.metrics.summary import (
    Moments,
    NameSummary,
    Summary,
    report_moments,
    summarise_columns,
    summarise_numbers,
)
from control_plane.objects.store import ObjectStore
from control_plane.queries.void_reports import Replaced

EXACT_MAX = 16_384
"""The number of reports above which a stream is summarised."""
TAIL_MAX = 2_048
"""The most exact reports of a summarised stream."""
NAMES_MAX = 500
"""The most metric names of a stream and of a series.

A trial may report a new name each time; more names are dropped.
"""


@dataclass(eq=False)
class StreamReports:
    """The valid reports of a stream: summaries of earlier reports, and the latest reports exactly.

    A stream is the sequence of one group's reports by one writer of an allocation.
    """

    read: int = 0
    """The offset of the last report read."""
    sort: str = ""
    """The sort key of the last row read; "" before the first row."""
    size: int = 0
    """The bytes of all rows read."""
    is_exact: bool = True
    """Whether the stream holds all reports exactly, without summaries."""
    known: set[str] = field(default_factory=set)
    """The metric names of the exact reports, at most NAMES_MAX."""
    read_summaries: list[Summary] = field(default_factory=list)
    """Summaries of the reports before `tail`, in order."""
    tail: list[Columns] = field(default_factory=list)
    """The latest reports, exactly, in order."""
    in_tail: int = 0
    """The number of reports in `tail`."""

    def add_segment(
        self, segment: Segment, last: float, replaced: Replaced, objects: ObjectStore
    ) -> bool:
        """Add the unread reports of a row, without void values.

        Reports of a row that was deleted from the object store count as read already.

        Args:
            segment: the row.
            last: the last valid step of the stream's run.
            replaced: the values of the run that later runs reported again.
            objects: the object store, which holds the reports of full rows.

        Returns:
            True if the row had unread reports, even if all of them are void. Otherwise False.

        Raises:
            OSError: the object store does not answer.
            ValueError: a newer release has encoded the row.
        """
        self.sort = max(self.sort, segment.row.key.sort)
        self.size += len(segment.row.body)
        summary = None if self.is_exact else decode_summary(segment.row.body)
        is_whole = summary is not None and _is_all_valid(summary, last, replaced)
        if summary is not None and is_whole and summary.first_offset > self.read:
            self._summarise_tail()
            self.read_summaries.append(summary)
            self.read = summary.last_offset
            return True
        columns = segment.read_columns(objects).reports_after(self.read)
        if not len(columns):
            return False
        self.read = columns.offsets[-1]
        columns = columns.up_to_step(last).without(replaced)
        if len(columns):
            self.tail.append(self._limit_names(columns))
            self.in_tail += len(columns)
        if self.in_tail > (EXACT_MAX if self.is_exact else TAIL_MAX):
            self.is_exact = False
            self._summarise_tail()
        return True

    def summaries(self) -> Iterator[dict[str, NameSummary]]:
        """Yield the summaries by metric name of each stretch of consecutive reports, in order.

        The exact reports are the last stretch, and their summary has all points. A name without a
        finite number in a stretch is left out there.
        """
        for summary in self.read_summaries:
            yield dict(summary.names)
        if len(self.tail) > 1:
            self.tail = [join_columns(self.tail)]
        for columns in self.tail:
            numbers = {name: columns.numeric_values(name) for name in columns.names}
            yield {
                name: summarise_numbers(steps, values, thinned=False)
                for name, (steps, values) in numbers.items()
                if values
            }

    def moments(self) -> Iterator[Moments]:
        """Yield the times of reported steps, for each stretch of consecutive reports, in order."""
        for summary in self.read_summaries:
            yield summary.moments
        for columns in self.tail:
            yield report_moments(columns)

    def count_numbers(self) -> int:
        """Return the approximate count of numbers that the stream holds in memory."""
        summarised_count = sum(
            len(name.steps) for part in self.read_summaries for name in part.names.values()
        )
        return summarised_count + sum(
            len(columns) + sum(len(column.values) for column in columns.names.values())
            for columns in self.tail
        )

    def _limit_names(self, columns: Columns) -> Columns:
        """Return the reports without names beyond NAMES_MAX, which would fill the memory.

        Add the remaining names to `known`.
        """
        new = [name for name in columns.names if name not in self.known]
        room = NAMES_MAX - len(self.known)
        self.known.update(new[:room])
        if len(new) <= room:
            return columns
        names = {name: column for name, column in columns.names.items() if name in self.known}
        return replace(columns, names=names)

    def _summarise_tail(self) -> None:
        """Replace the exact reports, if any, by a summary."""
        if self.tail:
            self.read_summaries.append(summarise_columns(join_columns(self.tail)))
            self.tail, self.in_tail = [], 0


def _is_all_valid(summary: Summary, last: float, replaced: Replaced) -> bool:
    """Return whether all values of a summarised row are certainly valid.

    False if a report is later than `last`. Also False if a later run reported any metric again at a
    step between the row's lowest and highest step.

    Args:
        summary: the row's summary.
        last: the last valid step of the row's run.
        replaced: the values of the run that later runs reported again.
    """
    if summary.steps_max > last:
        return False
    return not any(
        summary.steps_min <= step <= summary.steps_max
        for steps in replaced.values()
        for step in steps
    )
