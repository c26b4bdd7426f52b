"""The cost of a table's use on Firestore, counted by a decorator over any StateTable.

The rules of Firestore's Standard edition apply to the requests of control_plane/gcp/state_table.py.
A batch costs a write for each put or checked document and a delete for each deleted document,
whatever the size. A get costs a read for each key, existing or not. A query costs a read for each
found document, at least a single read. A query reads a document more than the limit. A look at
several shards of the due index is a single query. A batch with a failed condition is billed, too.
"""

from collections.abc import Sequence

from bench.metered_table import Bill, TableMeter
from control_plane.gcp.state_table import DUE_ROWS_MAX
from control_plane.state.table import (
    NEVER_MS,
    Key,
    Page,
    Put,
    Row,
    Write,
    is_unconditional_check,
    row_bytes,
)


class FirestoreMeter(TableMeter):
    """A meter of Firestore. The units of commits are written and deleted documents."""

    def get(self, key: Key) -> Row | None:
        self._on_read(1)
        return super().get(key)

    def get_many(self, keys: Sequence[Key]) -> tuple[Row | None, ...]:
        if keys:
            self._on_read(len(set(keys)))
        return self.table.get_many(keys)

    def query(
        self, partition: str, first: str, last: str, *, limit: int = 1000, descending: bool = False
    ) -> Page:
        if first < last:
            read = self.table.query(partition, first, last, limit=limit + 1, descending=descending)
            self._on_read(max(1, len(read.rows)))
        return super().query(partition, first, last, limit=limit, descending=descending)

    def due_shards(self, shards: Sequence[int], until_ms: int) -> tuple[int, ...]:
        found = {shard: len(self.table.due_keys(shard, until_ms)) for shard in shards}
        read = min(DUE_ROWS_MAX, sum(found.values()))
        self._on_read(max(1, read))
        is_full = read == DUE_ROWS_MAX
        return tuple(shard for shard in shards if is_full or found[shard])

    def due_keys(
        self, shard: int, until_ms: int, *, after_ms: int = NEVER_MS, limit: int = 100
    ) -> tuple[Key, ...]:
        keys = super().due_keys(shard, until_ms, after_ms=after_ms, limit=limit)
        self._on_read(max(1, len(keys)))
        return keys

    def _bill_of(self, writes: Sequence[Write]) -> Bill:
        sent = [write for write in writes if not is_unconditional_check(write)]
        written = sum(row_bytes(put.key, put.body) for put in sent if isinstance(put, Put))
        return Bill(len(sent), written)
