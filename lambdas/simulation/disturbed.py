"""The state table as one host sees it: slow, torn, throttled, and left in the middle by a host that
dies.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from random import Random
from zlib import crc32

from control_plane.dispatch.mailbox import MAIL
from control_plane.state.faults import Crash, TableDecorator
from control_plane.state.memory import MemoryTable
from control_plane.state.table import (
    Conflict,
    Delete,
    Key,
    Page,
    Row,
    StateTable,
    Unavailable,
    Write,
)
from lambdas.simulation.chances import Chances

# Somebody else who acts in the middle of an operation may be interrupted in turn, so often.
DEPTH_MAX = 3


@dataclass
class Weather:
    """What strikes every host. `others_act` lets somebody else act in the middle of an operation;
    `struck` counts what was done, by name.
    """

    random: Random
    chances: Chances
    others_act: Callable[[], None]
    depth: int = 0
    stale: MemoryTable | None = None
    struck: dict[str, int] = field(default_factory=dict)

    def strikes(self, name: str, share: float) -> bool:
        """Draws whether something happens, and counts it."""
        if not share or self.random.random() >= share:
            return False
        self.struck[name] = self.struck.get(name, 0) + 1
        return True

    def race(self) -> None:
        """Lets somebody else act, if it comes to that."""
        if self.depth < DEPTH_MAX and self.strikes("races", self.chances.races):
            self.meanwhile()

    def meanwhile(self) -> None:
        """Lets somebody else act."""
        self.depth += 1
        try:
            self.others_act()
        finally:
            self.depth -= 1


class DisturbedTable(TableDecorator):
    """Whatever may come between a host and the table. A host that has crashed is dead: every later
    call raises Crash again.
    """

    def __init__(self, table: StateTable, weather: Weather) -> None:
        super().__init__(table)
        self.dead = False
        self._weather = weather

    def get(self, key: Key) -> Row | None:
        """See StateTable; raises Crash."""
        self._read()
        return self.table.get(key)

    def query(
        self, partition: str, first: str, last: str, *, limit: int = 1000, descending: bool = False
    ) -> Page:
        """See StateTable; raises Crash."""
        self._read()
        weather = self._weather
        page = self.table.query(partition, first, last, limit=limit, descending=descending)
        if descending or not page.rows or weather.depth >= DEPTH_MAX:
            return page
        if not weather.strikes("torn_queries", weather.chances.torn_queries):
            return page
        weather.meanwhile()
        self._live()
        torn_at = weather.random.choice(page.rows).key.sort
        again = self.table.query(partition, first, last, limit=limit)
        early = (row for row in page.rows if row.key.sort <= torn_at)
        late = (row for row in again.rows if row.key.sort > torn_at)
        rows = (*early, *late)
        return Page(rows[:limit], rows[limit].key.sort if len(rows) > limit else again.next_sort)

    def due(self, shard: int, until_ms: int, *, limit: int = 100) -> tuple[Key, ...]:
        """See StateTable; raises Crash."""
        self._read()
        stale = self._weather.stale
        if stale is not None:
            return stale.due(shard, until_ms, limit=limit)
        return self.table.due(shard, until_ms, limit=limit)

    def commit(self, writes: Sequence[Write]) -> None:
        """See StateTable; raises Crash."""
        weather, chances = self._weather, self._weather.chances
        self._live()
        weather.race()
        self._live()
        if self._is_too_much(writes) or weather.strikes("crashes", chances.crashes / 2):
            self._die("before a commit")
        if weather.strikes("throttling", chances.throttling / 2):
            raise Unavailable("throttled before the commit")
        if weather.strikes("conflicts", chances.conflicts):
            raise Conflict(writes[0].key)
        self.table.commit(writes)
        if weather.strikes("crashes", chances.crashes / 2):
            self._die("after a commit")
        if weather.strikes("throttling", chances.throttling / 2):
            raise Unavailable("the answer to the commit was lost")
        if weather.strikes("duplicates", chances.duplicates):
            self.table.commit(writes)

    def _read(self) -> None:
        self._live()
        weather, chances = self._weather, self._weather.chances
        if chances.races:
            weather.race()
            self._live()
        if chances.throttling and weather.strikes("throttling", chances.throttling / 4):
            raise Unavailable("throttled reading")

    def _live(self) -> None:
        if self.dead:
            raise Crash("dead since an earlier crash")

    def _die(self, when: str) -> None:
        self.dead = True
        raise Crash(when)

    def _is_too_much(self, writes: Sequence[Write]) -> bool:
        """Whether the fold behind the commit is one that does not fit into a host's memory: the
        same one never does, but each of its rows does alone.
        """
        share = self._weather.chances.out_of_memory
        if not share:
            return False
        folded = [w.key for w in writes if isinstance(w, Delete) and w.key.sort.startswith(MAIL)]
        if len(folded) < 2:
            return False
        drawn = crc32(repr(folded).encode()) / 2**32
        if drawn < share:
            self._weather.struck["out_of_memory"] = self._weather.struck.get("out_of_memory", 0) + 1
        return drawn < share
