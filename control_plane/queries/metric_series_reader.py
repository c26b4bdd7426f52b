"""Reading of a metric series from rows: each row is read once, later requests read new rows only.

All rows are read again if the valid reports of earlier runs have changed, for example after a
restart of the trial.
"""

from collections.abc import Iterable, Iterator, Mapping
from itertools import chain
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
from control_plane.metrics.columns import Columns
from control_plane.metrics.segment import decode_summary
from control_plane.objects.store import ObjectStore
from control_plane.queries.metric_series import MetricSeries
from control_plane.queries.stream_reports import StreamReports
from control_plane.queries.void_reports import (
    Replaced,
    RunCuts,
    cuts_by_first_steps,
    join_repeats,
)
from control_plane.state.table import StateTable

# Known rows of at most this many bytes are read again together with the new rows. A single query
# costs less than several queries that leave the known rows out.
REREAD_BYTES_MAX = 4 * 1024


class RowSource(NamedTuple):
    """The identity of a series, and the stores that hold the rows."""

    table: StateTable
    objects: ObjectStore
    trial_id: int
    group: str
    rank: int | None
    """None for the trial's own reports, or the rank that keeps the reports separate."""
    cuts: RunCuts
    """The limits of the valid reports of the trial's runs."""


def refresh_series(source: RowSource, series: MetricSeries) -> None:
    """Read the new reports into `series`. The caller holds the series' lock.

    Discard the series and read all reports again if the cuts have changed, or if `_read_new`
    returns False, for example after a new run has begun.

    Raises:
        TableError, OSError: the table or the object store cannot be read.
        ValueError: a newer release has encoded a row.
    """
    is_known = bool(series.lasts) and series.cuts == source.cuts
    if not is_known or not _read_new(source, series):
        _read_all(source, series)


def _read_new(source: RowSource, series: MetricSeries) -> bool:
    """Read the new reports of the latest run into `series`, which must not be empty.

    Returns:
        True if the series is up to date, also without new reports. False if the whole series must
        be read again; some reports may be added already. The reason is a later run, or steps of
        earlier runs that the latest run repeated, so that reports of earlier runs are void.

    Raises:
        TableError, OSError: the table or the object store cannot be read.
        ValueError: a newer release has encoded a row.
    """
    latest = max(series.lasts)
    known = {stream: part for stream, part in series.parts.items() if stream.epoch == latest}
    if not known:
        return False
    for start, stop in _new_ranges(source, latest, known):
        for segment in read_segments(source.table, source.trial_id, start, stop):
            if series.is_unread(segment) and _has_repeats(source, segment):
                return False
            if not series.add_segment(segment, source.objects):
                return False
    series.sort_streams()
    return True


def _new_ranges(
    source: RowSource, latest: int, known: Mapping[Stream, StreamReports]
) -> Iterator[tuple[str, str]]:
    """Yield the ranges of sort keys that may have new rows of the latest run or later runs.

    Each range has a start and an exclusive end. New rows of a known stream come after its last row
    read. The keys of a new stream come before, between or after the known streams. If the known
    rows have at most REREAD_BYTES_MAX bytes, yield one range that covers all rows, known rows
    included.

    Args:
        source: names the trial, the group and the rank.
        latest: the epoch of the latest known run, which is the run's number within the trial.
        known: the streams of this run, in order.
    """
    first = epoch_range(source.group, latest, source.rank)[0]
    last = group_range(source.group, source.rank)[1]
    if sum(part.size for part in known.values()) <= REREAD_BYTES_MAX:
        yield first, last
        return
    starts = [first, *(f"{part.sort}!" for part in known.values())]
    stops = [*(stream.range_start for stream in known), last]
    yield from zip(starts, stops, strict=True)


def _read_all(source: RowSource, series: MetricSeries) -> None:
    """Discard the content of the series, read all rows again, and increase the version.

    Do nothing if neither rows nor a known stream exist. A series of one page needs a single query.
    After an error the series is incomplete.

    Raises:
        TableError, OSError: the table or the object store cannot be read.
        ValueError: a newer release has encoded a row.
    """
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
        if not series.add_segment(segment, source.objects):
            # A new run has begun during the reading: the next request reads all rows again.
            break
    series.sort_streams()


def _has_repeats(source: RowSource, segment: Segment) -> bool:
    """Return whether a row has reports of steps that valid reports of an earlier run may have.

    False for the first run, and for a group or trial whose run starts are not recorded. Raises
    OSError if the object store does not answer, and ValueError if a newer release encoded the row.
    """
    last = source.cuts.last_repeat(segment.stream.epoch)
    if not source.cuts.are_recorded(source.group) or last < 0:
        return False
    summary = decode_summary(segment.row.body)
    if summary is not None:
        return summary.steps_min <= last
    return min(segment.read_columns(source.objects).steps, default=last + 1) <= last


def _read_replaced(source: RowSource, epochs: Iterable[int]) -> dict[int, Replaced]:
    """Read the rows of all runs but the first, and return the values that later runs repeated.

    Args:
        source: where the rows are.
        epochs: the epochs (numbers within the trial) of the runs that have rows.

    Returns:
        The repeated names and steps, by the epoch of the earlier run. Empty if no run repeated a
        step, and for groups and trials whose run starts are not recorded.

    Raises:
        TableError, OSError: the table or the object store cannot be read.
        ValueError: a newer release has encoded a row.
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


def _read_first_segments(source: RowSource) -> Iterator[tuple[int, Segment]]:
    """Read the first row of each run and yield epoch and row, in order of the epochs.

    An epoch is the number of a run within the trial. Each run costs a query. Raises TableError.
    """
    first, last = group_range(source.group, source.rank)
    while segment := read_first_segment(source.table, source.trial_id, first, last):
        epoch = segment.stream.epoch
        yield epoch, segment
        first = epoch_range(source.group, epoch, source.rank)[1]


def _last_steps(source: RowSource, firsts: Mapping[int, Segment]) -> dict[int, float]:
    """Return the last valid step of each run; infinite if no later run limits the run.

    If run starts are not recorded, read the first step of each later run from its first row. Raises
    OSError if the object store does not answer, and ValueError if a newer release encoded a row.

    Args:
        source: where the rows are, and the limits of the valid reports.
        firsts: the first row of each run, by epoch, which is the run's number within the trial. The
            result has the same keys.
    """
    if source.cuts.are_recorded(source.group):
        return {epoch: source.cuts.last_step(epoch) for epoch in firsts}
    # The first step of the earliest run is not needed, because no run comes before.
    began = {
        epoch: segment.read_first_step(source.objects) if epoch > min(firsts) else 0.0
        for epoch, segment in firsts.items()
    }
    return cuts_by_first_steps(began)
