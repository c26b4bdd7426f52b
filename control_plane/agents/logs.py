"""Logs of trials: chunks, each with an index row in its trial's partition. The row holds a small
chunk's text, too; that of a larger one is in the object store.

A trial's log is the logs of its allocations one after the other. An offset counts bytes of the
whole; the index rows of an allocation carry offsets within it, so that a chunk is found without
reading those before it. An index row says where its chunk ends and when its bytes were first seen.

The nodes of a gang write into one log, chunk after chunk as they come, each of whole lines: those
of any node but the first begin with their rank.
"""

import codecs
import json
import re
from bisect import bisect_right
from collections.abc import Iterator
from dataclasses import dataclass, replace

from control_plane.actors import addresses
from control_plane.agents.sessions import LOGS, LogChunk
from control_plane.objects.store import Key as ObjectKey
from control_plane.objects.store import ObjectMissing, ObjectStore
from control_plane.state.table import Expect, Key, Put, Row, StateTable

NAMESPACE = "logs"
ROWS_READ = 200
# In a row a KB costs as much as the quarter of an object in a store that takes money for each.
SMALL_BYTES_MAX = 2048
# How a line begins that says which process of a trial wrote it.
RANK = re.compile(rb"\[rank=(\d{1,5})\] ")

_LINE = re.compile(rb"[^\n]*\n?")

Marks = tuple[tuple[int, int], ...]
"""Offsets, ascending, and the times, epoch ms, at which bytes from there on were first seen."""


@dataclass(frozen=True, slots=True)
class LogText:
    """`text` ends before byte `end` of the trial's log, which has `total` bytes so far."""

    text: str
    end: int
    total: int


@dataclass(frozen=True, slots=True)
class IndexedChunk:
    """A chunk of one allocation's log, `start` and `end` in bytes of that one. No `marks`: nobody
    knows when it was seen. `node_rank` is of the node of a gang that it comes from. `text`: of a
    small one, None for one in the object store.
    """

    allocation: str
    start: int
    end: int
    marks: Marks
    node_rank: int | None = None
    text: bytes | None = None


class TrialLogs:
    """Keeps and reads logs. May block on the object store."""

    def __init__(self, table: StateTable, objects: ObjectStore) -> None:
        self._table = table
        self._objects = objects

    def store(self, trial_id: int, chunk: LogChunk) -> Put:
        """Stores a chunk and returns the write of its index row. Storing it again is no error; the
        write of a gang's is refused where another node's came in between, and is to be made anew.
        """
        epoch = int(chunk.allocation.partition(".")[2])
        node = chunk.node_rank if chunk.nodes > 1 else None
        if node is not None:
            chunk = _joined(chunk, self._size(trial_id, epoch))
        end = chunk.offset + len(chunk.text)
        key = Key(addresses.trial(trial_id), _sort(epoch, chunk.offset))
        fields: dict[str, object] = {"end": end, "marks": _marks_within(chunk, end)}
        if node is not None:
            fields["node"] = node
        if len(chunk.text) <= SMALL_BYTES_MAX:
            # Whatever bytes they are: a chunk may begin or end within a character.
            fields["text"] = chunk.text.decode("latin-1")
        else:
            place = _object(trial_id, chunk.allocation, chunk.offset, end, node)
            self._objects.put(place, chunk.text)
        body = json.dumps(fields, separators=(",", ":"), ensure_ascii=False).encode()
        return Put(key, 1, body, Expect.ANYTHING if node is None else Expect.ABSENT)

    def read(self, trial_id: int, epochs: int, after: int, bytes_max: int, ended: bool) -> LogText:
        """Text from byte `after` on. A character that is cut off is left for the next call, unless
        the trial has `ended` there.
        """
        sizes = self.sizes(trial_id, epochs)
        total = sum(sizes)
        content = b"".join(self._content(trial_id, sizes, after, min(bytes_max, total - after)))
        end = after + len(content)
        decoder = codecs.getincrementaldecoder("utf-8")("replace")
        text = decoder.decode(content, final=ended and end >= total)
        return LogText(text, end - len(decoder.getstate()[0]), total)

    def tail(self, trial_id: int, epochs: int, bytes_max: int, ended: bool) -> LogText:
        """The last `bytes_max` bytes, from the first whole character on."""
        sizes = self.sizes(trial_id, epochs)
        start = max(0, sum(sizes) - bytes_max)
        head = b"".join(self._content(trial_id, sizes, start, 4))
        lead = next((n for n, byte in enumerate(head) if byte & 0xC0 != 0x80), len(head))
        return self.read(trial_id, epochs, start + lead, bytes_max, ended)

    def sizes(self, trial_id: int, epochs: int) -> list[int]:
        """Bytes of each allocation's log, the first allocation's first."""
        return [self._size(trial_id, epoch) for epoch in range(1, epochs + 1)]

    def _size(self, trial_id: int, epoch: int) -> int:
        first, last = _sort(epoch, 0), _sort(epoch + 1, 0)
        address = addresses.trial(trial_id)
        rows = self._table.query(address, first, last, limit=1, descending=True).rows
        return _chunk_of(trial_id, rows[0]).end if rows else 0

    def _content(
        self, trial_id: int, sizes: list[int], after: int, bytes_max: int
    ) -> Iterator[bytes]:
        wanted = bytes_max
        start = after
        for epoch, size in enumerate(sizes, 1):
            if wanted <= 0:
                return
            if start < size:
                for block in self._allocation(trial_id, epoch, start, min(size, start + wanted)):
                    wanted -= len(block)
                    yield block
            start = max(0, start - size)

    def chunks(self, trial_id: int, epoch: int, start: int, end: int) -> Iterator[IndexedChunk]:
        """The chunks that hold bytes `start` to `end` of one allocation's log, in order."""
        address = addresses.trial(trial_id)
        begin, behind = _sort(epoch, 0), _sort(epoch, start + 1)
        rows = self._table.query(address, begin, behind, limit=1, descending=True).rows
        following: str | None = behind
        while True:
            yield from (_chunk_of(trial_id, row) for row in rows)
            if following is None:
                return
            page = self._table.query(address, following, _sort(epoch, end), limit=ROWS_READ)
            rows, following = page.rows, page.next_sort

    def content(self, trial_id: int, chunk: IndexedChunk, start: int, end: int) -> bytes:
        """Bytes of a chunk. One that is gone reads as blanks."""
        if chunk.text is not None:
            return chunk.text[start - chunk.start : end - chunk.start]
        key = _object(trial_id, chunk.allocation, chunk.start, chunk.end, chunk.node_rank)
        skipped, length = start - chunk.start, end - start
        try:
            return b"".join(self._objects.get(key, start=skipped, length=length))
        except ObjectMissing:
            return b" " * length

    def _allocation(self, trial_id: int, epoch: int, start: int, end: int) -> Iterator[bytes]:
        """Bytes `start` to `end` of one allocation's log."""
        for chunk in self.chunks(trial_id, epoch, start, end):
            first, last = max(start, chunk.start), min(end, chunk.end)
            if first < last:
                yield self.content(trial_id, chunk, first, last)


