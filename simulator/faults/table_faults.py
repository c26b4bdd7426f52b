"""State tables with injected faults, for tests and simulations. Each wraps another StateTable.

- CrashingTable: the process dies at a commit.
- InterleavingTable: another process acts between two calls.
- TearingTable: another process acts between two rows of a query.
"""

from collections.abc import Callable, Sequence
from typing import Literal

from control_plane.state.table import NEVER_MS, Key, Page, Row, StateTable, Write

CrashMoment = Literal["before", "after"]


class Crash(BaseException):
    """The simulated end of the process. Handlers of Exception do not catch it."""


class TableDecorator:
    """A StateTable that passes every call to another table. Subclasses override the disturbed
    calls.

    Queries are not snapshots, so that readers must be as careful as with a cloud's table.
    """

    snapshot_queries = False

    def __init__(self, table: StateTable) -> None:
        self.table = table

    def get(self, key: Key) -> Row | None:
        """Read a row. Return None for a missing row."""
        return self.table.get(key)

    def get_many(self, keys: Sequence[Key]) -> tuple[Row | None, ...]:
        """Read rows by separate `get` calls, so that faults of `get` apply here too."""
        return tuple(self.get(key) for key in keys)

    def query(
        self, partition: str, first: str, last: str, *, limit: int = 1000, descending: bool = False
    ) -> Page:
        """Read a page of a range of rows; see StateTable."""
        return self.table.query(partition, first, last, limit=limit, descending=descending)

    def due_shards(self, shards: Sequence[int], until_ms: int) -> tuple[int, ...]:
        """Return the `shards` that may have rows due at or before `until_ms`; see StateTable."""
        return self.table.due_shards(shards, until_ms)

    def due_keys(
        self, shard: int, until_ms: int, *, after_ms: int = NEVER_MS, limit: int = 100
    ) -> tuple[Key, ...]:
        """Read keys of a shard that are due after `after_ms` and at or before `until_ms`; see
        StateTable.
        """
        return self.table.due_keys(shard, until_ms, after_ms=after_ms, limit=limit)

    def commit(self, writes: Sequence[Write]) -> None:
        """Apply all writes atomically; see StateTable."""
        self.table.commit(writes)


class CrashingTable(TableDecorator):
    """Raises Crash at commit number `crash_at`, counted from 1. With 0, no commit crashes.

    `when` selects whether the crash happens before or after the commit. A commit with a failed
    condition counts as well. After a crash, later calls of `get`, `get_many`, `query` and `commit`
    raise Crash again. `due_shards` and `due_keys` never raise Crash.
    """

    def __init__(self, table: StateTable, crash_at: int = 0, when: CrashMoment = "before") -> None:
        super().__init__(table)
        self.commits = 0
        self._crash_at = crash_at
        self._when = when

    def get(self, key: Key) -> Row | None:
        """Read a row. Return None for a missing row. Raises Crash after the crash."""
        self._raise_if_crashed()
        return super().get(key)

    def query(
        self, partition: str, first: str, last: str, *, limit: int = 1000, descending: bool = False
    ) -> Page:
        """Read a page of a range of rows; see StateTable. Raises Crash after the crash."""
        self._raise_if_crashed()
        return super().query(partition, first, last, limit=limit, descending=descending)

    def commit(self, writes: Sequence[Write]) -> None:
        """Apply all writes atomically and count the commit. Commit number `crash_at` raises Crash.

        With `when` "after", the writes of the crashing commit are applied before Crash is raised.
        With "before", and after the crash, nothing is written.
        """
        self._raise_if_crashed()
        self.commits += 1
        if self.commits != self._crash_at:
            super().commit(writes)
            return
        if self._when == "after":
            super().commit(writes)
        raise Crash(f"{self._when} commit {self.commits}")

    def _raise_if_crashed(self) -> None:
        """Raise Crash if the process has crashed already."""
        if self._crash_at and self.commits >= self._crash_at:
            raise Crash(f"crashed at commit {self._crash_at}")


class InterleavingTable(TableDecorator):
    """Calls `act` once, directly before the first commit that `picks` accepts.

    `act` stands for another process. `acted` is True after the call.
    """

    def __init__(
        self,
        table: StateTable,
        act: Callable[[], object],
        picks: Callable[[Sequence[Write]], bool] = lambda writes: True,
    ) -> None:
        super().__init__(table)
        self.acted = False
        self._act = act
        self._picks = picks

    def commit(self, writes: Sequence[Write]) -> None:
        """Apply all writes atomically. Before the first accepted commit, call `act`."""
        if not self.acted and self._picks(writes):
            self.acted = True
            self._act()
        super().commit(writes)


class TearingTable(TableDecorator):
    """Calls `act` in the middle of a query, as if another process wrote between two reads of rows.

    Rows up to the sort key `torn_at` are read before the call, and later rows after the call.
    Stores that read a range row by row can return such a page. `act` is called with the partition.

    Args:
        queries: the numbers of the torn queries, counted from 1. None tears all queries.
    """

    def __init__(
        self,
        table: StateTable,
        act: Callable[[str], object],
        torn_at: str,
        queries: frozenset[int] | None = frozenset({1}),
    ) -> None:
        super().__init__(table)
        self.queries = 0
        self._act = act
        self._torn_at = torn_at
        self._torn = queries

    def query(
        self, partition: str, first: str, last: str, *, limit: int = 1000, descending: bool = False
    ) -> Page:
        """Read a page of a range of rows. Ascending queries that are selected by number are
        torn.
        """
        self.queries += 1
        before = super().query(partition, first, last, limit=limit, descending=descending)
        if descending or (self._torn is not None and self.queries not in self._torn):
            return before
        if before.next_sort is not None and before.next_sort.encode() <= self._torn_at.encode():
            # The page ends before `torn_at`, so a later page is torn instead.
            return before
        self._act(partition)
        after = super().query(partition, first, last, limit=limit)
        return torn_page(before, after, self._torn_at, limit)


def torn_page(before: Page, after: Page, torn_at: str, limit: int) -> Page:
    """Return a page with the rows of `before` up to the sort key `torn_at`, and later rows of
    `after`.

    Args:
        limit: the maximum number of rows. The next page begins at the first row beyond this number.
    """
    last = torn_at.encode()
    early = (row for row in before.rows if row.key.sort.encode() <= last)
    late = (row for row in after.rows if row.key.sort.encode() > last)
    rows = (*early, *late)
    return Page(rows[:limit], rows[limit].key.sort if len(rows) > limit else after.next_sort)
