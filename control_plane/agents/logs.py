"""Logs of trials: chunks in the object store, each with an index row in its trial's partition.

A trial's log is the logs of its allocations one after the other. An offset counts bytes of the
whole; the index rows of an allocation carry offsets within it, so that a chunk is found without
reading those before it.
"""

import codecs
from collections.abc import Iterator
from dataclasses import dataclass

from control_plane.actors import addresses
from control_plane.agents.sessions import LOGS, LogChunk
from control_plane.objects.store import Key as ObjectKey
from control_plane.objects.store import ObjectMissing, ObjectStore
from control_plane.state.table import Expect, Key, Put, Row, StateTable

NAMESPACE = "logs"


@dataclass(frozen=True, slots=True)
class LogText:
    """`text` ends before byte `end` of the trial's log, which has `total` bytes so far."""

    text: str
    end: int
    total: int


class TrialLogs:
    """Keeps and reads logs. May block on the object store."""

    def __init__(self, table: StateTable, objects: ObjectStore) -> None:
        self._table = table
        self._objects = objects

    def store(self, trial_id: int, chunk: LogChunk) -> Put:
        """Stores a chunk and returns the write of its index row. Storing it again is no error."""
        end = chunk.offset + len(chunk.text)
        self._objects.put(_object(trial_id, chunk.allocation, chunk.offset, end), chunk.text)
        epoch = int(chunk.allocation.partition(".")[2])
        key = Key(addresses.trial(trial_id), _sort(epoch, chunk.offset))
        return Put(key, 1, b"%d" % end, Expect.ANYTHING)

    def read(self, trial_id: int, epochs: int, after: int, bytes_max: int, ended: bool) -> LogText:
        """Text from byte `after` on. A character that is cut off is left for the next call, unless
        the trial has `ended` there.
        """
        sizes = self._sizes(trial_id, epochs)
        total = sum(sizes)
        content = b"".join(self._content(trial_id, sizes, after, min(bytes_max, total - after)))
        end = after + len(content)
        decoder = codecs.getincrementaldecoder("utf-8")("replace")
        text = decoder.decode(content, final=ended and end >= total)
        return LogText(text, end - len(decoder.getstate()[0]), total)

    def tail(self, trial_id: int, epochs: int, bytes_max: int, ended: bool) -> LogText:
        """The last `bytes_max` bytes, from the first whole character on."""
        sizes = self._sizes(trial_id, epochs)
        start = max(0, sum(sizes) - bytes_max)
        head = b"".join(self._content(trial_id, sizes, start, 4))
        lead = next((n for n, byte in enumerate(head) if byte & 0xC0 != 0x80), len(head))
        return self.read(trial_id, epochs, start + lead, bytes_max, ended)

    def _sizes(self, trial_id: int, epochs: int) -> list[int]:
        """Bytes of each allocation's log, the first allocation's first."""
        address = addresses.trial(trial_id)
        sizes = []
        for epoch in range(1, epochs + 1):
            first, last = _sort(epoch, 0), _sort(epoch + 1, 0)
            rows = self._table.query(address, first, last, limit=1, descending=True).rows
            sizes.append(int(rows[0].body) if rows else 0)
        return sizes

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

    def _allocation(self, trial_id: int, epoch: int, start: int, end: int) -> Iterator[bytes]:
        """Bytes `start` to `end` of one allocation's log. A chunk that is gone reads as blanks."""
        for row in self._chunks(trial_id, epoch, start, end):
            first, last = int(row.key.sort.rpartition("#")[2]), int(row.body)
            skip, stop = max(0, start - first), min(last, end) - first
            key = _object(trial_id, f"{trial_id}.{epoch}", first, last)
            try:
                yield b"".join(self._objects.get(key, start=skip, length=stop - skip))
            except ObjectMissing:
                yield b" " * (stop - skip)

    def _chunks(self, trial_id: int, epoch: int, start: int, end: int) -> Iterator[Row]:
        """Index rows of the chunks that hold bytes `start` to `end`."""
        address = addresses.trial(trial_id)
        begin, behind = _sort(epoch, 0), _sort(epoch, start + 1)
        yield from self._table.query(address, begin, behind, limit=1, descending=True).rows
        following: str | None = behind
        while following is not None:
            page = self._table.query(address, following, _sort(epoch, end))
            yield from page.rows
            following = page.next_sort


def _sort(epoch: int, offset: int) -> str:
    return f"{LOGS}{epoch:08d}#{offset:014d}"


def _object(trial_id: int, allocation: str, start: int, end: int) -> ObjectKey:
    return ObjectKey(f"{NAMESPACE}/{trial_id}/{allocation}/{start}-{end - start}")
