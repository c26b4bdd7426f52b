"""Rows of metrics: written by a sync, merged when they become many, and read exactly once.

A stream is the reports of one group by one writer of an allocation. A row has some of its reports,
in order; its key has the offset of one of them. A sync adds a row. Later the newest rows of the
stream are merged into one, under the key of the last of them, in one commit that is guarded by the
revisions they were read at. A reader that goes through the keys upwards meanwhile meets each report
at least once, since a report is only ever moved to a later key; a report that it meets again has an
offset that it has passed.

A full row is never written again. Its reports, if they are not few, go into the object store, under
the digest of their content: no object is ever replaced, and one that was stored for a commit that
failed does no harm until it is deleted with the trial.
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
    report_count,
    split_segment,
)
from control_plane.objects.store import ObjectKey, ObjectNotFound, ObjectStore
from control_plane.state.table import Delete, Expect, Key, Put, Row, StateTable

METRICS = "R#"
METRICS_END = "R$"
# What processes that are not the chief report; its keys have the rank before the group.
RANK_METRICS = "W#"
RANK_METRICS_END = "W$"
# A line has at most 256 KiB, so that a row of metrics always fits into the table.
SEGMENT_BYTES_MAX = 320 * 1024
# A row of this size, or with so many reports, is full.
FULL_BYTES = 64 * 1024
FULL_REPORTS = 4096
# About a page of full rows.
PAGE_ROWS = 20
MERGED_ROWS_MAX = 96
STREAMS_MAX = 64
# Rows of this size or less are merged whatever the size of those after them.
SMALL_BYTES = 4 * 1024
NAMESPACE = "metrics"
# So many bytes in a row cost as much as an object in a store that charges for each object.
OBJECT_BYTES_MIN = 8 * 1024

StoreSegment = Callable[[Put], Put]
"""Stores the reports of a full row in the object store, and returns the write of the row."""

_GROUP = re.compile(r"[^.]{1,64}", re.DOTALL)


class Stream(NamedTuple):
    """The reports of one group by one writer of an allocation; with a `rank`, those that a process
    that is not the chief keeps apart from its trial's.
    """

    group: str
    epoch: int
    writer: str
    rank: int | None = None

    def sort_key(self, offset: int) -> str:
        """The sort key of a row that holds the report at `offset`."""
        return f"{self.range_start}{offset:014d}"

    @property
    def range_start(self) -> str:
        """The begin of the sort keys of its rows."""
        return f"{epoch_range(self.group, self.epoch, self.rank)[0]}{self.writer}#"

    @property
    def range_end(self) -> str:
        """The sort key after all of its rows."""
        return f"{self.range_start[:-1]}$"


class Segment(NamedTuple):
    """A row of a stream; `offset` is the one in its key."""

    stream: Stream
    offset: int
    row: Row

    def read_columns(self, objects: ObjectStore) -> Columns:
        """Read the segment's reports; none if they are deleted. Raises OSError."""
        digest = content_digest(self.row.body)
        if digest is None:
            return decode_segment(self.row.body, self.offset)
        try:
            content = b"".join(objects.get(_object_key(self.row.key, digest)))
        except ObjectNotFound:
            return to_columns(())
        return decode_split_segment(self.row.body, content)

    def read_first_step(self, objects: ObjectStore) -> float:
        """Read the steps of the first report; infinite if there is none that can be read."""
        steps = self.read_columns(objects).steps
        return steps[0] if steps else float("inf")


def is_group_name(name: object) -> bool:
    """Whether a text can be the name of a group: 1 to 64 characters, none of them a dot."""
    return isinstance(name, str) and bool(_GROUP.fullmatch(name)) and _is_unicode(name)


def rank_range(rank: int | None) -> tuple[str, str]:
    """The range of sort keys of what a rank keeps apart; without one, of the trial's own rows."""
    if rank is None:
        return METRICS, METRICS_END
    return f"{RANK_METRICS}{rank:05d}#", f"{RANK_METRICS}{rank:05d}$"


def group_range(group: str, rank: int | None = None) -> tuple[str, str]:
    """The range of sort keys of a group's rows."""
    # The quoted name has no character with a meaning in keys: neither "#" nor any before it.
    name = quote(group, safe="").replace("~", "%7E")
    prefix = rank_range(rank)[0]
    return f"{prefix}{name}#", f"{prefix}{name}$"


def epoch_range(group: str, epoch: int, rank: int | None = None) -> tuple[str, str]:
    """The range of sort keys of the rows of an allocation's group."""
    first = group_range(group, rank)[0]
    return f"{first}{epoch:08d}#", f"{first}{epoch:08d}$"


