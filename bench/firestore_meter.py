"""The cost of a table's use on Firestore, counted by a decorator over any StateTable.

The rules are those of Firestore's Standard edition, applied to the requests that
control_plane/gcp/state_table.py makes of each call: a write for each document that a batch puts or
checks, a delete for each that it removes, whatever its size; a read for each document that is asked
for by its key, whether it exists or not, and for each that a query finds, at least one. A query
reads one document more than its limit. A batch that fails on a condition is billed, too.
"""

from collections.abc import Sequence

from bench.metered_table import Bill, OnBill, OnRead
from control_plane.state.faults import TableDecorator
from control_plane.state.table import (
    NEVER_MS,
    InvalidCommit,
    Key,
    Page,
    Put,
    Row,
    StateTable,
    TableError,
    Write,
    is_unconditional_check,
    row_bytes,
)


class FirestoreMeter(TableDecorator):
    """A table that calls `on_bill` with the writes and deletes of each commit, once it succeeded or
    failed on a condition, and `on_read` with the documents of each read.
    """

    def __init__(self, table: StateTable, on_bill: OnBill, on_read: OnRead) -> None:
        super().__init__(table)
        self._on_bill = on_bill
        self._on_read = on_read

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

    def due_keys(
        self, shard: int, until_ms: int, *, after_ms: int = NEVER_MS, limit: int = 100
    ) -> tuple[Key, ...]:
        keys = super().due_keys(shard, until_ms, after_ms=after_ms, limit=limit)
        self._on_read(max(1, len(keys)))
        return keys

    def commit(self, writes: Sequence[Write]) -> None:
        sent = [write for write in writes if not is_unconditional_check(write)]
        written = sum(row_bytes(put.key, put.body) for put in sent if isinstance(put, Put))
        bill = Bill(len(sent), written)
        try:
            super().commit(writes)
        except InvalidCommit:
            raise
        except TableError:
            self._on_bill(writes, bill)
            raise
        self._on_bill(writes, bill)
