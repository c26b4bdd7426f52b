"""Bills worked out by hand from the rules in control_plane/state/metering.py.

A row counts its keys, its body and 64 bytes: with partition "p" and sort "s", 66 bytes beside the
body, so that a body of 958 bytes fills the first KB.
"""

from collections.abc import Iterator, Sequence
from pathlib import Path

import pytest

from control_plane.state.metering import Bill, MeteredTable
from control_plane.state.sqlite import SqliteTable
from control_plane.state.table import (
    Check,
    CommitRefused,
    Conflict,
    Delete,
    Expect,
    Key,
    Put,
    Write,
)

KEY = Key("p", "s")
KB_BODY = 958


@pytest.fixture
def bills() -> list[Bill]:
    return []


@pytest.fixture
def table(tmp_path: Path, bills: list[Bill]) -> Iterator[MeteredTable]:
    inner = SqliteTable(tmp_path / "t.db", synchronous="NORMAL")

    def note(writes: Sequence[Write], bill: Bill) -> None:
        bills.append(bill)

    yield MeteredTable(inner, note)
    inner.close()


def _put(size: int, *, expect: Expect = Expect.ANYTHING, due_ms: int | None = None) -> Put:
    return Put(KEY, 1, b"x" * size, expect, due_ms)


@pytest.mark.parametrize(
    ("size", "units"),
    [
        (0, 2),  # 66 bytes: one started KB, twice
        (KB_BODY, 2),  # 1,024 bytes
        (KB_BODY + 1, 4),  # 1,025 bytes: two
        (KB_BODY + 1024, 4),
    ],
)
def test_a_put_costs_two_units_for_each_started_kilobyte(
    table: MeteredTable, bills: list[Bill], size: int, units: int
) -> None:
    table.commit((_put(size),))
    assert bills == [Bill(units, size + 66)]


def test_a_row_that_shrinks_is_billed_by_what_it_was(
    table: MeteredTable, bills: list[Bill]
) -> None:
    table.commit((_put(3000),))  # 3,066 bytes: 3 KB started, 6 units
    table.commit((_put(10),))
    assert [bill.units for bill in bills] == [6, 6]
    assert bills[1].bytes == 76


def test_a_delete_is_billed_by_the_row_it_removes(table: MeteredTable, bills: list[Bill]) -> None:
    table.commit((_put(3000),))
    table.commit((Delete(KEY, Expect.PRESENT),))
    table.commit((Delete(KEY, Expect.ANYTHING),))  # nothing there: the least there is
    assert bills == [Bill(6, 3066), Bill(6, 0), Bill(2, 0)]


def test_a_condition_costs_two_units(table: MeteredTable, bills: list[Bill]) -> None:
    table.commit((_put(3000),))
    table.commit((Check(KEY, 1),))
    assert bills[1] == Bill(2, 0)


def test_an_index_entry_costs_a_unit_when_it_appears_moves_or_goes(
    table: MeteredTable, bills: list[Bill]
) -> None:
    table.commit((_put(0, due_ms=5),))  # 2 and the entry
    table.commit((_put(1, due_ms=5),))  # the entry stays
    table.commit((_put(1, due_ms=6),))  # one out, one in
    table.commit((_put(1),))  # one out
    table.commit((_put(1, due_ms=7),))
    table.commit((Delete(KEY, Expect.PRESENT),))
    assert [bill.units for bill in bills] == [3, 2, 4, 3, 3, 3]


def test_a_commit_is_the_sum_of_its_writes(table: MeteredTable, bills: list[Bill]) -> None:
    other = Key("p", "t")
    table.commit((_put(0, due_ms=5), Put(other, 1, b"x" * 1000, Expect.ABSENT)))
    # 3 for the first; 1,066 bytes are 2 KB, 4 units
    assert bills == [Bill(3 + 4, 66 + 1066)]


def test_a_lost_race_is_billed_and_a_refused_commit_is_not(
    table: MeteredTable, bills: list[Bill]
) -> None:
    with pytest.raises(Conflict):
        table.commit((_put(0, expect=Expect.PRESENT),))
    with pytest.raises(CommitRefused):
        table.commit((_put(0), _put(1)))
    assert bills == [Bill(2, 66)]
