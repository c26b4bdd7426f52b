"""The StateTable in memory: for simulations, which make thousands of clusters and keep none.

It holds to the same suite as the others. A snapshot shares every partition until one side writes to
it, so that it costs little more than a list of their names.
"""

from bisect import bisect_left, insort
from collections.abc import Sequence
from threading import Lock

from control_plane.state.table import (
    SHARDS,
    Check,
    Conflict,
    Delete,
    Expect,
    Expected,
    Key,
    Page,
    Put,
    Row,
    Write,
    check_limits,
    shard_of,
    within_page,
)


class _Partition:
    """Rows by sort key, and the sort keys in order: that of code points is that of UTF-8 bytes."""

    __slots__ = ("rows", "shard", "sorts")

    def __init__(self, shard: int, rows: dict[str, Row], sorts: list[str]) -> None:
        self.shard = shard
        self.rows = rows
        self.sorts = sorts

    def copy(self) -> "_Partition":
        return _Partition(self.shard, dict(self.rows), list(self.sorts))


class MemoryTable:
    """A StateTable that lives as long as the object; threads may share it."""

    # A query is answered under the lock.
    snapshot_queries = True

    def __init__(self) -> None:
        self._lock = Lock()
        self._partitions: dict[str, _Partition] = {}
        # Partitions that a snapshot may share.
        self._shared: set[str] = set()
        self._due: list[list[tuple[int, str, str]]] = [[] for _ in range(SHARDS)]

    def snapshot(self) -> "MemoryTable":
        """The rows as of now, in a table that goes its own way from here."""
        with self._lock:
            self._shared = set(self._partitions)
            taken = MemoryTable()
            taken._partitions = dict(self._partitions)
            taken._shared = set(self._shared)
            taken._due = [list(entries) for entries in self._due]
        return taken

    def get(self, key: Key) -> Row | None:
        """See StateTable."""
        with self._lock:
            return self._get(key)

    def get_many(self, keys: Sequence[Key]) -> tuple[Row | None, ...]:
        """See StateTable."""
        with self._lock:
            return tuple(self._get(key) for key in keys)

    def query(
        self, partition: str, first: str, last: str, *, limit: int = 1000, descending: bool = False
    ) -> Page:
        """See StateTable."""
        with self._lock:
            held = self._partitions.get(partition)
            if held is None:
                return Page((), None)
            start, end = bisect_left(held.sorts, first), bisect_left(held.sorts, last)
            places = range(end - 1, start - 1, -1) if descending else range(start, end)
            found = [held.rows[held.sorts[place]] for place in places[:limit]]
            rows = tuple(found[: within_page(found)])
            if len(rows) == len(places):
                return Page(rows, None)
            following = held.sorts[places[len(rows)]]
            return Page(rows, rows[-1].key.sort if descending else following)

    def due(self, shard: int, until_ms: int, *, limit: int = 100) -> tuple[Key, ...]:
        """See StateTable."""
        with self._lock:
            entries = self._due[shard]
            end = bisect_left(entries, (until_ms + 1, "", ""))
            return tuple(Key(partition, sort) for _, partition, sort in entries[: min(end, limit)])

    def commit(self, writes: Sequence[Write]) -> None:
        """See StateTable."""
        check_limits(writes)
        with self._lock:
            for write in writes:
                if not _holds(self._get(write.key), write.expect):
                    raise Conflict(write.key)
            for write in writes:
                match write:
                    case Put():
                        self._put(Row(write.key, write.revision, write.body, write.due_ms))
                    case Delete():
                        self._delete(write.key)
                    case Check():
                        pass

    def _get(self, key: Key) -> Row | None:
        held = self._partitions.get(key.partition)
        return None if held is None else held.rows.get(key.sort)

    def _put(self, row: Row) -> None:
        partition, sort = row.key
        held = self._own(partition)
        before = held.rows.get(sort)
        if before is None:
            insort(held.sorts, sort)
        held.rows[sort] = row
        due_before = None if before is None else before.due_ms
        if due_before != row.due_ms:
            self._undue(held.shard, due_before, row.key)
            if row.due_ms is not None:
                insort(self._due[held.shard], (row.due_ms, partition, sort))

    def _delete(self, key: Key) -> None:
        if self._get(key) is None:
            return
        held = self._own(key.partition)
        gone = held.rows.pop(key.sort)
        del held.sorts[bisect_left(held.sorts, key.sort)]
        self._undue(held.shard, gone.due_ms, key)

    def _undue(self, shard: int, due_ms: int | None, key: Key) -> None:
        if due_ms is not None:
            entries = self._due[shard]
            del entries[bisect_left(entries, (due_ms, *key))]

    def _own(self, partition: str) -> _Partition:
        """The partition to write to, which nobody shares."""
        held = self._partitions.get(partition)
        if held is None:
            held = self._partitions[partition] = _Partition(shard_of(partition), {}, [])
        elif partition in self._shared:
            held = self._partitions[partition] = held.copy()
        self._shared.discard(partition)
        return held


def _holds(row: Row | None, expect: Expected) -> bool:
    match expect:
        case Expect.ANYTHING:
            return True
        case Expect.ABSENT:
            return row is None
        case Expect.PRESENT:
            return row is not None
        case revision:
            return row is not None and row.revision == revision
