"""The state table with a single host's faults: races, torn queries, throttling and crashes."""

from collections.abc import Sequence
from dataclasses import replace
from random import Random
from zlib import crc32

from control_plane.engine.mailbox import MAIL
from control_plane.state.table import (
    NEVER_MS,
    Conflict,
    Delete,
    Key,
    Page,
    Row,
    StateTable,
    Unavailable,
    Write,
)
from simulator.faults.fault_rates import NO_FAULTS
from simulator.faults.fault_state import DEPTH_MAX, FaultState
from simulator.faults.table_faults import Crash, TableDecorator, torn_page


class FaultyTable(TableDecorator):
    """A state table with faults for the calls of a host.

    Except for `due_shards`, the methods below may first run other events of the simulation. They
    may also raise Unavailable by the fault `throttling`. After a crash of the host, these methods
    raise Crash.

    Attributes:
        is_dead: whether the host has crashed.
    """

    def __init__(self, table: StateTable, faults: FaultState) -> None:
        super().__init__(table)
        self.is_dead = False
        self._faults = faults

    def get(self, key: Key) -> Row | None:
        """Read a row as StateTable describes. Raises Crash and Unavailable."""
        self._before_read()
        return self.table.get(key)

    def query(
        self, partition: str, first: str, last: str, *, limit: int = 1000, descending: bool = False
    ) -> Page:
        """Read a page of rows as StateTable describes.

        By the fault `torn_queries`, an ascending page contains rows from before and after another
        event. Raises Crash and Unavailable.
        """
        self._before_read()
        faults = self._faults
        page = self.table.query(partition, first, last, limit=limit, descending=descending)
        if descending or not page.rows or faults.depth >= DEPTH_MAX:
            return page
        if not faults.draw_fault("torn_queries", faults.rates.torn_queries):
            return page
        faults.interleave()
        self._check_alive()
        torn_at = faults.random.choice(page.rows).key.sort
        again = self.table.query(partition, first, last, limit=limit)
        return torn_page(page, again, torn_at, limit)

    def due_shards(self, shards: Sequence[int], until_ms: int) -> tuple[int, ...]:
        """Return the shards that may have due rows, as StateTable describes.

        Read the older copy of the table while the due index is stale. Raises Crash.
        """
        self._check_alive()
        return (self._faults.stale_rows or self.table).due_shards(shards, until_ms)

    def due_keys(
        self, shard: int, until_ms: int, *, after_ms: int = NEVER_MS, limit: int = 100
    ) -> tuple[Key, ...]:
        """Read the index of due rows as StateTable describes.

        Read the older copy of the table while the index is stale. Raises Crash and Unavailable.
        """
        self._before_read()
        stale_rows = self._faults.stale_rows
        if stale_rows is not None:
            return stale_rows.due_keys(shard, until_ms, after_ms=after_ms, limit=limit)
        return self.table.due_keys(shard, until_ms, after_ms=after_ms, limit=limit)

    def commit(self, writes: Sequence[Write]) -> None:
        """Commit as StateTable describes, with faults before and after.

        Raises Crash and Unavailable, each either without or after the commit. Raises Conflict, also
        by a fault without a commit. By the fault `duplicates`, the writes are committed twice; the
        second commit usually raises Conflict.
        """
        faults, rates = self._faults, self._faults.rates
        self._check_alive()
        faults.draw_race()
        self._check_alive()
        if self._exceeds_memory(writes) or faults.draw_fault("crashes", rates.crashes / 2):
            self._crash("before a commit")
        if faults.draw_fault("throttling", rates.throttling / 2):
            raise Unavailable("throttled before the commit")
        if faults.draw_fault("conflicts", rates.conflicts):
            raise Conflict(writes[0].key)
        self.table.commit(writes)
        if faults.draw_fault("crashes", rates.crashes / 2):
            self._crash("after a commit")
        if faults.draw_fault("throttling", rates.throttling / 2):
            raise Unavailable("the response to the commit was lost")
        if faults.draw_fault("duplicates", rates.duplicates):
            self.table.commit(writes)

    def _before_read(self) -> None:
        """Run another event or raise Unavailable, by the faults of reads. Raises Crash if dead."""
        self._check_alive()
        faults, rates = self._faults, self._faults.rates
        if rates.races:
            faults.draw_race()
            self._check_alive()
        if rates.throttling and faults.draw_fault("throttling", rates.throttling / 4):
            raise Unavailable("throttled reading")

    def _check_alive(self) -> None:
        if self.is_dead:
            raise Crash("dead since an earlier crash")

    def _crash(self, when: str) -> None:
        self.is_dead = True
        raise Crash(when)

    def _exceeds_memory(self, writes: Sequence[Write]) -> bool:
        """Return whether a commit's fold exceeds the memory of a host, and count the fault.

        The result is the same for the same messages. A fold of a single row of mail always fits.
        """
        rate = self._faults.rates.out_of_memory
        if not rate:
            return False
        folded = [w.key for w in writes if isinstance(w, Delete) and w.key.sort.startswith(MAIL)]
        if len(folded) < 2:
            return False
        is_hit = crc32(repr(folded).encode()) / 2**32 < rate
        if is_hit:
            self._faults.count_fault("out_of_memory")
        return is_hit


class FlakyTable(FaultyTable):
    """Disturbs a random `share` of the commits and a random `reads_share` of the reads.

    Half of the disturbed commits raise Unavailable, before or after the commit. The other half are
    sent twice, as by a client library. The second of two equal commits may raise Conflict although
    the first succeeded. A disturbed read raises Unavailable.

    Equal seeds inject equal faults.
    """

    def __init__(
        self, table: StateTable, seed: int, share: float = 0.1, reads_share: float = 0.0
    ) -> None:
        half = share / 2
        # A commit is sent twice only if it did not raise Unavailable.
        rates = replace(NO_FAULTS, throttling=half, duplicates=half / (1 - half))
        super().__init__(table, FaultState(Random(seed), rates, lambda: None))
        self._reads_share = reads_share

    @property
    def fault_count(self) -> int:
        """The number of injected faults."""
        return sum(self._faults.counts.values())

    def _before_read(self) -> None:
        if self._faults.draw_fault("throttling", self._reads_share):
            raise Unavailable("throttled reading")
