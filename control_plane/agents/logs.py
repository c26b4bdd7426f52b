"""Chunks of trial logs: writing, index rows, and reading by byte offset.

Each chunk has an index row in its trial's partition. The row contains the text of a small chunk;
the text of a larger chunk is in the object store.

A trial's log is the concatenation of the logs of its allocations. Offsets shown to users count the
bytes of the whole log. Index rows have offsets within one allocation's log, so that a chunk is
found without reading earlier chunks. An index row contains the end of its chunk and the times at
which its bytes were first seen.

The nodes of a gang share one log of whole lines, in order of arrival. Lines of every node but the
first begin with the node's rank.
"""

import codecs
import json
import re
from bisect import bisect_right
from collections.abc import Iterator
from dataclasses import dataclass, replace

from control_plane.actors import addresses
from control_plane.agents.sessions import LOGS, LogChunk
from control_plane.objects.store import ObjectKey, ObjectNotFound, ObjectStore
from control_plane.state.table import Expect, Key, Put, Row, StateTable

NAMESPACE = "logs"
"""The namespace of chunks in the object store."""
PAGE_ROWS = 200
"""Index rows read at once."""
# A KB in a row costs a quarter of the price of a request that stores an object.
SMALL_BYTES_MAX = 2048
"""The size up to which the text of a chunk is stored in its index row."""
RANK = re.compile(rb"\[rank=(\d{1,5})\] ")
"""The prefix of a line that contains the rank of the process that wrote the line."""

_LINE = re.compile(rb"[^\n]*\n?")

Marks = tuple[tuple[int, int], ...]
"""Ascending offsets, each with the time (epoch ms) at which the bytes from there on were first
seen.
"""


@dataclass(frozen=True, slots=True)
class LogText:
    """A stretch of a trial's log."""

    text: str
    """The text. Invalid UTF-8 is replaced."""
    end: int
    """The offset of the byte after the text, from which the next call continues."""
    total: int
    """The size of the trial's log so far, in bytes."""


@dataclass(frozen=True, slots=True)
class IndexedChunk:
    """A chunk of an allocation's log, as described by an index row."""

    allocation: str
    """The name of the allocation, `TRIAL.EPOCH`."""
    start: int
    """The offset of the first byte within the allocation's log."""
    end: int
    """The offset after the last byte."""
    marks: Marks
    """The times at which the bytes were first seen. Empty if the times are unknown."""
    node_rank: int | None = None
    """The rank of the node that wrote the chunk. None unless the allocation is a gang."""
    text: bytes | None = None
    """The bytes of a small chunk. None if the text is in the object store."""


