"""Metric series: the numbers of a group of a trial's metrics, cached for charts.

A series holds all valid reports of the group. Each row is read once; later requests read new rows
only. A series of up to EXACT_MAX reports holds all numbers. A longer series holds summaries. Large
rows store their own summaries, so that a million reports are read without decoding them.
"""

from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from itertools import chain
from threading import Lock
from typing import NamedTuple, TypeVar

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
from control_plane.queries.void_reports import (
    Replaced,
    RunCuts,
    cuts_by_first_steps,
    join_repeats,
)
from control_plane.state.table import StateTable

# A stream with more reports than EXACT_MAX is summarised. Its latest reports, at most TAIL_MAX,
# stay exact.
EXACT_MAX = 16_384
TAIL_MAX = 2_048
# Known rows of at most this many bytes are read again together with the new rows. A single query
# costs less than several queries that leave the known rows out.
REREAD_BYTES_MAX = 4 * 1024
# The most metric names of a series. A trial may report a new name each time; more names are
# dropped.
NAMES_MAX = 500
# The most numbers in memory over all series, of 16 bytes each.
NUMBERS_MAX = 3_000_000
# The overhead of a series, as a count of numbers.
SERIES_NUMBERS = 200
# The most cached charts of a series.
CHARTS_MAX = 200


Drawn = TypeVar("Drawn")


@dataclass(eq=False)
class MetricSeries:
    """The valid numbers of a group of a trial's metrics. Hold `lock` during every access."""

    lock: Lock = field(default_factory=Lock)
    version: int = 0
    """Increases with every change of the series."""
    cuts: RunCuts = field(default_factory=RunCuts)
    lasts: dict[int, float] = field(default_factory=dict)
    """The last valid step of each run, by the run's epoch."""
    replaced: dict[int, Replaced] = field(default_factory=dict)
    """The values of each run that later runs reported again, by the run's epoch."""
    parts: dict[Stream, "_StreamPart"] = field(default_factory=dict)
    charts: dict[object, tuple[int, bytes]] = field(default_factory=dict)
    """Cached charts by key, each with the `version` that the chart shows."""
    names: dict[str, NameSummary] = field(default_factory=dict)
    """The cached result of `summaries`."""
    named_at: int = -1
    """The `version` at which `names` was computed."""
    joined_moments: tuple[int, Moments] = field(default_factory=lambda: (-1, Moments()))
    """The cached result of `moments`, with the `version` at which it was computed."""

    def summaries(self) -> dict[str, NameSummary]:
        """Return the summary of each metric name over all reports. Cached per `version`."""
        if self.named_at != self.version:
            self.names, self.named_at = self._combined_summaries(), self.version
        return self.names

    def moments(self) -> Moments:
        """Return the moments of all reports. Cached per `version`."""
        if self.joined_moments[0] != self.version:
            parts = (moments for part in self.parts.values() for moments in part.moments())
            self.joined_moments = self.version, join_moments(parts)
        return self.joined_moments[1]

    def cached_chart(self, key: object, draw: Callable[[], bytes]) -> bytes:
        """Return the cached chart of a key, or draw and cache the chart.

        A chart is drawn again after the series has changed.
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
        summaries: dict[str, list[NameSummary]] = {}
        for part in self.parts.values():
            for names in part.summaries():
                for name, summary in names.items():
                    if name in summaries or len(summaries) < NAMES_MAX:
                        summaries.setdefault(name, []).append(summary)
        return {name: combine_summaries(parts) for name, parts in summaries.items()}


@dataclass(eq=False)
class _StreamPart:
    """The reports of a stream: summaries of earlier reports, and the latest reports exactly."""

    read: int = 0
    """The offset of the last report read."""
    sort: str = ""
    """The sort key of the last row read."""
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
        """Add the unread reports of a row. Leave out void values.

        Args:
            segment: the row.
            last: the last valid step of the stream's run.
            replaced: the values of the run that later runs reported again.
            objects: the object store, which holds the reports of full rows.

        Returns:
            Whether the row had unread reports, even if all of them are void.
        """
        self.sort = max(self.sort, segment.row.key.sort)
        self.size += len(segment.row.body)
        summary = None if self.is_exact else decode_summary(segment.row.body)
        is_whole = summary is not None and _counts_as_whole(summary, last, replaced)
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

    def _limit_names(self, columns: Columns) -> Columns:
        """Return the reports without names beyond NAMES_MAX, which would fill the memory."""
        new = [name for name in columns.names if name not in self.known]
        room = NAMES_MAX - len(self.known)
        self.known.update(new[:room])
        if len(new) <= room:
            return columns
        names = {name: column for name, column in columns.names.items() if name in self.known}
        return replace(columns, names=names)

    def summaries(self) -> Iterator[dict[str, NameSummary]]:
        """Yield the summaries by metric name of each stretch of consecutive reports, in order."""
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
        """Yield the moments of each stretch of consecutive reports, in order."""
        for summary in self.read_summaries:
            yield summary.moments
        for columns in self.tail:
            yield report_moments(columns)

    def count_numbers(self) -> int:
        """Return the count of numbers that the stream holds in memory."""
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


def _counts_as_whole(summary: Summary, last: float, replaced: Replaced) -> bool:
    """Return whether all values of a summarised row are certainly valid.

    `last` is the last valid step of the row's run.
    """
    if summary.steps_max > last:
        return False
    return not any(
        summary.steps_min <= step <= summary.steps_max
        for steps in replaced.values()
        for step in steps
    )


class _RowSource(NamedTuple):
    """The identity of a series, and the stores that hold the rows."""

    table: StateTable
    objects: ObjectStore
    trial_id: int
    group: str
    rank: int | None
    """None for the trial's own reports, or the rank that keeps the reports separate."""
    cuts: RunCuts
    """The limits of the valid reports of the trial's runs."""


