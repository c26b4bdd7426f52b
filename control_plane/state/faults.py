"""Faults as decorators over any StateTable, for tests and simulations.

A process dies (CrashingTable), the table does not answer or a client library repeats a commit
(FlakyTable), somebody else acts between two of our calls (InterleavingTable) or between two rows
of one query (TearingTable).
"""

from collections.abc import Callable, Sequence
from random import Random
from threading import Lock
from typing import Literal

from control_plane.state.table import Key, Page, Row, StateTable, Unavailable, Write

When = Literal["before", "after"]


class Crash(BaseException):
    """The process ends here. No handler of Exception sees it, as none would see a power cut."""


class TableDecorator:
    """A StateTable that passes everything on; the faults override what they disturb.

    It promises no snapshots, so that readers take the care that the cloud's tables ask for.
    """

    snapshot_queries = False

    def __init__(self, table: StateTable) -> None:
        self.table = table

    def get(self, key: Key) -> Row | None:
        """See StateTable."""
        return self.table.get(key)

    def get_many(self, keys: Sequence[Key]) -> tuple[Row | None, ...]:
        """See StateTable; one by one, so that what disturbs `get` disturbs it too."""
        return tuple(self.get(key) for key in keys)

    def query(
        self, partition: str, first: str, last: str, *, limit: int = 1000, descending: bool = False
    ) -> Page:
        """See StateTable."""
        return self.table.query(partition, first, last, limit=limit, descending=descending)

    def due(self, shard: int, until_ms: int, *, limit: int = 100) -> tuple[Key, ...]:
        """See StateTable."""
        return self.table.due(shard, until_ms, limit=limit)

    def commit(self, writes: Sequence[Write]) -> None:
        """See StateTable."""
        self.table.commit(writes)


class CrashingTable(TableDecorator):
    """Raises Crash at commit number `crash_at` (from 1; 0: never), before or after it happened.

    A commit whose condition fails counts too: the process may die there as well. The dead process
    does nothing more: every later call raises Crash again.
    """

    def __init__(self, table: StateTable, crash_at: int = 0, when: When = "before") -> None:
        super().__init__(table)
        self.commits = 0
        self._crash_at = crash_at
        self._when = when

    def get(self, key: Key) -> Row | None:
        """See StateTable."""
        self._die_if_dead()
        return super().get(key)

    def query(
        self, partition: str, first: str, last: str, *, limit: int = 1000, descending: bool = False
    ) -> Page:
        """See StateTable."""
        self._die_if_dead()
        return super().query(partition, first, last, limit=limit, descending=descending)

    def commit(self, writes: Sequence[Write]) -> None:
        """See StateTable; raises Crash."""
        self._die_if_dead()
        self.commits += 1
        if self.commits != self._crash_at:
            super().commit(writes)
            return
        if self._when == "after":
            super().commit(writes)
        raise Crash(f"{self._when} commit {self.commits}")

    def _die_if_dead(self) -> None:
        if self._crash_at and self.commits >= self._crash_at:
            raise Crash(f"dead since commit {self._crash_at}")


class FlakyTable(TableDecorator):
    """Disturbs a share of the commits, drawn from `seed`: half of these are Unavailable, before or
    after the commit happened, and half are sent twice, as a client library's retry does.

    The second of two equal commits may raise Conflict though the first went through. A share of
    `reads_share` of the reads is Unavailable too.
    """

    def __init__(
        self, table: StateTable, seed: int, share: float = 0.1, reads_share: float = 0.0
    ) -> None:
        super().__init__(table)
        self.faults = 0
        self._random = Random(seed)
        self._share = share
        self._reads_share = reads_share
        self._lock = Lock()

    def get(self, key: Key) -> Row | None:
        """See StateTable."""
        self._fail_reading()
        return super().get(key)

    def get_many(self, keys: Sequence[Key]) -> tuple[Row | None, ...]:
        """See StateTable."""
        self._fail_reading()
        return super().get_many(keys)

    def query(
        self, partition: str, first: str, last: str, *, limit: int = 1000, descending: bool = False
    ) -> Page:
        """See StateTable."""
        self._fail_reading()
        return super().query(partition, first, last, limit=limit, descending=descending)

    def commit(self, writes: Sequence[Write]) -> None:
        """See StateTable."""
        with self._lock:
            drawn = self._random.random()
            self.faults += drawn < self._share
        if drawn < self._share / 4:
            raise Unavailable("throttled before the commit")
        super().commit(writes)
        if drawn < self._share / 2:
            raise Unavailable("the answer to the commit was lost")
        if drawn < self._share:
            super().commit(writes)

    def _fail_reading(self) -> None:
        with self._lock:
            fails = self._random.random() < self._reads_share
            self.faults += fails
        if fails:
            raise Unavailable("throttled reading")


class InterleavingTable(TableDecorator):
    """Lets somebody else act, once, right before the commit that `picks` chooses."""

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
        """See StateTable."""
        if not self.acted and self._picks(writes):
            self.acted = True
            self._act()
        super().commit(writes)


class TearingTable(TableDecorator):
    """Lets somebody else act in the middle of a query: rows up to the sort key `torn_at` were read
    before it, the others after. That is what a store answers that reads a range row by row.

    `queries` are the numbers (from 1) of the queries that are torn, None for every one of them;
    `act` is given the partition.
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
        """See StateTable; it is torn for ascending queries only."""
        self.queries += 1
        before = super().query(partition, first, last, limit=limit, descending=descending)
        if descending or (self._torn is not None and self.queries not in self._torn):
            return before
        if before.next_sort is not None and before.next_sort.encode() <= self._torn_at:
            # The page ends before that row: a later one is torn.
            return before
        self._act(partition)
        after = super().query(partition, first, last, limit=limit)
        early = (row for row in before.rows if row.key.sort.encode() <= self._torn_at)
        late = (row for row in after.rows if row.key.sort.encode() > self._torn_at)
        rows = (*early, *late)
        return Page(rows[:limit], rows[limit].key.sort if len(rows) > limit else after.next_sort)
