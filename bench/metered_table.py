"""The cost of a table's use on DynamoDB, counted by a decorator over any StateTable.

The rules of DynamoDB's developer guide apply to the requests of control_plane/aws/state_table.py.
On-demand and provisioned capacity have the same rules.

Writes: a unit per started KB of the row before or after, whichever is larger. A delete is billed by
the deleted row, at least a unit. A commit of a single row is a plain conditional write. A commit of
several rows is a transaction: each row costs double, and each condition alone two units. The sparse
due index holds only keys. An added or removed entry costs a unit per started KB, a moved entry two.
A write with a failed condition is billed, too.

Reads: a unit per started 4 KB. A read by key is rounded up for each row, existing or not. A query
is rounded up over all read rows, which are two more than the limit. Reads of the due index cost
half, because they are not consistent.
"""

from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from control_plane.state.table import (
    NEVER_MS,
    Check,
    Delete,
    Expect,
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
from simulator.faults.table_faults import TableDecorator

UNIT_BYTES = 1024
READ_UNIT_BYTES = 4096
TRANSACTION_FACTOR = 2
# A query reads two rows beyond the limit: a row that shows whether more rows exist, and possibly
# the end of the range itself.
READ_BEYOND = 2


@dataclass(frozen=True, slots=True)
class Bill:
    """The cost of a commit: write units, and the bytes of put rows."""

    units: int
    bytes: int


OnBill = Callable[[Sequence[Write], Bill], None]
OnRead = Callable[[float], None]


def _ignore_read(units: float) -> None:
    """Ignore the units of a read."""


class TableMeter(TableDecorator, ABC):
    """A table that reports costs.

    `on_bill`: called with the bill of each commit that succeeded or failed on a condition.
    `on_read`: called with the units of each read.
    """

    def __init__(self, table: StateTable, on_bill: OnBill, on_read: OnRead = _ignore_read) -> None:
        super().__init__(table)
        self._on_bill = on_bill
        self._on_read = on_read

    def commit(self, writes: Sequence[Write]) -> None:
        bill = self._bill_of(writes)
        try:
            super().commit(writes)
        except InvalidCommit:
            raise
        except TableError:
            self._on_bill(writes, bill)
            raise
        self._on_bill(writes, bill)

    @abstractmethod
    def _bill_of(self, writes: Sequence[Write]) -> Bill:
        """Compute the bill of a commit that is about to be made."""


class MeteredTable(TableMeter):
    """A meter of DynamoDB.

    Rows are read before the commit for their sizes. A concurrent commit in between makes the bill
    inexact, never the commit.
    """

    def get(self, key: Key) -> Row | None:
        row = super().get(key)
        self._on_read(_read_units(_size(row)))
        return row

    def get_many(self, keys: Sequence[Key]) -> tuple[Row | None, ...]:
        rows = self.table.get_many(keys)
        by_key = dict(zip(keys, rows, strict=True))
        self._on_read(sum(_read_units(_size(row)) for row in by_key.values()))
        return rows

    def query(
        self, partition: str, first: str, last: str, *, limit: int = 1000, descending: bool = False
    ) -> Page:
        if first < last:
            beyond = limit + READ_BEYOND
            read = self.table.query(partition, first, last, limit=beyond, descending=descending)
            self._on_read(_read_units(sum(map(_size, read.rows))))
        return super().query(partition, first, last, limit=limit, descending=descending)

    def due_keys(
        self, shard: int, until_ms: int, *, after_ms: int = NEVER_MS, limit: int = 100
    ) -> tuple[Key, ...]:
        keys = super().due_keys(shard, until_ms, after_ms=after_ms, limit=limit)
        self._on_read(_read_units(sum(row_bytes(key, b"") for key in keys)) / 2)
        return keys

    def _bill_of(self, writes: Sequence[Write]) -> Bill:
        return compute_bill(writes, self.table.get)


def compute_bill(writes: Sequence[Write], read: Callable[[Key], Row | None]) -> Bill:
    """Compute the bill of a commit. `read` returns the rows before the commit."""
    sent = [write for write in writes if not is_unconditional_check(write)]
    is_plain = len(sent) == 1 and not isinstance(sent[0], Check)
    factor = 1 if is_plain else TRANSACTION_FACTOR
    units = sum(_write_units(write, _row_before(write, read), factor) for write in sent)
    written = sum(row_bytes(put.key, put.body) for put in writes if isinstance(put, Put))
    return Bill(units, written)


def _row_before(write: Write, read: Callable[[Key], Row | None]) -> Row | None:
    return None if write.expect is Expect.ABSENT else read(write.key)


def _write_units(write: Write, before: Row | None, factor: int) -> int:
    due_before = before.due_ms if before else None
    match write:
        case Put(key, _, body, _, due_ms):
            size = max(_size(before), row_bytes(key, body))
            return factor * _started_units(size) + _index_units(key, due_before, due_ms)
        case Delete(key):
            return factor * _started_units(_size(before)) + _index_units(key, due_before, None)
        case _:
            return factor


def _index_units(key: Key, before_ms: int | None, after_ms: int | None) -> int:
    """Return the units of a change of the due index. Moving an entry takes two writes."""
    if before_ms == after_ms:
        return 0
    entries = (before_ms is not None) + (after_ms is not None)
    return entries * _started_units(row_bytes(key, b""))


def _size(row: Row | None) -> int:
    return row_bytes(row.key, row.body) if row else 0


def _started_units(size: int) -> int:
    return max(1, -(-size // UNIT_BYTES))


def _read_units(size: int) -> int:
    return max(1, -(-size // READ_UNIT_BYTES))
