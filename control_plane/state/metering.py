"""What commits would cost on DynamoDB, as a decorator over any StateTable.

The rules are those of its developer guide, on-demand and provisioned capacity alike: a
transactional write costs two units per started KB of the item as it was before or after it,
whichever is larger; a delete goes by the item it removes; a condition on its own costs two; the
sparse due index, with keys only, costs one unit per started KB for each entry that appears or
goes, so two for one that moves. A transaction that fails on a condition is billed too.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from control_plane.state.faults import TableDecorator
from control_plane.state.table import (
    CommitRefused,
    Delete,
    Expect,
    Key,
    Put,
    Row,
    StateTable,
    TableError,
    Write,
    stored_bytes,
)

UNIT_BYTES = 1024
TRANSACTION_FACTOR = 2


@dataclass(frozen=True, slots=True)
class Bill:
    """What a commit costs: write units, and the bytes of the rows it puts."""

    units: int
    bytes: int


OnBill = Callable[[Sequence[Write], Bill], None]


class MeteredTable(TableDecorator):
    """Tells `on_bill` what each commit costs, once it is through or has failed on a condition.

    Rows are read before the commit to learn their size, so a commit of somebody else in between
    makes the bill of this one inexact, never the commit.
    """

    def __init__(self, table: StateTable, on_bill: OnBill) -> None:
        super().__init__(table)
        self._on_bill = on_bill

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
    units = sum(_units(write, _before(write, read)) for write in writes)
    written = sum(stored_bytes(put.key, put.body) for put in writes if isinstance(put, Put))
    return Bill(units, written)


def _before(write: Write, read: Callable[[Key], Row | None]) -> Row | None:
    return None if write.expect is Expect.ABSENT else read(write.key)


def _units(write: Write, before: Row | None) -> int:
    size_before = stored_bytes(before.key, before.body) if before else 0
    due_before = before.due_ms if before else None
    match write:
        case Put(key, _, body, _, due_ms):
            size = max(size_before, stored_bytes(key, body))
            return TRANSACTION_FACTOR * _started(size) + _index_units(key, due_before, due_ms)
        case Delete(key):
            cost = TRANSACTION_FACTOR * _started(size_before)
            return cost + _index_units(key, due_before, None)
        case _:
            return TRANSACTION_FACTOR


def _index_units(key: Key, before_ms: int | None, after_ms: int | None) -> int:
    """An entry is replaced by removing it and adding it: two writes."""
    if before_ms == after_ms:
        return 0
    entries = (before_ms is not None) + (after_ms is not None)
    return entries * _started(stored_bytes(key, b""))


def _started(size: int) -> int:
    return max(1, -(-size // UNIT_BYTES))
