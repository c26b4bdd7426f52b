"""Metric series: one group of a trial's metrics as numbers to draw, cached while it is looked at.

A series holds all reports of the group that count: a row is read once, and later only what is new.
Up to EXACT_MAX reports it holds all numbers; a longer one holds summaries, which large rows carry
ready-made, so that even a million reports are read without unpacking them.
"""

from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from itertools import chain
from threading import Lock
from typing import NamedTuple

from control_plane.actors import addresses
from control_plane.agents.metric_rows import (
    PAGE_ROWS,
    Segment,
    Stream,
    epoch_range,
    group_range,
    read_first_segment,
    read_segments,
    to_segment,
)
from control_plane.bounded_cache import BoundedCache
from control_plane.metrics.columns import Columns, join_columns
from control_plane.metrics.segment import decode_summary
from control_plane.metrics.summary import (
    Moments,
    NameSummary,
    Summary,
    combine_summaries,
    join_moments,
    report_moments,
    summarise_columns,
    summarise_numbers,
)
from control_plane.objects.store import ObjectStore
from control_plane.state.table import StateTable

# Reports up to which every number is kept, and up to which a tail of small rows is not summarised.
EXACT_MAX = 16_384
TAIL_MAX = 2_048
# Bytes of a series that are read again with what is new, rather than in two readings without them.
REREAD_BYTES_MAX = 4 * 1024
# Names beyond these are not drawn: a trial may make up a new one for each report.
NAMES_MAX = 500
# Numbers kept in memory over all series, of 16 bytes each; what one series counts for besides its
# own; and charts of one series.
NUMBERS_MAX = 3_000_000
SERIES_NUMBERS = 200
CHARTS_MAX = 200


@dataclass(eq=False)
class MetricSeries:
    """The numbers of one group of a trial. `version` counts its changes; access is under `lock`."""

    lock: Lock = field(default_factory=Lock)
    version: int = 0
    ends: dict[int, float] = field(default_factory=dict)
    parts: dict[Stream, "_StreamPart"] = field(default_factory=dict)
    charts: dict[object, tuple[int, bytes]] = field(default_factory=dict)
    names: dict[str, NameSummary] = field(default_factory=dict)
    named_at: int = -1
    joined_moments: tuple[int, Moments] = field(default_factory=lambda: (-1, Moments()))

    def summaries(self) -> dict[str, NameSummary]:
        """The summary of each name over all reports."""
        if self.named_at != self.version:
            self.names, self.named_at = self._combined_summaries(), self.version
        return self.names

    def moments(self) -> Moments:
        """The moments of all reports."""
        if self.joined_moments[0] != self.version:
            parts = (moments for part in self.parts.values() for moments in part.moments())
            self.joined_moments = self.version, join_moments(parts)
        return self.joined_moments[1]

    def cached_chart(self, key: object, draw: Callable[[], bytes]) -> bytes:
        """The chart of this key as of now, drawn unless it is cached."""
        cached = self.charts.get(key)
        if cached is None or cached[0] != self.version:
            if len(self.charts) >= CHARTS_MAX:
                self.charts.clear()
            cached = self.charts[key] = self.version, draw()
        return cached[1]

    def count_numbers(self) -> int:
        """The approximate count of numbers in memory."""
        return sum(part.count_numbers() for part in self.parts.values())

    def _combined_summaries(self) -> dict[str, NameSummary]:
        summaries: dict[str, list[NameSummary]] = {}
        for part in self.parts.values():
            for names in part.summaries():
                for name, summary in names.items():
                    if name in summaries or len(summaries) < NAMES_MAX:
                        summaries.setdefault(name, []).append(summary)
        return {name: combine_summaries(parts) for name, parts in summaries.items()}


