"""Chunks of trial logs: each has an index row in its trial's partition. The text of a small chunk
is in the row itself, that of a larger one in the object store.

A trial's log is the logs of its allocations one after the other. Offsets given to users count bytes
of the whole; the index rows of an allocation have offsets within its own log, so that a chunk is
found without reading those before it. An index row says where its chunk ends and when its bytes
were first seen.

The nodes of a gang share one log: chunks of whole lines, in the order they arrive. Lines of any
node but the first begin with their rank.
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
PAGE_ROWS = 200
# A KB in a row costs as much as a quarter of an object in a store that charges for each object.
SMALL_BYTES_MAX = 2048
# The begin of a line that names the process of a trial which wrote it.
RANK = re.compile(rb"\[rank=(\d{1,5})\] ")

_LINE = re.compile(rb"[^\n]*\n?")

Marks = tuple[tuple[int, int], ...]
"""Ascending offsets, each with the time (epoch ms) at which bytes from there on were first seen."""


@dataclass(frozen=True, slots=True)
class LogText:
    """Text of a trial's log, up to before byte `end`; the log has `total` bytes so far."""

    text: str
    end: int
    total: int


@dataclass(frozen=True, slots=True)
class IndexedChunk:
    """A chunk of one allocation's log, from byte `start` to `end` of it, by its index row.

    `marks` are empty if the times are unknown. `node_rank` is that of the gang's node which wrote
    it. `text` is None if it is in the object store.
    """

    allocation: str
    start: int
    end: int
    marks: Marks
    node_rank: int | None = None
    text: bytes | None = None


class TrialLogs:
    """Stores and reads the logs of trials. May block on the object store."""

    def __init__(self, table: StateTable, objects: ObjectStore) -> None:
        self._table = table
        self._objects = objects

    def store_chunk(self, trial_id: int, chunk: LogChunk) -> Put:
        """Store a chunk and return the write of its index row. Storing it again is no error. The
        write of a gang's chunk conflicts with one that another node has written meanwhile, and must
        be made again then.
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
            # A repeat finds its own object there, which not every store lets the API replace.
            self._objects.put(place, chunk.text, if_absent=True)
        body = json.dumps(fields, separators=(",", ":"), ensure_ascii=False).encode()
        return Put(key, 1, body, Expect.ANYTHING if node is None else Expect.ABSENT)

    def read_text(
        self, trial_id: int, epochs: int, after: int, bytes_max: int, ended: bool
    ) -> LogText:
        """Read text from byte `after` on. A character that is cut off is left for the next call,
        unless the log has `ended` there.
        """
        sizes = self.read_allocation_sizes(trial_id, epochs)
        total = sum(sizes)
        content = b"".join(self._read_bytes(trial_id, sizes, after, min(bytes_max, total - after)))
        end = after + len(content)
        decoder = codecs.getincrementaldecoder("utf-8")("replace")
        text = decoder.decode(content, final=ended and end >= total)
        return LogText(text, end - len(decoder.getstate()[0]), total)

    def read_tail(self, trial_id: int, epochs: int, bytes_max: int, ended: bool) -> LogText:
        """Read the last `bytes_max` bytes, from the first whole character on."""
        sizes = self.read_allocation_sizes(trial_id, epochs)
        start = max(0, sum(sizes) - bytes_max)
        head = b"".join(self._read_bytes(trial_id, sizes, start, 4))
        lead = next((n for n, byte in enumerate(head) if byte & 0xC0 != 0x80), len(head))
        return self.read_text(trial_id, epochs, start + lead, bytes_max, ended)

    def read_allocation_sizes(self, trial_id: int, epochs: int) -> list[int]:
        """Read the size in bytes of each allocation's log, in the order of the allocations."""
        return [self._read_allocation_size(trial_id, epoch) for epoch in range(1, epochs + 1)]

    def _read_allocation_size(self, trial_id: int, epoch: int) -> int:
        first, last = _sort_key(epoch, 0), _sort_key(epoch + 1, 0)
        address = addresses.trial(trial_id)
        rows = self._table.query(address, first, last, limit=1, descending=True).rows
        return _decode_chunk(trial_id, rows[0]).end if rows else 0

    def _read_bytes(
        self, trial_id: int, sizes: list[int], after: int, bytes_max: int
    ) -> Iterator[bytes]:
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
        """Read the index of the chunks with bytes `start` to `end` of an allocation's log, in
        order.
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
        """Read bytes of a chunk. The bytes of a deleted chunk read as blanks."""
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
        """Read bytes `start` to `end` of one allocation's log."""
        for chunk in self.read_chunks(trial_id, epoch, start, end):
            first, last = max(start, chunk.start), min(end, chunk.end)
            if first < last:
                yield self.read_content(trial_id, chunk, first, last)


def _decode_chunk(trial_id: int, row: Row) -> IndexedChunk:
    _, epoch, start = row.key.sort.split("#")
    allocation = f"{trial_id}.{int(epoch)}"
    fields = json.loads(row.body)
    # Rows of the first releases hold the end alone.
    if isinstance(fields, int):
        return IndexedChunk(allocation, int(start), fields, ())
    marks = tuple((offset, time_ms) for offset, time_ms in fields["marks"])
    text = fields["text"].encode("latin-1") if "text" in fields else None
    return IndexedChunk(allocation, int(start), fields["end"], marks, fields.get("node"), text)


def _to_gang_chunk(chunk: LogChunk, start: int) -> LogChunk:
    """A chunk of a gang's node, converted to whole lines of the shared log from byte `start` on."""
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
    """The offset in the merged lines of the line that has byte `offset` of the node's log."""
    before = chunk.text.count(b"\n", 0, max(0, offset - chunk.offset))
    return sum(map(len, lines[:before]))


def _chunk_marks(chunk: LogChunk, end: int) -> Marks:
    """The time marks of the chunk's bytes; the first mark is at the chunk's start."""
    marks = sorted(chunk.marks)
    if not marks:
        return ()
    before = max(0, bisect_right(marks, chunk.offset, key=lambda mark: mark[0]) - 1)
    inside = (mark for mark in marks[before + 1 :] if chunk.offset < mark[0] < end)
    return ((chunk.offset, marks[before][1]), *inside)


def _sort_key(epoch: int, offset: int) -> str:
    return f"{LOGS}{epoch:08d}#{offset:014d}"


def _object_key(
    trial_id: int, allocation: str, start: int, end: int, node: int | None = None
) -> ObjectKey:
    # Nodes that write at once take the same offset. One of them commits its row, so that each needs
    # an object of its own.
    suffix = "" if node is None else f"-{node}"
    return ObjectKey(f"{NAMESPACE}/{trial_id}/{allocation}/{start}-{end - start}{suffix}")
