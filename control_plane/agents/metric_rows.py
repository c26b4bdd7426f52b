"""Rows of metrics: a sync writes small rows, and a merge replaces small rows by a large row.

A stream is the sequence of one group's reports by one writer of an allocation. A row contains
consecutive reports of a stream, and its key contains the offset of one of them.

A merge joins the newest rows of a stream under the key of the last row. The commit is conditional
on the revisions of all rows. So a merge only moves a report to a later key. A reader that reads
keys in ascending order therefore meets every report at least once. The reader recognizes a repeated
report by its offset, which the reader has already passed.

A full row is never written again. Its reports go into the object store, unless they are few, under
the digest of their content. So no object is ever replaced. An object whose commit failed is deleted
together with the trial.
"""

import re
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from itertools import chain, takewhile
from typing import NamedTuple
from urllib.parse import quote, unquote

from control_plane.actors import addresses
from control_plane.metrics.columns import Columns, MetricReport, join_columns, to_columns
from control_plane.metrics.segment import (
    content_digest,
    decode_segment,
    decode_split_segment,
    encode_segment,
    is_readable,
    report_count,
    split_segment,
)
from control_plane.objects.store import ObjectKey, ObjectNotFound, ObjectStore
from control_plane.rows import trial_rows
from control_plane.state.row_ranges import read_rows
from control_plane.state.table import Delete, Expect, Key, Put, Row, StateTable

METRICS = trial_rows.METRICS.sort
METRICS_END = trial_rows.METRICS.sort_end
RANK_METRICS = trial_rows.RANK_METRICS.sort
"""The prefix for metrics of processes other than the chief. The rank precedes the group."""
RANK_METRICS_END = trial_rows.RANK_METRICS.sort_end
# A report line has at most 256 KiB, so a row with a single report fits into the state table.
SEGMENT_BYTES_MAX = 320 * 1024
"""The maximum size of a row that has several reports."""
FULL_BYTES = 64 * 1024
"""The size from which a row is full."""
FULL_REPORTS = 4096
"""The number of reports from which a row is full."""
# About one page of full rows.
PAGE_ROWS = 20
MERGED_ROWS_MAX = 96
"""The rows of a stream that one merge reads."""
STREAMS_MAX = 64
"""The streams of an allocation that a merge looks for, roughly."""
SMALL_BYTES = 4 * 1024
"""The size up to which a row is merged regardless of the sizes of the rows after it."""
NAMESPACE = "metrics"
# This many bytes in a row cost as much as the request that stores an object.
OBJECT_BYTES_MIN = 8 * 1024
"""The size from which the reports of a full row go into the object store."""

StoreSegment = Callable[[Put], Put]
"""A function that stores a full row's reports in the object store and returns the row's write."""

_GROUP = re.compile(r"[^.]{1,64}", re.DOTALL)


class Stream(NamedTuple):
    """The reports of a group by a single writer of an allocation."""

    group: str
    """The name of the group, such as `training` or `validation`."""
    epoch: int
    """The epoch of the allocation: the allocation's number within the trial."""
    writer: str
    """The writer of the reports: the rank of a process as text, or `agent`."""
    rank: int | None = None
    """The rank of the process, if its metrics are kept apart from the trial's own. None otherwise.
    """

    def sort_key(self, offset: int) -> str:
        """Return the sort key of a row with the key offset `offset`."""
        return f"{self.range_start}{offset:014d}"

    @property
    def range_start(self) -> str:
        """The start of the range of the stream's sort keys, inclusive."""
        return f"{epoch_range(self.group, self.epoch, self.rank)[0]}{self.writer}#"

    @property
    def range_end(self) -> str:
        """The end of the range of the stream's sort keys, exclusive."""
        return f"{self.range_start[:-1]}$"