class VoidReports(NamedTuple):
    """The limits of the valid reports of a series."""

    lasts: Mapping[int, float]
    """The last valid step of each run, by the run's epoch."""
    replaced: Mapping[int, Replaced]
    """The values of each run that later runs reported again, by the run's epoch."""

    def select_valid(self, epoch: int, columns: Columns) -> Columns:
        """Return the reports of the run with this epoch without the void values."""
        valid = columns.up_to_step(self.lasts.get(epoch, float("inf")))
        return valid.without(self.replaced.get(epoch, {}))


_SeriesKey = tuple[int, str, int | None]


class MetricSeriesCache:
    """Cache of a cluster's most recently drawn series. Safe to share between threads."""

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
        cuts: RunCuts,
        draw: Callable[[MetricSeries], Drawn],
        rank: int | None = None,
    ) -> Drawn:
        """Read the new reports of a series, cache the series, and return the result of `draw`.

        Args:
            table: the state table with the rows of metrics.
            objects: the object store with the reports of full rows.
            trial_id: the trial.
            group: the group of metrics.
            cuts: the limits of the valid reports of the trial's runs.
            draw: receives the series under its lock.
            rank: None for the trial's own reports, or the rank that keeps the reports separate.

        Raises:
            TableError, OSError: the table or the object store cannot be read.
        """
        key = trial_id, group, rank
        with self._lock:
            series = self._kept.find(key)
            if series is None:
                series = MetricSeries()
                self._kept.keep(key, series, SERIES_NUMBERS)
        with series.lock:
            _refresh(_RowSource(table, objects, trial_id, group, rank, cuts), series)
            chart = draw(series)
            numbers = series.count_numbers() + SERIES_NUMBERS
        with self._lock:
            # The cache drops entries above the cache's limit. A larger series counts as the limit,
            # so that the series stays cached.
            self._kept.keep(key, series, min(numbers, NUMBERS_MAX))
        return chart

    def find_void_reports(
        self,
        table: StateTable,
        objects: ObjectStore,
        trial_id: int,
        group: str,
        cuts: RunCuts,
        rank: int | None = None,
    ) -> VoidReports:
        """Read the new reports of a series and return the limits of the valid reports.

        Args and errors are those of `draw_chart`.
        """
        return self.draw_chart(
            table,
            objects,
            trial_id,
            group,
            cuts,
            lambda series: VoidReports(dict(series.lasts), dict(series.replaced)),
            rank,
        )


def _refresh(source: _RowSource, series: MetricSeries) -> None:
    """Read the new reports into `series`.

    Read all reports again if the series is empty, if the cuts have changed, or if `_read_new`
    returns False, for example after a new run has begun.
    """
    is_known = bool(series.lasts) and series.cuts == source.cuts
    if not is_known or not _read_new(source, series):
        _read_all(source, series)


