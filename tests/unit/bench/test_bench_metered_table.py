"""Bills of reads and writes, calculated by hand from the rules in bench/metered_table.py.

A row counts its keys, its body and 64 bytes. With partition "p" and sort key "s", these are 66
bytes beside the body, so a body of 958 bytes fills the first KB.
"""

from collections.abc import Iterator, Sequence
from pathlib import Path

import pytest

from bench.metered_table import Bill, MeteredTable
from control_plane.state.sqlite import SqliteTable
from control_plane.state.table import (
    Check,
    Conflict,
    Delete,
    Expect,
    InvalidCommit,
    Key,
    Put,
    Write,
    shard_of,
)

KEY, OTHER = Key("p", "s"), Key("p", "t")
KB_BODY = 958


@pytest.fixture
def bills() -> list[Bill]:
    return []


@pytest.fixture
def reads() -> list[float]:
    return []


@pytest.fixture
def table(tmp_path: Path, bills: list[Bill], reads: list[float]) -> Iterator[MeteredTable]:
    inner = SqliteTable(tmp_path / "t.db", synchronous="NORMAL")

    def note(writes: Sequence[Write], bill: Bill) -> None:
        bills.append(bill)

    yield MeteredTable(inner, note, reads.append)
    inner.close()


def _put(size: int, *, expect: Expect = Expect.ANYTHING, due_ms: int | None = None) -> Put:
    return Put(KEY, 1, b"x" * size, expect, due_ms)


@pytest.mark.parametrize(
    ("size", "units"),
    [
        (0, 1),  # 66 bytes: one started KB
        (KB_BODY, 1),  # 1,024 bytes
        (KB_BODY + 1, 2),  # 1,025 bytes: two
        (KB_BODY + 1024, 2),
    ],
)
def test_single_put_costs_a_unit_per_started_kilobyte(
    table: MeteredTable, bills: list[Bill], size: int, units: int
) -> None:
    table.commit((_put(size),))
    assert bills == [Bill(units, size + 66)]


def test_shrunk_row_is_billed_by_its_former_size(table: MeteredTable, bills: list[Bill]) -> None:
    table.commit((_put(3000),))  # 3,066 bytes: 3 KB started
    table.commit((_put(10),))
    assert [bill.units for bill in bills] == [3, 3]
    assert bills[1].bytes == 76


def test_delete_is_billed_by_the_deleted_row(table: MeteredTable, bills: list[Bill]) -> None:
    table.commit((_put(3000),))
    table.commit((Delete(KEY, Expect.PRESENT),))
    table.commit((Delete(KEY, Expect.ANYTHING),))  # no row: the minimum
    assert bills == [Bill(3, 3066), Bill(3, 0), Bill(1, 0)]


def test_condition_costs_two_units(table: MeteredTable, bills: list[Bill]) -> None:
    table.commit((_put(3000),))
    # A single condition is a transaction, too.
    table.commit((Check(KEY, 1),))
    assert bills[1] == Bill(2, 0)


def test_condition_without_expectation_is_not_sent(table: MeteredTable, bills: list[Bill]) -> None:
    table.commit((_put(0), Check(OTHER, Expect.ANYTHING)))
    table.commit((Check(OTHER, Expect.ANYTHING),))
    assert bills == [Bill(1, 66), Bill(0, 0)]


def test_added_or_removed_index_entry_costs_a_unit(table: MeteredTable, bills: list[Bill]) -> None:
    table.commit((_put(0, due_ms=5),))  # 1 unit and the entry
    table.commit((_put(1, due_ms=5),))  # the entry stays
    table.commit((_put(1, due_ms=6),))  # a removed and an added entry
    table.commit((_put(1),))  # a removed entry
    table.commit((_put(1, due_ms=7),))
    table.commit((Delete(KEY, Expect.PRESENT),))
    assert [bill.units for bill in bills] == [2, 1, 3, 2, 2, 2]


def test_several_writes_are_a_transaction_at_double_cost(
    table: MeteredTable, bills: list[Bill]
) -> None:
    table.commit((_put(0, due_ms=5), Put(OTHER, 1, b"x" * 1000, Expect.ABSENT)))
    # 2 units and the index entry for the first. 1,066 bytes are 2 KB, 4 units.
    assert bills == [Bill(3 + 4, 66 + 1066)]
    table.commit((Delete(KEY, Expect.PRESENT), Check(OTHER, Expect.PRESENT)))
    # 2 units and the index entry for the delete, 2 for the condition.
    assert bills[1] == Bill(3 + 2, 0)


def test_conflict_is_billed_and_invalid_commit_is_not(
    table: MeteredTable, bills: list[Bill]
) -> None:
    with pytest.raises(Conflict):
        table.commit((_put(0, expect=Expect.PRESENT),))
    with pytest.raises(InvalidCommit):
        table.commit((_put(0), _put(1)))
    assert bills == [Bill(1, 66)]


@pytest.mark.parametrize(
    ("size", "units"),
    [
        (0, 1),  # 66 bytes: 4 KB started
        (4096 - 66, 1),
        (4096 - 65, 2),
    ],
)
def test_read_costs_a_unit_per_started_4_kilobytes(
    table: MeteredTable, reads: list[float], size: int, units: int
) -> None:
    table.commit((_put(size),))
    table.get(KEY)
    table.get(OTHER)  # no row: the minimum
    table.get_many((KEY, OTHER, KEY))  # each row once
    assert reads == [units, 1, units + 1]


def test_query_is_billed_by_all_read_rows(table: MeteredTable, reads: list[float]) -> None:
    for n in range(5):
        table.commit((Put(Key("p", f"s{n}"), 1, b"x" * 1000, Expect.ABSENT),))
    table.query("p", "s", "t")  # 5 of 1,067 bytes: 5,335 bytes
    page = table.query("p", "s", "t", limit=1)  # the table requests 3: 3,201 bytes
    table.query("p", "t", "u")  # an empty range
    table.query("p", "u", "t")  # an impossible range, not requested
    assert [row.key.sort for row in page.rows] == ["s0"]
    assert reads == [2, 1, 1]


def test_due_index_reads_cost_half(table: MeteredTable, reads: list[float]) -> None:
    for n in range(50):
        # 1 + 99 bytes of keys and 64: 164 in the index, 8,200 in all, so 3 units.
        table.commit((Put(Key("p", f"{n:099d}"), 1, b"x" * 9000, Expect.ABSENT, 5),))
    shard = shard_of("p")
    assert len(table.due_keys(shard, 5)) == 50
    assert table.due_keys(shard, 4) == ()
    assert reads == [1.5, 0.5]