class Segment(NamedTuple):
    """A row of a stream, with consecutive reports."""

    stream: Stream
    offset: int
    """The offset in the row's key."""
    row: Row

    def read_columns(self, objects: ObjectStore) -> Columns:
        """Read the row's reports, from the object store if necessary.

        Return no reports if the object was deleted.

        Raises:
            OSError: the store does not answer.
            ValueError: a newer release has encoded the row, or the row is damaged.
        """
        digest = content_digest(self.row.body)
        if digest is None:
            return decode_segment(self.row.body, self.offset)
        try:
            content = b"".join(objects.get(_object_key(self.row.key, digest)))
        except ObjectNotFound:
            return to_columns(())
        return decode_split_segment(self.row.body, content)

    def read_first_step(self, objects: ObjectStore) -> float:
        """Read the steps of the row's first report. Return infinity if no report is readable.

        Raises OSError if the object store does not answer. Raises ValueError if a newer release has
        encoded the row, or the row is damaged.
        """
        steps = self.read_columns(objects).steps
        return steps[0] if steps else float("inf")


def is_group_name(name: object) -> bool:
    """Return whether `name` is a valid name of a group: a text of 1 to 64 characters without a dot.

    A text that cannot be encoded in UTF-8 is not valid.
    """
    return isinstance(name, str) and bool(_GROUP.fullmatch(name)) and _is_unicode(name)


def rank_range(rank: int | None) -> tuple[str, str]:
    """Return the start and the exclusive end of the sort keys of a rank's separate metrics.

    A rank is the number of a process of a trial. Without a rank, return the range of the trial's
    own metrics, which leaves out separate metrics of ranks.
    """
    if rank is None:
        return METRICS, METRICS_END
    return f"{RANK_METRICS}{rank:05d}#", f"{RANK_METRICS}{rank:05d}$"


def group_range(group: str, rank: int | None = None) -> tuple[str, str]:
    """Return the start and the exclusive end of the sort keys of a group's rows.

    Args:
        group: the name of a group of metrics, such as `training`.
        rank: the rank of a process, for the metrics that the process reported separately. None for
            the trial's own metrics, without separate metrics of ranks.
    """
    # The quoted name contains no "#", which separates the parts of a key, and no character that
    # sorts before "#".
    name = quote(group, safe="").replace("~", "%7E")
    prefix = rank_range(rank)[0]
    return f"{prefix}{name}#", f"{prefix}{name}$"


def epoch_range(group: str, epoch: int, rank: int | None = None) -> tuple[str, str]:
    """Return the start and the exclusive end of the sort keys of a group's rows from a single
    allocation.

    Args:
        group: the name of a group of metrics, such as `training`.
        epoch: the number of the allocation within the trial.
        rank: the rank of a process, for the metrics that the process reported separately. None for
            the trial's own metrics.
    """
    first = group_range(group, rank)[0]
    return f"{first}{epoch:08d}#", f"{first}{epoch:08d}$"


def to_segment(row: Row) -> Segment:
    """Decode the key of a row of metrics into a segment. The body is not decoded.

    Raises ValueError for the key of another kind of row.
    """
    *apart, group, epoch, writer, offset = row.key.sort.split("#")[1:]
    rank = int(apart[0]) if apart else None
    return Segment(Stream(unquote(group), int(epoch), writer, rank), int(offset), row)


def segment_writes(trial_id: int, stream: Stream, reports: Sequence[MetricReport]) -> Iterator[Put]:
    """Yield the unconditional writes of new reports, in as few rows as possible.

    A row with several reports has at most SEGMENT_BYTES_MAX. The row's key has the offset of the
    row's first report.

    Args:
        trial_id: the trial.
        stream: the stream of the reports.
        reports: reports of the stream with ascending offsets. Must not be empty.
    """
    body = encode_segment(to_columns(reports))
    if len(body) > SEGMENT_BYTES_MAX and len(reports) > 1:
        middle = len(reports) // 2
        yield from segment_writes(trial_id, stream, reports[:middle])
        yield from segment_writes(trial_id, stream, reports[middle:])
        return
    key = Key(addresses.trial(trial_id), stream.sort_key(reports[0].offset))
    yield Put(key, 1, body, Expect.ANYTHING)


