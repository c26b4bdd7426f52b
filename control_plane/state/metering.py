"""What a table's use would cost on DynamoDB, as a decorator over any StateTable.

The rules are those of its developer guide, on-demand and provisioned capacity alike, for what
dynamodb.py makes of each call. Writes: a unit per started KB of the row as it was before or after,
whichever is larger; a delete goes by the row it removes, and so does one of nothing by its least. A
commit of one row is a plain conditional write; of several it is a transaction, in which each row
costs twice that, and a condition on its own two units. The sparse due index, with keys only, costs
one unit per started KB for each entry that appears or goes, so two for one that moves. What fails
on a condition is billed too.

Reads: a unit per started 4 KB. Each row that is read by its key is rounded up by itself, there or
not; a query by all that it reads, which is two rows more than it was asked for. The due index is
read at half of that, since it is not consistent.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from control_plane.state.faults import TableDecorator
from control_plane.state.table import (
    Check,
    CommitRefused,
    Delete,
    Expect,
    Key,
    Page,
    Put,
    Row,
    StateTable,
    TableError,
    Write,
    asks_nothing,
    stored_bytes,
)

UNIT_BYTES = 1024
READ_UNIT_BYTES = 4096
TRANSACTION_FACTOR = 2
# Beyond the limit: one shows whether there are more, and one may be the end of the range itself.
READ_BEYOND = 2


@dataclass(frozen=True, slots=True)
class Bill:
    """What a commit costs: write units, and the bytes of the rows it puts."""

    units: int
    bytes: int


OnBill = Callable[[Sequence[Write], Bill], None]
OnRead = Callable[[float], None]


def _nobody(units: float) -> None:
    """Reads are not asked for."""


class MeteredTable(TableDecorator):
    """Tells `on_bill` what each commit costs, once it is through or has failed on a condition, and
    `on_read` the units of each read.

    Rows are read before the commit to learn their size, so a commit of somebody else in between
    makes the bill of this one inexact, never the commit.
    """

    def __init__(self, table: StateTable, on_bill: OnBill, on_read: OnRead = _nobody) -> None:
        super().__init__(table)
        self._on_bill = on_bill
        self._on_read = on_read

    def get(self, key: Key) -> Row | None:
        """See StateTable."""
        row = super().get(key)
        self._on_read(_read_units(_size(row)))
        return row

    def get_many(self, keys: Sequence[Key]) -> tuple[Row | None, ...]:
        """See StateTable."""
        rows = self.table.get_many(keys)
        by_key = dict(zip(keys, rows, strict=True))
        self._on_read(sum(_read_units(_size(row)) for row in by_key.values()))
        return rows

    def query(
        self, partition: str, first: str, last: str, *, limit: int = 1000, descending: bool = False
    ) -> Page:
        """See StateTable."""
        if first < last:
            beyond = limit + READ_BEYOND
            read = self.table.query(partition, first, last, limit=beyond, descending=descending)
            self._on_read(_read_units(sum(map(_size, read.rows))))
        return super().query(partition, first, last, limit=limit, descending=descending)

    def due(self, shard: int, until_ms: int, *, limit: int = 100) -> tuple[Key, ...]:
        """See StateTable."""
        keys = super().due(shard, until_ms, limit=limit)
        self._on_read(_read_units(sum(stored_bytes(key, b"") for key in keys)) / 2)
        return keys

    def commit(self, writes: Sequence[Write]) -> None:
        """See StateTable."""
        cost = bill(writes, self.table.get)
        try:
            super().commit(writes)
        except CommitRefused:
            raise
        except TableError:
            self._on_bill(writes, cost)
            raise
        self._on_bill(writes, cost)


def bill(writes: Sequence[Write], read: Callable[[Key], Row | None]) -> Bill:
    """The bill of a commit on the rows that `read` gives."""
    sent = [write for write in writes if not asks_nothing(write)]
    is_plain = len(sent) == 1 and not isinstance(sent[0], Check)
    factor = 1 if is_plain else TRANSACTION_FACTOR
    units = sum(_units(write, _before(write, read), factor) for write in sent)
    written = sum(stored_bytes(put.key, put.body) for put in writes if isinstance(put, Put))
    return Bill(units, written)


def _before(write: Write, read: Callable[[Key], Row | None]) -> Row | None:
    return None if write.expect is Expect.ABSENT else read(write.key)


def _units(write: Write, before: Row | None, factor: int) -> int:
    due_before = before.due_ms if before else None
    match write:
        case Put(key, _, body, _, due_ms):
            size = max(_size(before), stored_bytes(key, body))
            return factor * _started(size) + _index_units(key, due_before, due_ms)
        case Delete(key):
            return factor * _started(_size(before)) + _index_units(key, due_before, None)
        case _:
            return factor


def _index_units(key: Key, before_ms: int | None, after_ms: int | None) -> int:
    """An entry is replaced by removing it and adding it: two writes."""
    if before_ms == after_ms:
        return 0
    entries = (before_ms is not None) + (after_ms is not None)
    return entries * _started(stored_bytes(key, b""))


def _size(row: Row | None) -> int:
    return stored_bytes(row.key, row.body) if row else 0


def _started(size: int) -> int:
    return max(1, -(-size // UNIT_BYTES))


def _read_units(size: int) -> int:
    return max(1, -(-size // READ_UNIT_BYTES))