class TrialLogs:
    """The logs of trials, in the state table and the object store. Threads may share an instance.

    Methods raise TableError if the table fails, and OSError if the object store fails.
    """

    def __init__(self, table: StateTable, objects: ObjectStore) -> None:
        self._table = table
        self._objects = objects

    def store_chunk(self, trial_id: int, chunk: LogChunk) -> Put:
        """Store a chunk and return the write of the index row, which the caller commits.

        Text above `SMALL_BYTES_MAX` goes into the object store at once; a smaller text is in the
        row. Storing a chunk again is harmless. In a gang, an allocation of several nodes, the chunk
        is appended to the shared log with prefixes of ranks. The returned write then conflicts if
        another node's chunk was committed meanwhile. The caller must then store the chunk again, at
        the new end of the shared log.

        Raises OSError if the object store does not answer, and TableError if a gang's log cannot be
        read.
        """
        epoch = int(chunk.allocation.partition(".")[2])
        node = chunk.node_rank if chunk.nodes > 1 else None
        if node is not None:
            chunk = _to_gang_chunk(chunk, self._read_allocation_size(trial_id, epoch))
        end = chunk.offset + len(chunk.text)
        key = Key(addresses.trial(trial_id), _sort_key(epoch, chunk.offset))
        fields: dict[str, object] = {"end": end, "marks": _chunk_marks(chunk, end)}
        if node is not None:
            fields["node"] = node
        if len(chunk.text) <= SMALL_BYTES_MAX:
            # Latin-1 encodes any bytes: a chunk may begin or end within a character.
            fields["text"] = chunk.text.decode("latin-1")
        else:
            place = _object_key(trial_id, chunk.allocation, chunk.offset, end, node)
            # A repeated call finds the same object, and some stores refuse to replace objects.
            self._objects.put(place, chunk.text, if_absent=True)
        body = json.dumps(fields, separators=(",", ":"), ensure_ascii=False).encode()
        return Put(key, 1, body, Expect.ANYTHING if node is None else Expect.ABSENT)

    def read_text(
        self, trial_id: int, epochs: int, after: int, bytes_max: int, ended: bool
    ) -> LogText:
        """Read at most `bytes_max` bytes of a trial's log, from byte `after` on.

        An incomplete character at the end is left for the next call, unless the log ends there and
        `ended` is true. Invalid bytes are replaced, and bytes of a deleted object are blanks.
        Beyond the end, the text is "". Raises TableError and OSError.

        Args:
            trial_id: the trial.
            epochs: the number of the trial's allocations.
            after: the offset at which the text begins.
            bytes_max: the maximum number of bytes.
            ended: whether the log will not grow any more.
        """
        sizes = self.read_allocation_sizes(trial_id, epochs)
        total = sum(sizes)
        content = b"".join(self._read_bytes(trial_id, sizes, after, min(bytes_max, total - after)))
        end = after + len(content)
        decoder = codecs.getincrementaldecoder("utf-8")("replace")
        text = decoder.decode(content, final=ended and end >= total)
        return LogText(text, end - len(decoder.getstate()[0]), total)

    def read_tail(self, trial_id: int, epochs: int, bytes_max: int, ended: bool) -> LogText:
        """Read the last `bytes_max` bytes of a trial's log as text.

        Skip an incomplete character at the beginning. Leave an incomplete character at the end for
        the next call, unless `ended` is true. Replace invalid bytes. The text of an empty log is
        "". Raises TableError and OSError.

        Args:
            trial_id: the trial.
            epochs: the number of the trial's allocations.
            bytes_max: the maximum number of bytes.
            ended: whether the log will not grow any more.
        """
        sizes = self.read_allocation_sizes(trial_id, epochs)
        start = max(0, sum(sizes) - bytes_max)
        head = b"".join(self._read_bytes(trial_id, sizes, start, 4))
        lead = next((n for n, byte in enumerate(head) if byte & 0xC0 != 0x80), len(head))
        return self.read_text(trial_id, epochs, start + lead, bytes_max, ended)

    def read_allocation_sizes(self, trial_id: int, epochs: int) -> list[int]:
        """Read the size in bytes of each allocation's log, for the first `epochs` allocations of a
        trial.

        The size is 0 for an allocation without a log. Each allocation costs a query. Raises
        TableError.
        """
        return [self._read_allocation_size(trial_id, epoch) for epoch in range(1, epochs + 1)]

    def _read_allocation_size(self, trial_id: int, epoch: int) -> int:
        """Read the size in bytes of an allocation's log, which is 0 without chunks. Raises
        TableError.
        """
        chunk = self.read_chunk_before(trial_id, epoch)
        return chunk.end if chunk else 0

    def read_chunk_before(
        self, trial_id: int, epoch: int, before: int | None = None
    ) -> IndexedChunk | None:
        """Read the index of the last chunk of an allocation that begins before offset `before`.

        Costs a query. Return None if no chunk begins before that offset. Raises TableError.

        Args:
            trial_id: the trial.
            epoch: the number of the allocation within the trial.
            before: an offset in the allocation's log, by default the end of the log.
        """
        first = _sort_key(epoch, 0)
        last = _sort_key(epoch + 1, 0) if before is None else _sort_key(epoch, before)
        address = addresses.trial(trial_id)
        rows = self._table.query(address, first, last, limit=1, descending=True).rows
        return _decode_chunk(trial_id, rows[0]) if rows else None

    def _read_bytes(
        self, trial_id: int, sizes: list[int], after: int, bytes_max: int
    ) -> Iterator[bytes]:
        """Yield blocks of a trial's log from byte `after` on, `bytes_max` bytes in all.

        Fewer bytes come if the log ends earlier, and none if `bytes_max` is not positive. Raises
        TableError and OSError.

        Args:
            trial_id: the trial.
            sizes: the size of each allocation's log, in order.
            after: the offset of the first byte in the trial's log.
            bytes_max: the number of bytes.
        """
        remaining = bytes_max
        start = after
        for epoch, size in enumerate(sizes, 1):
            if remaining <= 0:
                return
            if start < size:
                for block in self._read_allocation_bytes(
                    trial_id, epoch, start, min(size, start + remaining)
                ):
                    remaining -= len(block)
                    yield block
            start = max(0, start - size)

    def read_chunks(
        self, trial_id: int, epoch: int, start: int, end: int
    ) -> Iterator[IndexedChunk]:
        """Yield the index of an allocation's chunks with bytes from `start` to before `end`.

        Chunks come in ascending order, without the texts of large chunks. The first chunk may end
        before `start`, if no chunk has that byte. Yield nothing for an allocation without a log.
        The index is read page by page during the iteration. Raises TableError.

        Args:
            trial_id: the trial.
            epoch: the number of the allocation within the trial.
            start: an offset in the allocation's log.
            end: an offset in the allocation's log, exclusive.
        """
        address = addresses.trial(trial_id)
        begin, start_sort = _sort_key(epoch, 0), _sort_key(epoch, start + 1)
        rows = self._table.query(address, begin, start_sort, limit=1, descending=True).rows
        following: str | None = start_sort
        while True:
            yield from (_decode_chunk(trial_id, row) for row in rows)
            if following is None:
                return
            page = self._table.query(address, following, _sort_key(epoch, end), limit=PAGE_ROWS)
            rows, following = page.rows, page.next_sort

    def read_content(self, trial_id: int, chunk: IndexedChunk, start: int, end: int) -> bytes:
        """Read the bytes `start` to `end`, exclusive, of the allocation's log, which must be in
        `chunk`.

        Return blanks of the same length if the chunk's object was deleted. Raises OSError if the
        object store does not answer.
        """
        if chunk.text is not None:
            return chunk.text[start - chunk.start : end - chunk.start]
        key = _object_key(trial_id, chunk.allocation, chunk.start, chunk.end, chunk.node_rank)
        skipped, length = start - chunk.start, end - start
        try:
            return b"".join(self._objects.get(key, start=skipped, length=length))
        except ObjectNotFound:
            return b" " * length

    def _read_allocation_bytes(
        self, trial_id: int, epoch: int, start: int, end: int
    ) -> Iterator[bytes]:
        """Yield the bytes from `start` to `end`, exclusive, of an allocation's log, in blocks.

        Bytes of a deleted object are blanks. Bytes without a chunk are left out. Raises TableError
        and OSError.
        """
        for chunk in self.read_chunks(trial_id, epoch, start, end):
            first, last = max(start, chunk.start), min(end, chunk.end)
            if first < last:
                yield self.read_content(trial_id, chunk, first, last)