def to_segment(row: Row) -> Segment:
    """Convert a row of metrics into a segment."""
    *apart, group, epoch, writer, offset = row.key.sort.split("#")[1:]
    rank = int(apart[0]) if apart else None
    return Segment(Stream(unquote(group), int(epoch), writer, rank), int(offset), row)


def segment_writes(trial_id: int, stream: Stream, reports: Sequence[MetricReport]) -> Iterator[Put]:
    """The writes of new reports, given by ascending offset, in as few rows as can hold them."""
    body = encode_segment(to_columns(reports))
    if len(body) > SEGMENT_BYTES_MAX and len(reports) > 1:
        middle = len(reports) // 2
        yield from segment_writes(trial_id, stream, reports[:middle])
        yield from segment_writes(trial_id, stream, reports[middle:])
        return
    key = Key(addresses.trial(trial_id), stream.sort_key(reports[0].offset))
    yield Put(key, 1, body, Expect.ANYTHING)


def store_full_segment(objects: ObjectStore, put: Put) -> Put:
    """Store the reports of a full row in the object store, and return the write of the row without
    them. Any other write is returned as it is. Raises OSError.
    """
    if not put.key.sort.startswith((METRICS, RANK_METRICS)) or _is_mergeable(put.body):
        return put
    body, content = split_segment(put.body)
    if len(content) < OBJECT_BYTES_MIN:
        return put
    digest = content_digest(body)
    assert digest is not None
    # A repeat finds its own object there, which not every store lets the API replace.
    objects.put(_object_key(put.key, digest), content, if_absent=True)
    return replace(put, body=body)


def read_segments(table: StateTable, trial_id: int, first: str, last: str) -> Iterator[Segment]:
    """Read the rows of a range, in order. The caller skips reports at offsets of a stream that it
    has read before.
    """
    start: str | None = first
    while start is not None:
        page = table.query(addresses.trial(trial_id), start, last, limit=PAGE_ROWS)
        yield from map(to_segment, page.rows)
        start = page.next_sort


def find_start(table: StateTable, trial_id: int, stream: Stream, offset: int) -> str:
    """Find the sort key at which to start reading the reports after `offset`, since an earlier row
    may contain some of them.
    """
    behind = stream.sort_key(offset + 1)
    rows = table.query(
        addresses.trial(trial_id), stream.range_start, behind, limit=1, descending=True
    ).rows
    return rows[0].key.sort if rows else behind


def read_first_segment(table: StateTable, trial_id: int, first: str, last: str) -> Segment | None:
    """Read the first row of a range, None if there is none."""
    rows = table.query(addresses.trial(trial_id), first, last, limit=1).rows
    return to_segment(rows[0]) if rows else None


def merge_allocation(table: StateTable, trial_id: int, epoch: int, store: StoreSegment) -> int:
    """Merge the newest rows of each of an allocation's streams; returns how many rows were merged
    into another.

    Raises TableError; Conflict if another process was faster; whatever `store` raises.
    """
    ranges = ((METRICS, METRICS_END), (RANK_METRICS, RANK_METRICS_END))
    streams = chain.from_iterable(_read_streams(table, trial_id, epoch, *one) for one in ranges)
    return sum(merge_stream(table, trial_id, stream, store) for stream in streams)


def merge_stream(table: StateTable, trial_id: int, stream: Stream, store: StoreSegment) -> int:
    """Merge the newest rows of one stream, in a few commits at most."""
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
    """Read the streams of an allocation in a range, without the rows of other allocations."""
    for _ in range(2 * STREAMS_MAX):
        found = read_first_segment(table, trial_id, first, last)
        if found is None:
            return
        stream = found.stream
        if stream.epoch < epoch:
            first = epoch_range(stream.group, epoch, stream.rank)[0]
        elif stream.epoch > epoch:
            first = group_range(stream.group, stream.rank)[1]
        else:
            yield stream
            first = stream.range_end


def _is_mergeable(body: bytes) -> bool:
    """Whether a row may be merged with others: it is not full, and has its reports itself."""
    is_small = len(body) < FULL_BYTES and report_count(body) < FULL_REPORTS
    return is_small and content_digest(body) is None


def _decode_row(row: Row) -> Columns:
    return decode_segment(row.body, to_segment(row).offset)


def _object_key(key: Key, digest: str) -> ObjectKey:
    return ObjectKey(f"{NAMESPACE}/{key.partition.partition('#')[2]}/{digest}")


def _merge_groups(rows: Sequence[Row]) -> Iterator[list[Row]]:
    """Divide consecutive rows into groups that are to be merged into one row each.

    Each group but the last makes a full row. In the last group a row joins those after it only if
    it is not much larger than all of them, so that a report is rewritten a few times in all.
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
    try:
        text.encode()
    except UnicodeEncodeError:
        return False
    return True