def kept_writes(trial_id: int, stream: Stream, reports: Sequence[MetricReport]) -> Iterator[Put]:
    """Yield the unconditional writes of the reports that stay after the retention of a stream.

    A row's key has the offset of the row's last report, so that all other rows of the stream sort
    before. A row with several reports has at most SEGMENT_BYTES_MAX. Without reports, yield
    nothing.
    """
    for put in segment_writes(trial_id, stream, reports) if reports else ():
        columns = decode_segment(put.body, to_segment(Row(put.key, 1, put.body)).offset)
        key = Key(put.key.partition, stream.sort_key(columns.offsets[-1]))
        yield replace(put, key=key)


def segment_object(row: Row) -> ObjectKey | None:
    """Return the object with a row's reports. Return None for a row with inline reports."""
    digest = content_digest(row.body)
    return None if digest is None else _object_key(row.key, digest)


def store_full_segment(objects: ObjectStore, put: Put) -> Put:
    """Move the reports of a full row into the object store and return the write of the rest.

    Return `put` unchanged, without a request, if it is not a row of metrics, not full, or small.
    The caller commits the write. If that commit fails, the object stays until the trial is deleted.
    Raises OSError if the store does not answer.
    """
    if not put.key.sort.startswith((METRICS, RANK_METRICS)) or _is_mergeable(put.body):
        return put
    body, content = split_segment(put.body)
    if len(content) < OBJECT_BYTES_MIN:
        return put
    digest = content_digest(body)
    assert digest is not None
    # A repeated call finds the same object, and some stores refuse to replace objects.
    objects.put(_object_key(put.key, digest), content, if_absent=True)
    return replace(put, body=body)


def read_segments(table: StateTable, trial_id: int, first: str, last: str) -> Iterator[Segment]:
    """Yield the rows with sort keys from `first` to before `last`, in ascending order.

    Rows are read page by page during the iteration. Merges may repeat reports. The caller skips
    reports whose offsets it has already read in a stream. Raises TableError.
    """
    address = addresses.trial(trial_id)
    yield from map(to_segment, read_rows(table, address, first, last, page_rows=PAGE_ROWS))


def find_start(table: StateTable, trial_id: int, stream: Stream, offset: int) -> str:
    """Return the sort key at which to start reading the reports after `offset`.

    The row before that offset may also contain later reports, so its key is returned if it exists.
    Otherwise return the key of the next offset. Raises TableError.
    """
    behind = stream.sort_key(offset + 1)
    rows = table.query(
        addresses.trial(trial_id), stream.range_start, behind, limit=1, descending=True
    ).rows
    return rows[0].key.sort if rows else behind


def read_first_segment(table: StateTable, trial_id: int, first: str, last: str) -> Segment | None:
    """Read the first row with a sort key from `first` to before `last`. Return None without a row.

    Raises TableError.
    """
    rows = table.query(addresses.trial(trial_id), first, last, limit=1).rows
    return to_segment(rows[0]) if rows else None


def merge_allocation(table: StateTable, trial_id: int, epoch: int, store: StoreSegment) -> int:
    """Merge the newest rows of each stream of an allocation and return the number of removed rows.

    A stream has the reports of a group by a single writer. Each merged row is a commit of its own.
    Full merged rows go through `store`. Return 0 if no rows can be merged.

    Args:
        table: the state table.
        trial_id: the trial.
        epoch: the number of the allocation within the trial.
        store: moves the reports of a full row into the object store.

    Raises:
        Conflict: another process merged the rows meanwhile. Earlier merges stay.
        TableError: the state table failed.
        ValueError: a row is damaged.
        Exception: any exception of `store`.
    """
    ranges = ((METRICS, METRICS_END), (RANK_METRICS, RANK_METRICS_END))
    streams = chain.from_iterable(
        _read_streams(table, trial_id, epoch, *sort_range) for sort_range in ranges
    )
    return sum(merge_stream(table, trial_id, stream, store) for stream in streams)


