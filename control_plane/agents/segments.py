"""Rows of metrics: written by a sync, merged as they become many, and read exactly once.

A stream is what one writer of an allocation reports of one group. A row holds some of its reports,
in order, and lies under the offset of one of them. A sync adds a row; later the newest rows of the
stream become one, under the key of the last of them, in one commit that is guarded by the
revisions they were read at. Reading upwards through that, one meets each report at least once: what
has not been read yet is never moved to where one has been. A report met again is known by its
offset.

A row that has grown full is never written again. The reports of one that is worth it go into the
object store then, under the digest of their content: nothing there is ever replaced, and what was
stored for a commit that failed is in nobody's way until the trial is deleted.
"""

import re
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from itertools import takewhile
from typing import NamedTuple
from urllib.parse import quote, unquote

from control_plane.actors import addresses
from control_plane.metrics.columns import Columns, Reported, columns_of, joined
from control_plane.metrics.segment import (
    decoded,
    digest_of,
    encoded,
    parted,
    rejoined,
    reports_in,
)
from control_plane.objects.store import Key as ObjectKey
from control_plane.objects.store import ObjectMissing, ObjectStore
from control_plane.state.table import Delete, Expect, Key, Put, Row, StateTable

METRICS = "R#"
METRICS_END = "R$"
# A line has at most 256 KiB, so that a row of metrics always fits into the table.
SEGMENT_BYTES_MAX = 320 * 1024
# A row of this size, or of so many reports, is left as it is.
FULL_BYTES = 64 * 1024
FULL_REPORTS = 4096
# About a page of full rows.
ROWS_READ = 20
MERGED_ROWS_MAX = 96
STREAMS_MAX = 64
# Rows of this size or less are merged whatever follows them.
SMALL_BYTES = 4 * 1024
NAMESPACE = "metrics"
# In a row so many bytes cost as much as an object in a store that takes money for each.
OBJECT_BYTES_MIN = 8 * 1024

StoreSegment = Callable[[Put], Put]
"""Stores what the row of a segment is too small for, and returns the write of the row."""

_GROUP = re.compile(r"[^.]{1,64}", re.DOTALL)


class Stream(NamedTuple):
    """The reports of one group by one writer of an allocation."""

    group: str
    epoch: int
    writer: str

    def sort(self, offset: int) -> str:
        """The sort key of a row that holds the report at `offset`."""
        return f"{self.first}{offset:014d}"

    @property
    def first(self) -> str:
        """Where its rows begin."""
        return f"{of_epoch(self.group, self.epoch)[0]}{self.writer}#"

    @property
    def end(self) -> str:
        """Behind its rows."""
        return f"{self.first[:-1]}$"


class Segment(NamedTuple):
    """A row of a stream; `offset` is the one in its key."""

    stream: Stream
    offset: int
    row: Row

    def columns(self, objects: ObjectStore) -> Columns:
        """Its reports; none where they are gone. Raises OSError."""
        digest = digest_of(self.row.body)
        if digest is None:
            return decoded(self.row.body, self.offset)
        try:
            content = b"".join(objects.get(_object(self.row.key, digest)))
        except ObjectMissing:
            return columns_of(())
        return rejoined(self.row.body, content)

    def began(self, objects: ObjectStore) -> float:
        """The steps of its first report; infinite where it holds none that can be read."""
        steps = self.columns(objects).steps
        return steps[0] if steps else float("inf")


def is_group(name: object) -> bool:
    """Whether a group may have this name: 1 to 64 characters, none of them a dot."""
    return isinstance(name, str) and bool(_GROUP.fullmatch(name)) and _is_unicode(name)


def of_group(group: str) -> tuple[str, str]:
    """The range of a group's rows."""
    # No character of another meaning is left in the name: neither "#" nor what sorts before it.
    name = quote(group, safe="").replace("~", "%7E")
    return f"{METRICS}{name}#", f"{METRICS}{name}$"


def of_epoch(group: str, epoch: int) -> tuple[str, str]:
    """The range of the rows of an allocation's group."""
    first = of_group(group)[0]
    return f"{first}{epoch:08d}#", f"{first}{epoch:08d}$"


def segment_of(row: Row) -> Segment:
    """A row as what it is."""
    group, epoch, writer, offset = row.key.sort.removeprefix(METRICS).split("#")
    return Segment(Stream(unquote(group), int(epoch), writer), int(offset), row)