@dataclass(eq=False)
class _StreamPart:
    """One stream of a series: summaries first, then whole reports. `read`: up to that offset, in
    rows up to the key `sort`.
    """

    read: int = 0
    sort: str = ""
    size: int = 0
    is_exact: bool = True
    known: set[str] = field(default_factory=set)
    read_summaries: list[Summary] = field(default_factory=list)
    tail: list[Columns] = field(default_factory=list)
    in_tail: int = 0

    def add_segment(self, segment: Segment, end: float, objects: ObjectStore) -> bool:
        """Add the reports of a row that were not read; True if there were any."""
        self.sort = max(self.sort, segment.row.key.sort)
        self.size += len(segment.row.body)
        summary = None if self.is_exact else decode_summary(segment.row.body)
        if summary is not None and summary.first_offset > self.read and summary.steps_max < end:
            self._summarise_tail()
            self.read_summaries.append(summary)
            self.read = summary.last_offset
            return True
        columns = segment.read_columns(objects).reports_after(self.read)
        if not len(columns):
            return False
        self.read = columns.offsets[-1]
        if max(columns.steps) >= end:
            columns = columns.select_positions(
                [n for n, steps in enumerate(columns.steps) if steps < end]
            )
        if len(columns):
            self.tail.append(self._limit_names(columns))
            self.in_tail += len(columns)
        if self.in_tail > (EXACT_MAX if self.is_exact else TAIL_MAX):
            self.is_exact = False
            self._summarise_tail()
        return True

    def _limit_names(self, columns: Columns) -> Columns:
        """The reports without the names beyond NAMES_MAX, which would fill the memory."""
        new = [name for name in columns.names if name not in self.known]
        room = NAMES_MAX - len(self.known)
        self.known.update(new[:room])
        if len(new) <= room:
            return columns
        names = {name: column for name, column in columns.names.items() if name in self.known}
        return replace(columns, names=names)

    def summaries(self) -> Iterator[dict[str, NameSummary]]:
        """The summaries by name of each stretch of reports, in order."""
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
        """The moments of each stretch of reports, in order."""
        for summary in self.read_summaries:
            yield summary.moments
        for columns in self.tail:
            yield report_moments(columns)

    def count_numbers(self) -> int:
        """The count of numbers in memory."""
        summarised_count = sum(
            len(name.steps) for part in self.read_summaries for name in part.names.values()
        )
        return summarised_count + sum(
            len(columns) + sum(len(column.values) for column in columns.names.values())
            for columns in self.tail
        )

    def _summarise_tail(self) -> None:
        if self.tail:
            self.read_summaries.append(summarise_columns(join_columns(self.tail)))
            self.tail, self.in_tail = [], 0


class _RowSource(NamedTuple):
    """The place of the rows of one group of a trial, or of those that a rank keeps apart."""

    table: StateTable
    objects: ObjectStore
    trial_id: int
    group: str
    rank: int | None


_SeriesKey = tuple[int, str, int | None]


class MetricSeriesCache:
    """The series of one cluster that were drawn last. Safe to share between threads."""

    def __init__(self) -> None:
        self._lock = Lock()
        self._kept: BoundedCache[_SeriesKey, MetricSeries] = BoundedCache(NUMBERS_MAX)

    def __len__(self) -> int:
        return len(self._kept)

    def draw_chart(
        self,
        table: StateTable,
        objects: ObjectStore,
        trial_id: int,
        group: str,
        draw: Callable[[MetricSeries], bytes],
        rank: int | None = None,
    ) -> bytes:
        """Read what is new of the series and return what `draw` makes of it; with a `rank`, of what
        that process keeps apart from its trial's. Raises TableError, OSError.
        """
        key = trial_id, group, rank
        with self._lock:
            series = self._kept.find(key)
            if series is None:
                series = MetricSeries()
                self._kept.keep(key, series, SERIES_NUMBERS)
        with series.lock:
            _refresh(_RowSource(table, objects, trial_id, group, rank), series)
            chart = draw(series)
            numbers = series.count_numbers() + SERIES_NUMBERS
        with self._lock:
            # The largest series there are count as all that is kept, so that the one that is
            # looked at stays.
            self._kept.keep(key, series, min(numbers, NUMBERS_MAX))
        return chart


