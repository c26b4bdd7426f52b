"""The age of the tick's last pass, which answers to agents contain."""

from collections.abc import Callable

import pytest

from control_plane.agents.tick_age import READ_MS, TickAges
from control_plane.fleet.records import FleetRow
from control_plane.fleet.rows import FLEETS, encode_row
from control_plane.state.memory import MemoryTable
from control_plane.state.table import Expect, Key, Put, Row, Unavailable
from simulator.faults.table_faults import TableDecorator

NOW_MS = 1_700_000_000_000


class CountingTable(TableDecorator):
    """A table that counts the reads of single rows, and fails if `is_away` is set."""

    def __init__(self) -> None:
        super().__init__(MemoryTable())
        self.reads = 0
        self.is_away = False

    def get(self, key: Key) -> Row | None:
        self.reads += 1
        if self.is_away:
            raise Unavailable("the table does not answer")
        return super().get(key)

    def store_pass(self, passed_ms: int, pool: str = "gpus") -> None:
        """Store a fleet with its last pass at `passed_ms`, as the provisioner does."""
        body = encode_row(FleetRow(pool, passed_ms=passed_ms))
        self.commit((Put(Key(FLEETS, pool), 1, body, Expect.ANYTHING),))


@pytest.fixture
def table() -> CountingTable:
    return CountingTable()


def test_age_is_the_time_since_the_pass_and_never_negative(table: CountingTable) -> None:
    table.store_pass(NOW_MS - 90_000)
    # The host of the last pass had a clock that was ahead.
    table.store_pass(NOW_MS + 1_000, "ahead")
    ages = TickAges(table)
    assert ages.age_ms("gpus", NOW_MS) == 90_000
    assert ages.age_ms("ahead", NOW_MS) == 0


def test_pool_without_a_pass_has_no_age(table: CountingTable) -> None:
    table.store_pass(0, "new")
    ages = TickAges(table)
    assert (ages.age_ms("static", NOW_MS), ages.age_ms("new", NOW_MS)) == (None, None)


def test_row_is_read_once_a_minute(table: CountingTable) -> None:
    table.store_pass(NOW_MS - 1_000)
    ages = TickAges(table)
    assert ages.age_ms("gpus", NOW_MS) == 1_000
    table.store_pass(NOW_MS + 30_000)
    # The age grows with the clock, although the row is not read.
    assert ages.age_ms("gpus", NOW_MS + READ_MS - 1) == 1_000 + READ_MS - 1
    assert table.reads == 1
    assert ages.age_ms("gpus", NOW_MS + READ_MS) == READ_MS - 30_000
    assert table.reads == 2


@pytest.mark.parametrize("moved_ms", [READ_MS, -READ_MS])
def test_row_is_read_again_after_the_clock_moved(table: CountingTable, moved_ms: int) -> None:
    ages = TickAges(table)
    ages.age_ms("gpus", NOW_MS)
    ages.age_ms("gpus", NOW_MS + moved_ms)
    assert table.reads == 2


def damage_row(table: CountingTable) -> None:
    table.commit((Put(Key(FLEETS, "gpus"), 2, b"{", Expect.ANYTHING),))


def stop_table(table: CountingTable) -> None:
    table.is_away = True


@pytest.mark.parametrize("break_row", [damage_row, stop_table])
def test_unreadable_row_gives_no_age(
    table: CountingTable, break_row: Callable[[CountingTable], None]
) -> None:
    table.store_pass(NOW_MS - 90_000)
    break_row(table)
    ages = TickAges(table)
    assert [ages.age_ms("gpus", NOW_MS + ms) for ms in (0, 1_000)] == [None, None]
    assert table.reads == 1