def merge_stream(table: StateTable, trial_id: int, stream: Stream, store: StoreSegment) -> int:
    """Merge the newest rows of a stream, in a commit per merged row.

    The merged row replaces the last row, and the other rows are deleted. Full rows, and groups of
    rows that would exceed SEGMENT_BYTES_MAX, stay as they are. So do rows of a newer release and
    all rows before the newest row of such a release. Return the number of removed rows.

    Raises Conflict if another process merged the rows meanwhile, another TableError if the table
    fails, ValueError for a damaged row, and any exception of `store`. Earlier merges stay.
    """
    address = addresses.trial(trial_id)
    rows = table.query(
        address, stream.range_start, stream.range_end, limit=MERGED_ROWS_MAX, descending=True
    ).rows
    merged = 0
    for *older, newest in _merge_groups(
        list(takewhile(lambda row: _is_mergeable(row.body), rows))[::-1]
    ):
        body = encode_segment(join_columns([_decode_row(row) for row in (*older, newest)]))
        if len(body) <= SEGMENT_BYTES_MAX:
            put = Put(newest.key, newest.revision + 1, body, newest.revision)
            table.commit((store(put), *(Delete(row.key, row.revision) for row in older)))
            merged += len(older)
    return merged


def _read_streams(
    table: StateTable, trial_id: int, epoch: int, first: str, last: str
) -> Iterator[Stream]:
    """Yield the streams of an allocation in a range, without reading rows of other allocations.

    At most 2 * STREAMS_MAX queries are made, so that later streams may be left out. Raises
    TableError.

    Args:
        table: the state table.
        trial_id: the trial.
        epoch: the number of the allocation within the trial.
        first: the start of the range of sort keys.
        last: the exclusive end of the range.
    """
    for _ in range(2 * STREAMS_MAX):
        segment = read_first_segment(table, trial_id, first, last)
        if segment is None:
            return
        stream = segment.stream
        if stream.epoch < epoch:
            first = epoch_range(stream.group, epoch, stream.rank)[0]
        elif stream.epoch > epoch:
            first = group_range(stream.group, stream.rank)[1]
        else:
            yield stream
            first = stream.range_end


def _is_mergeable(body: bytes) -> bool:
    """Return whether a row may be merged: the row is not full and contains the reports.

    Return False for a row of a newer release, which only that release can merge.
    """
    if not is_readable(body):
        return False
    is_small = len(body) < FULL_BYTES and report_count(body) < FULL_REPORTS
    return is_small and content_digest(body) is None


def _decode_row(row: Row) -> Columns:
    """Decode the reports in a row with inline reports. Raises ValueError for a row without them."""
    return decode_segment(row.body, to_segment(row).offset)


def _object_key(key: Key, digest: str) -> ObjectKey:
    """Return the key of a full row's reports in the object store."""
    return ObjectKey(f"{NAMESPACE}/{key.partition.partition('#')[2]}/{digest}")


def _merge_groups(rows: Sequence[Row]) -> Iterator[list[Row]]:
    """Divide consecutive rows into groups, each to be merged into a single row.

    Every group but the last makes a full row. In the last group, a row above SMALL_BYTES is merged
    with later rows only if its size is at most twice the total size of the later rows. So a report
    is rewritten only a few times in all. A row that stays alone is in no group.
    """
    group: list[Row] = []
    size = reports = 0
    for row in rows:
        group.append(row)
        size += len(row.body)
        reports += report_count(row.body)
        if size >= FULL_BYTES or reports >= FULL_REPORTS:
            if len(group) > 1:
                yield group
            group, size, reports = [], 0, 0
    while len(group) > 1 and len(group[0].body) > max(SMALL_BYTES, 2 * (size - len(group[0].body))):
        size -= len(group.pop(0).body)
    if len(group) > 1:
        yield group


def _is_unicode(text: str) -> bool:
    """Return whether the text can be encoded in UTF-8."""
    try:
        text.encode()
    except UnicodeEncodeError:
        return False
    return True