def _read_new(source: _RowSource, series: MetricSeries) -> bool:
    """Read the new reports of the latest run into `series`.

    Return True if the series is up to date, also without new reports. Return False if the whole
    series must be read again; some reports may be added already. The reason is a later run, or
    steps of earlier runs that the latest run repeated. Repeated reports of earlier runs are void.
    """
    latest = max(series.lasts)
    known = {stream: part for stream, part in series.parts.items() if stream.epoch == latest}
    if not known:
        return False
    for start, stop in _new_ranges(source, latest, known):
        for segment in read_segments(source.table, source.trial_id, start, stop):
            if _is_unread(series, segment) and _has_repeats(source, segment):
                return False
            if not _add_segment(source, series, segment):
                return False
    series.parts = dict(sorted(series.parts.items()))
    return True


def _new_ranges(
    source: _RowSource, latest: int, known: Mapping[Stream, _StreamPart]
) -> Iterator[tuple[str, str]]:
    """Yield the ranges of sort keys that may have new rows of the latest run or later runs.

    New rows of a known stream come after its last row read. The keys of a new stream come before,
    between or after the known streams. If the known rows have at most
    REREAD_BYTES_MAX bytes, yield one range that covers all rows, known rows included.
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
    """Discard the series and read all rows again. A series of one page needs a single query."""
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
    series.cuts = source.cuts
    series.lasts = _last_steps(source, firsts)
    series.replaced = _read_replaced(source, firsts)
    for segment in chain(segments, later):
        if not _add_segment(source, series, segment):
            # A new run has begun during the reading: the next request reads all rows again.
            break
    series.parts = dict(sorted(series.parts.items()))


def _add_segment(source: _RowSource, series: MetricSeries, segment: Segment) -> bool:
    """Add the unread reports of a row to the series.

    Returns:
        False, without a change, if the row belongs to a run that the series does not know.
    """
    epoch = segment.stream.epoch
    last = series.lasts.get(epoch)
    if last is None:
        return False
    is_unread = _is_unread(series, segment)
    part = series.parts.setdefault(segment.stream, _StreamPart())
    if is_unread:
        replaced = series.replaced.get(epoch, {})
        series.version += part.add_segment(segment, last, replaced, source.objects)
    return True


def _is_unread(series: MetricSeries, segment: Segment) -> bool:
    """Return whether a row may have unread reports: the key follows the last key read, if any."""
    part = series.parts.get(segment.stream)
    return part is None or segment.row.key.sort > part.sort


def _has_repeats(source: _RowSource, segment: Segment) -> bool:
    """Return whether a row has reports of steps that valid reports of an earlier run may have."""
    last = source.cuts.last_repeat(segment.stream.epoch)
    if not source.cuts.are_recorded(source.group) or last < 0:
        return False
    summary = decode_summary(segment.row.body)
    if summary is not None:
        return summary.steps_min <= last
    return min(segment.read_columns(source.objects).steps, default=last + 1) <= last


def _read_replaced(source: _RowSource, epochs: Iterable[int]) -> dict[int, Replaced]:
    """Read the rows of all runs but the first, and return the values that later runs repeated.

    The result is by the epoch of the earlier run; empty if no run repeated a step.
    """
    known = sorted(epochs)
    if len(known) < 2 or not source.cuts.are_recorded(source.group):
        return {}
    first = epoch_range(source.group, known[1], source.rank)[0]
    last = group_range(source.group, source.rank)[1]
    repeats: dict[int, list[Columns]] = {}
    for segment in read_segments(source.table, source.trial_id, first, last):
        if _has_repeats(source, segment):
            epoch = segment.stream.epoch
            columns = segment.read_columns(source.objects)
            repeated = columns.up_to_step(source.cuts.last_repeat(epoch))
            repeats.setdefault(epoch, []).append(repeated)
    return {epoch: join_repeats(repeats, epoch) for epoch in known} if repeats else {}


def _read_first_segments(source: _RowSource) -> Iterator[tuple[int, Segment]]:
    """Yield the epoch and the first row of each run, in order of the epochs."""
    first, last = group_range(source.group, source.rank)
    while segment := read_first_segment(source.table, source.trial_id, first, last):
        epoch = segment.stream.epoch
        yield epoch, segment
        first = epoch_range(source.group, epoch, source.rank)[1]


def _last_steps(source: _RowSource, firsts: Mapping[int, Segment]) -> dict[int, float]:
    """Return the last valid step of each run, by epoch. `firsts` has the first row of each run."""
    if source.cuts.are_recorded(source.group):
        return {epoch: source.cuts.last_step(epoch) for epoch in firsts}
    # The first step of the earliest run is not needed, because no run comes before.
    began = {
        epoch: segment.read_first_step(source.objects) if epoch > min(firsts) else 0.0
        for epoch, segment in firsts.items()
    }
    return cuts_by_first_steps(began)