def _chunk_of(trial_id: int, row: Row) -> IndexedChunk:
    _, epoch, start = row.key.sort.split("#")
    allocation = f"{trial_id}.{int(epoch)}"
    found = json.loads(row.body)
    # Rows of the first releases hold the end alone.
    if isinstance(found, int):
        return IndexedChunk(allocation, int(start), found, ())
    marks = tuple((offset, time_ms) for offset, time_ms in found["marks"])
    text = found["text"].encode("latin-1") if "text" in found else None
    return IndexedChunk(allocation, int(start), found["end"], marks, found.get("node"), text)


def _joined(chunk: LogChunk, start: int) -> LogChunk:
    """A chunk of a gang's node as it stands in the log of all, from byte `start` on."""
    prefix = b"[rank=%d] " % chunk.node_rank if chunk.node_rank else b""
    lines = [
        line if RANK.match(line) else prefix + line for line in _LINE.findall(chunk.text) if line
    ]
    text = b"".join(lines)
    ended = text if text.endswith(b"\n") else text + b"\n"
    marks = tuple(
        (start + _place(chunk, offset, lines), time_ms) for offset, time_ms in chunk.marks
    )
    return replace(chunk, offset=start, text=ended, marks=marks)


def _place(chunk: LogChunk, offset: int, lines: list[bytes]) -> int:
    """Where the line that holds byte `offset` of the node's log begins in the joined lines."""
    before = chunk.text.count(b"\n", 0, max(0, offset - chunk.offset))
    return sum(map(len, lines[:before]))


def _marks_within(chunk: LogChunk, end: int) -> Marks:
    """The marks of the chunk's own bytes, from its first one on."""
    marks = sorted(chunk.marks)
    if not marks:
        return ()
    before = max(0, bisect_right(marks, chunk.offset, key=lambda mark: mark[0]) - 1)
    inside = (mark for mark in marks[before + 1 :] if chunk.offset < mark[0] < end)
    return ((chunk.offset, marks[before][1]), *inside)


def _sort(epoch: int, offset: int) -> str:
    return f"{LOGS}{epoch:08d}#{offset:014d}"


def _object(
    trial_id: int, allocation: str, start: int, end: int, node: int | None = None
) -> ObjectKey:
    # Nodes that are at it at once take the same place, of which one gets it.
    suffix = "" if node is None else f"-{node}"
    return ObjectKey(f"{NAMESPACE}/{trial_id}/{allocation}/{start}-{end - start}{suffix}")