def puts(trial_id: int, stream: Stream, reports: Sequence[Reported]) -> Iterator[Put]:
    """The writes of new reports, by ascending offset, in as few rows as hold them."""
    body = encoded(columns_of(reports))
    if len(body) > SEGMENT_BYTES_MAX and len(reports) > 1:
        middle = len(reports) // 2
        yield from puts(trial_id, stream, reports[:middle])
        yield from puts(trial_id, stream, reports[middle:])
        return
    key = Key(addresses.trial(trial_id), stream.sort(reports[0].offset))
    yield Put(key, 1, body, Expect.ANYTHING)


def stored(objects: ObjectStore, put: Put) -> Put:
    """The write of a row as the table is to hold it: the reports of a full one are stored first.
    Any other write stays as it is. Raises OSError.
    """
    if not put.key.sort.startswith(METRICS) or _is_open(put.body):
        return put
    body, content = parted(put.body)
    if len(content) < OBJECT_BYTES_MIN:
        return put
    digest = digest_of(body)
    assert digest is not None
    objects.put(_object(put.key, digest), content)
    return replace(put, body=body)


def segments(table: StateTable, trial_id: int, first: str, last: str) -> Iterator[Segment]:
    """The rows of a range, upwards. Of their reports, those at offsets of the stream that were read
    before are to be passed over.
    """
    start: str | None = first
    while start is not None:
        page = table.query(addresses.trial(trial_id), start, last, limit=ROWS_READ)
        yield from map(segment_of, page.rows)
        start = page.next_sort


def starting_at(table: StateTable, trial_id: int, stream: Stream, offset: int) -> str:
    """Where to begin to read the reports after `offset`: a row before may hold them too."""
    behind = stream.sort(offset + 1)
    rows = table.query(
        addresses.trial(trial_id), stream.first, behind, limit=1, descending=True
    ).rows
    return rows[0].key.sort if rows else behind


def first_segment(table: StateTable, trial_id: int, first: str, last: str) -> Segment | None:
    """The first row of a range."""
    rows = table.query(addresses.trial(trial_id), first, last, limit=1).rows
    return segment_of(rows[0]) if rows else None


def merge(table: StateTable, trial_id: int, epoch: int, store: StoreSegment) -> int:
    """Makes one row of the newest ones of each of an allocation's streams; how many went.

    Raises TableError; Conflict where somebody else was faster; whatever `store` raises.
    """
    streams = _streams(table, trial_id, epoch)
    return sum(merge_stream(table, trial_id, stream, store) for stream in streams)


def merge_stream(table: StateTable, trial_id: int, stream: Stream, store: StoreSegment) -> int:
    """The same for one stream, in a few commits at most."""
    address = addresses.trial(trial_id)
    rows = table.query(
        address, stream.first, stream.end, limit=MERGED_ROWS_MAX, descending=True
    ).rows
    merged = 0
    for *older, newest in _groups(list(takewhile(lambda row: _is_open(row.body), rows))[::-1]):
        body = encoded(joined([_open_columns(row) for row in (*older, newest)]))
        if len(body) <= SEGMENT_BYTES_MAX:
            put = Put(newest.key, newest.revision + 1, body, newest.revision)
            table.commit((store(put), *(Delete(row.key, row.revision) for row in older)))
            merged += len(older)
    return merged


def _streams(table: StateTable, trial_id: int, epoch: int) -> Iterator[Stream]:
    """The streams of an allocation, without reading those of others."""
    first = METRICS
    for _ in range(2 * STREAMS_MAX):
        found = first_segment(table, trial_id, first, METRICS_END)
        if found is None:
            return
        stream = found.stream
        if stream.epoch < epoch:
            first = of_epoch(stream.group, epoch)[0]
        elif stream.epoch > epoch:
            first = of_group(stream.group)[1]
        else:
            yield stream
            first = stream.end


def _is_open(body: bytes) -> bool:
    """Whether more may be put into this row."""
    is_small = len(body) < FULL_BYTES and reports_in(body) < FULL_REPORTS
    return is_small and digest_of(body) is None


def _open_columns(row: Row) -> Columns:
    return decoded(row.body, segment_of(row).offset)


def _object(key: Key, digest: str) -> ObjectKey:
    return ObjectKey(f"{NAMESPACE}/{key.partition.partition('#')[2]}/{digest}")


def _groups(rows: Sequence[Row]) -> Iterator[list[Row]]:
    """Rows that follow each other, in groups of which each is to be one row.

    Each group but the last is as good as full. In the last one a row joins those after it only if
    it is not much larger than all of them, so that a report is rewritten a few times in all.
    """
    group: list[Row] = []
    size = reports = 0
    for row in rows:
        group.append(row)
        size += len(row.body)
        reports += reports_in(row.body)
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
