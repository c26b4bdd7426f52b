"""Faults as decorators over any StateTable, for tests and simulations.

A process dies (CrashingTable), the table does not answer or a client library repeats a commit
(FlakyTable), another process acts between two calls (InterleavingTable) or between two rows of one
query (TearingTable).
"""

from collections.abc import Callable, Sequence
from random import Random
from threading import Lock
from typing import Literal

from control_plane.state.table import NEVER_MS, Key, Page, Row, StateTable, Unavailable, Write

CrashMoment = Literal["before", "after"]


class Crash(BaseException):
    """The process ends here. No handler of Exception catches it, as none would a power cut."""


class TableDecorator:
    """A StateTable that passes every call on to another; subclasses override what they disturb.

    Its queries are no snapshots, so that readers take the care that a cloud's table needs.
    """

    snapshot_queries = False

    def __init__(self, table: StateTable) -> None:
        self.table = table

    def get(self, key: Key) -> Row | None:
        """Read a row, or None."""
        return self.table.get(key)

    def get_many(self, keys: Sequence[Key]) -> tuple[Row | None, ...]:
        """Read rows one by one, so that a fault of `get` is a fault here too."""
        return tuple(self.get(key) for key in keys)

    def query(
        self, partition: str, first: str, last: str, *, limit: int = 1000, descending: bool = False
    ) -> Page:
        """Read one page of a range of rows."""
        return self.table.query(partition, first, last, limit=limit, descending=descending)

    def due_shards(self, shards: Sequence[int], until_ms: int) -> tuple[int, ...]:
        """Return those of the shards that may have due rows."""
        return self.table.due_shards(shards, until_ms)

    def due_keys(
        self, shard: int, until_ms: int, *, after_ms: int = NEVER_MS, limit: int = 100
    ) -> tuple[Key, ...]:
        """Read keys of due rows of a shard, earliest first."""
        return self.table.due_keys(shard, until_ms, after_ms=after_ms, limit=limit)

    def commit(self, writes: Sequence[Write]) -> None:
        """Make all writes or none."""
        self.table.commit(writes)


class CrashingTable(TableDecorator):
    """Raises Crash at commit number `crash_at` (from 1; 0: never), before or after it happened.

    A commit whose condition fails counts too: the process may die there as well. The dead process
    does nothing more: every later call raises Crash again.
    """

    def __init__(self, table: StateTable, crash_at: int = 0, when: CrashMoment = "before") -> None:
        super().__init__(table)
        self.commits = 0
        self._crash_at = crash_at
        self._when = when

    def get(self, key: Key) -> Row | None:
        """Read a row, or None."""
        self._raise_if_crashed()
        return super().get(key)

    def query(
        self, partition: str, first: str, last: str, *, limit: int = 1000, descending: bool = False
    ) -> Page:
        """Read one page of a range of rows."""
        self._raise_if_crashed()
        return super().query(partition, first, last, limit=limit, descending=descending)

    def commit(self, writes: Sequence[Write]) -> None:
        """Make all writes or none, or raise Crash."""
        self._raise_if_crashed()
        self.commits += 1
        if self.commits != self._crash_at:
            super().commit(writes)
            return
        if self._when == "after":
            super().commit(writes)
        raise Crash(f"{self._when} commit {self.commits}")

    def _raise_if_crashed(self) -> None:
        if self._crash_at and self.commits >= self._crash_at:
            raise Crash(f"crashed at commit {self._crash_at}")


class FlakyTable(TableDecorator):
    """Disturbs a random `share` of the commits: half of them raise Unavailable, before or after the
    commit happened, and half are sent twice, as a client library's retry does.

    The second of two equal commits may raise Conflict though the first succeeded. A random
    `reads_share` of the reads raises Unavailable too. Equal seeds give equal faults.
    """

    def __init__(
        self, table: StateTable, seed: int, share: float = 0.1, reads_share: float = 0.0
    ) -> None:
        super().__init__(table)
        self.fault_count = 0
        self._random = Random(seed)
        self._share = share
        self._reads_share = reads_share
        self._lock = Lock()

    def get(self, key: Key) -> Row | None:
        """Read a row, or None."""
        self._maybe_fail_read()
        return super().get(key)

    def get_many(self, keys: Sequence[Key]) -> tuple[Row | None, ...]:
        """Read rows by their keys, in their order; None for a row that does not exist."""
        self._maybe_fail_read()
        return super().get_many(keys)

    def query(
        self, partition: str, first: str, last: str, *, limit: int = 1000, descending: bool = False
    ) -> Page:
        """Read one page of a range of rows."""
        self._maybe_fail_read()
        return super().query(partition, first, last, limit=limit, descending=descending)

    def commit(self, writes: Sequence[Write]) -> None:
        """Make all writes or none."""
        with self._lock:
            chance = self._random.random()
            self.fault_count += chance < self._share
        if chance < self._share / 4:
            raise Unavailable("throttled before the commit")
        super().commit(writes)
        if chance < self._share / 2:
            raise Unavailable("the response to the commit was lost")
        if chance < self._share:
            super().commit(writes)

    def _maybe_fail_read(self) -> None:
        with self._lock:
            fails = self._random.random() < self._reads_share
            self.fault_count += fails
        if fails:
            raise Unavailable("throttled reading")


class InterleavingTable(TableDecorator):
    """Calls `act`, which stands for another process, once, right before the first commit that
    `picks` accepts.
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
        """Make all writes or none."""
        if not self.acted and self._picks(writes):
            self.acted = True
            self._act()
        super().commit(writes)


class TearingTable(TableDecorator):
    """Calls `act`, which stands for another process, in the middle of a query: rows up to the sort
    key `torn_at` are read before it, the others after. A store that reads a range row by row gives
    such answers.

    `queries` are the numbers (from 1) of the queries that are torn, None for all of them; `act` is
    given the partition.
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
        self._torn_at = torn_at.encode()
        self._torn = queries

    def query(
        self, partition: str, first: str, last: str, *, limit: int = 1000, descending: bool = False
    ) -> Page:
        """Read one page of a range of rows, torn if the query is ascending and chosen."""
        self.queries += 1
        before = super().query(partition, first, last, limit=limit, descending=descending)
        if descending or (self._torn is not None and self.queries not in self._torn):
            return before
        if before.next_sort is not None and before.next_sort.encode() <= self._torn_at:
            # The page ends before `torn_at`: a later page is torn.
            return before
        self._act(partition)
        after = super().query(partition, first, last, limit=limit)
        early = (row for row in before.rows if row.key.sort.encode() <= self._torn_at)
        late = (row for row in after.rows if row.key.sort.encode() > self._torn_at)
        rows = (*early, *late)
        return Page(rows[:limit], rows[limit].key.sort if len(rows) > limit else after.next_sort)