def log_range(last_epoch: int) -> tuple[str, str]:
    """Return the start and the exclusive end of the sort keys of logs up to an epoch's."""
    return LOGS, _sort_key(last_epoch + 1, 0)


def chunk_epoch(key: ObjectKey) -> int:
    """Return the epoch of the allocation of a chunk in the object store."""
    return int(key.parts[2].partition(".")[2])


def _decode_chunk(trial_id: int, row: Row) -> IndexedChunk:
    """Decode an index row. Rows of the first releases have neither time marks nor text."""
    _, epoch, start = row.key.sort.split("#")
    allocation = f"{trial_id}.{int(epoch)}"
    fields = json.loads(row.body)
    # Index rows of the first releases contain only the end.
    if isinstance(fields, int):
        return IndexedChunk(allocation, int(start), fields, ())
    marks = tuple((offset, time_ms) for offset, time_ms in fields["marks"])
    text = fields["text"].encode("latin-1") if "text" in fields else None
    return IndexedChunk(allocation, int(start), fields["end"], marks, fields.get("node"), text)


def _to_gang_chunk(chunk: LogChunk, start: int) -> LogChunk:
    """Convert a node's chunk for the log that all nodes of a gang share. Return the changed copy.

    - Lines without a rank prefix get the prefix of the node's rank, except for rank 0.
    - A last line without a newline gets a newline.
    - The chunk begins at byte `start` of the shared log. Each time mark moves to the start of the
      marked line.
    """
    prefix = b"[rank=%d] " % chunk.node_rank if chunk.node_rank else b""
    lines = [
        line if RANK.match(line) else prefix + line for line in _LINE.findall(chunk.text) if line
    ]
    text = b"".join(lines)
    ended = text if text.endswith(b"\n") else text + b"\n"
    marks = tuple(
        (start + _merged_line_offset(chunk, offset, lines), time_ms)
        for offset, time_ms in chunk.marks
    )
    return replace(chunk, offset=start, text=ended, marks=marks)


def _merged_line_offset(chunk: LogChunk, offset: int, lines: list[bytes]) -> int:
    """Return the offset of a line in the merged text of a gang, relative to the text's first byte.

    Args:
        chunk: the node's chunk.
        offset: an offset in the node's own log, within the line. An offset before the chunk means
            the first line.
        lines: the lines of the merged text: the chunk's lines with rank prefixes.
    """
    line_number = chunk.text.count(b"\n", 0, max(0, offset - chunk.offset))
    return sum(map(len, lines[:line_number]))


def _chunk_marks(chunk: LogChunk, end: int) -> Marks:
    """Return the time marks of the chunk's bytes, from the chunk's start to before `end`.

    The first mark is at the chunk's start, with the time of the last mark at or before the start,
    or else of the first mark. Return () for a chunk without marks.
    """
    marks = sorted(chunk.marks)
    if not marks:
        return ()
    first = max(0, bisect_right(marks, chunk.offset, key=lambda mark: mark[0]) - 1)
    inside = (mark for mark in marks[first + 1 :] if chunk.offset < mark[0] < end)
    return ((chunk.offset, marks[first][1]), *inside)


def _sort_key(epoch: int, offset: int) -> str:
    """Return the sort key of the index row of an allocation's chunk at byte `offset` of the log."""
    return f"{LOGS}{epoch:08d}#{offset:014d}"


def _object_key(
    trial_id: int, allocation: str, start: int, end: int, node: int | None = None
) -> ObjectKey:
    """Return the key of a chunk in the object store. `node` is the rank of a gang's node."""
    # Two nodes may write concurrently at one offset, and only the first node's row is committed.
    # Distinct object keys keep the nodes from overwriting each other's text.
    suffix = "" if node is None else f"-{node}"
    return ObjectKey(f"{NAMESPACE}/{trial_id}/{allocation}/{start}-{end - start}{suffix}")
