"""A StateTable in memory, for simulations, which create thousands of short-lived clusters.

A snapshot shares every partition with its table until either side writes to the partition. Creating
a snapshot therefore costs little more than copying the list of partition names.
"""

from bisect import bisect_left, insort
from collections.abc import Sequence
from threading import Lock

from control_plane.state.table import (
    EXPIRY_SHARDS,
    NEVER_MS,
    WORK_SHARDS,
    Check,
    Conflict,
    Delete,
    Key,
    Page,
    Put,
    Row,
    Write,
    check_limits,
    is_met,
    page_row_count,
    shard_of,
)


class _Partition:
    """The rows of a partition by sort key, and the sorted list of sort keys.

    Sorting by code points is the same as sorting by UTF-8 bytes.
    """

    __slots__ = ("rows", "sorts")

    def __init__(self, rows: dict[str, Row], sorts: list[str]) -> None:
        self.rows = rows
        self.sorts = sorts

    def copy(self) -> "_Partition":
        return _Partition(dict(self.rows), list(self.sorts))


class MemoryTable:
    """A StateTable in the memory of a process. Threads may share a table."""

    # Queries read all rows while holding the lock.
    snapshot_queries = True

    def __init__(self) -> None:
        self._lock = Lock()
        self._partitions: dict[str, _Partition] = {}
        # Names of the partitions that a snapshot may share.
        self._shared: set[str] = set()
        self._due: list[list[tuple[int, str, str]]] = [[] for _ in (*WORK_SHARDS, *EXPIRY_SHARDS)]

    def snapshot(self) -> "MemoryTable":
        """Return a copy of the table. Later changes to either table do not affect the other
        table.
        """
        with self._lock:
            self._shared = set(self._partitions)
            copy = MemoryTable()
            copy._partitions = dict(self._partitions)
            copy._shared = set(self._shared)
            copy._due = [list(entries) for entries in self._due]
        return copy

    def get(self, key: Key) -> Row | None:
        """Read a row. Return None for a missing row."""
        with self._lock:
            return self._get(key)

    def get_many(self, keys: Sequence[Key]) -> tuple[Row | None, ...]:
        """Read rows in the order of `keys`. Return None for a missing row."""
        with self._lock:
            return tuple(self._get(key) for key in keys)

    def query(
        self, partition: str, first: str, last: str, *, limit: int = 1000, descending: bool = False
    ) -> Page:
        """Read a page of a range of rows; see StateTable."""
        with self._lock:
            stored = self._partitions.get(partition)
            if stored is None:
                return Page((), None)
            start, end = bisect_left(stored.sorts, first), bisect_left(stored.sorts, last)
            places = range(end - 1, start - 1, -1) if descending else range(start, end)
            candidates = [stored.rows[stored.sorts[place]] for place in places[:limit]]
            rows = tuple(candidates[: page_row_count(candidates)])
            if len(rows) == len(places):
                return Page(rows, None)
            following = stored.sorts[places[len(rows)]]
            return Page(rows, rows[-1].key.sort if descending else following)

    def due_shards(self, shards: Sequence[int], until_ms: int) -> tuple[int, ...]:
        """Return all `shards`, because reading a shard in memory is cheap."""
        return tuple(shards)

    def due_keys(
        self, shard: int, until_ms: int, *, after_ms: int = NEVER_MS, limit: int = 100
    ) -> tuple[Key, ...]:
        """Read keys of a shard that are due after `after_ms` and at or before `until_ms`; see
        StateTable.
        """
        with self._lock:
            entries = self._due[shard]
            start = bisect_left(entries, (after_ms + 1, "", ""))
            end = min(bisect_left(entries, (until_ms + 1, "", "")), start + limit)
            return tuple(Key(partition, sort) for _, partition, sort in entries[start:end])

    def commit(self, writes: Sequence[Write]) -> None:
        """Apply all writes atomically; see StateTable."""
        check_limits(writes)
        with self._lock:
            for write in writes:
                row = self._get(write.key)
                if not is_met(write.expect, None if row is None else row.revision):
                    raise Conflict(write.key)
            for write in writes:
                match write:
                    case Put():
                        self._put(_stored_row(write))
                    case Delete():
                        self._delete(write.key)
                    case Check():
                        pass

    def _get(self, key: Key) -> Row | None:
        """Return the stored row, or None. The caller holds the lock."""
        stored = self._partitions.get(key.partition)
        return None if stored is None else stored.rows.get(key.sort)

    def _put(self, row: Row) -> None:
        """Store a row and update the due index. The caller holds the lock."""
        partition, sort = row.key
        stored = self._writable_partition(partition)
        before = stored.rows.get(sort)
        if before is None:
            insort(stored.sorts, sort)
        stored.rows[sort] = row
        if before is not None:
            self._remove_due_entry(before)
        if row.due_ms is not None:
            shard = shard_of(partition, expires=row.expires)
            insort(self._due[shard], (row.due_ms, partition, sort))

    def _delete(self, key: Key) -> None:
        """Delete an existing row, and update the due index. Do nothing for a missing row.

        The caller holds the lock.
        """
        if self._get(key) is None:
            return
        stored = self._writable_partition(key.partition)
        deleted = stored.rows.pop(key.sort)
        del stored.sorts[bisect_left(stored.sorts, key.sort)]
        self._remove_due_entry(deleted)

    def _remove_due_entry(self, row: Row) -> None:
        """Remove a row from the due index, if the row is in the index."""
        if row.due_ms is not None:
            entries = self._due[shard_of(row.key.partition, expires=row.expires)]
            del entries[bisect_left(entries, (row.due_ms, *row.key))]

    def _writable_partition(self, partition: str) -> _Partition:
        """Return the partition for writing. Create a missing partition and copy a shared
        partition.
        """
        stored = self._partitions.get(partition)
        if stored is None:
            stored = self._partitions[partition] = _Partition({}, [])
        elif partition in self._shared:
            stored = self._partitions[partition] = stored.copy()
        self._shared.discard(partition)
        return stored


def _stored_row(put: Put) -> Row:
    """Return the row that a Put stores."""
    return Row(put.key, put.revision, put.body, put.due_ms, put.expires)