def _refresh(source: _RowSource, series: MetricSeries) -> None:
    """Read what is new of the series, or all of it when a new allocation has begun."""
    if not series.ends or not _read_new(source, series):
        _read_all(source, series)


def _read_new(source: _RowSource, series: MetricSeries) -> bool:
    """Read the reports of the latest allocation that are new; False if a later one has begun."""
    latest = max(series.ends)
    known = {stream: part for stream, part in series.parts.items() if stream.epoch == latest}
    if not known:
        return False
    for start, stop in _new_ranges(source, latest, known):
        for segment in read_segments(source.table, source.trial_id, start, stop):
            if not _add_segment(source, series, segment):
                return False
    series.parts = dict(sorted(series.parts.items()))
    return True


def _new_ranges(
    source: _RowSource, latest: int, known: Mapping[Stream, _StreamPart]
) -> Iterator[tuple[str, str]]:
    """The ranges of sort keys that have what is new: before, between and behind the streams that
    are known, and behind what was read of each; or one over them all, where that was little.
    """
    first = epoch_range(source.group, latest, source.rank)[0]
    last = group_range(source.group, source.rank)[1]
    if sum(part.size for part in known.values()) <= REREAD_BYTES_MAX:
        yield first, last
        return
    starts = [first, *(f"{part.sort}!" for part in known.values())]
    stops = [*(stream.range_start for stream in known), last]
    yield from zip(starts, stops, strict=True)


def _read_all(source: _RowSource, series: MetricSeries) -> None:
    """Read the whole series: a short one, whose rows fit into a page, at once."""
    first, last = group_range(source.group, source.rank)
    page = source.table.query(addresses.trial(source.trial_id), first, last, limit=PAGE_ROWS)
    segments = [to_segment(row) for row in page.rows]
    if not segments and not series.parts:
        return
    series.parts.clear()
    series.version += 1
    later: Iterable[Segment] = ()
    if page.next_sort is None:
        firsts = {segment.stream.epoch: segment for segment in reversed(segments)}
    else:
        later = read_segments(source.table, source.trial_id, page.next_sort, last)
        firsts = dict(_read_first_segments(source))
    series.ends = _end_steps(source, firsts)
    for segment in chain(segments, later):
        if not _add_segment(source, series, segment):
            # An allocation that has begun just now: the next look reads everything again.
            break
    series.parts = dict(sorted(series.parts.items()))


def _add_segment(source: _RowSource, series: MetricSeries, segment: Segment) -> bool:
    """Add the reports of a row that were not read; False for one of an allocation that is not
    known.
    """
    end = series.ends.get(segment.stream.epoch)
    if end is None:
        return False
    part = series.parts.setdefault(segment.stream, _StreamPart())
    # What is in the row of the key that was read last, or before it, was read.
    if segment.row.key.sort > part.sort:
        series.version += part.add_segment(segment, end, source.objects)
    return True


def _read_first_segments(source: _RowSource) -> Iterator[tuple[int, Segment]]:
    """Read the first row of each allocation."""
    first, last = group_range(source.group, source.rank)
    while segment := read_first_segment(source.table, source.trial_id, first, last):
        epoch = segment.stream.epoch
        yield epoch, segment
        first = epoch_range(source.group, epoch, source.rank)[1]


def _end_steps(source: _RowSource, firsts: Mapping[int, Segment]) -> dict[int, float]:
    """The step before which each allocation's reports count, by the first row of each."""
    began = {
        epoch: segment.read_first_step(source.objects)
        for epoch, segment in firsts.items()
        if epoch > min(firsts)
    }
    return {
        epoch: min((began[other] for other in began if other > epoch), default=float("inf"))
        for epoch in firsts
    }
