"""Tests of tables with faults: crashes, failures, races and torn queries."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from control_plane.state.sqlite import SqliteTable
from control_plane.state.table import Conflict, Expect, Key, Put, StateTable, Unavailable
from simulator.faults.faulty_table import FlakyTable
from simulator.faults.table_faults import Crash, CrashingTable, InterleavingTable, TearingTable


@pytest.fixture
def table(tmp_path: Path) -> Iterator[SqliteTable]:
    created = SqliteTable(tmp_path / "table.db", synchronous="NORMAL")
    yield created
    created.close()


def put(sort: str, revision: int = 1) -> Put:
    return Put(Key("p", sort), revision, b"", revision - 1 or Expect.ABSENT)


def sorts(table: StateTable, first: str = "a", last: str = "z", limit: int = 9) -> list[str]:
    return [row.key.sort for row in table.query("p", first, last, limit=limit).rows]


def test_crash_before_a_commit_writes_no_row(table: SqliteTable) -> None:
    dying = CrashingTable(table, crash_at=2, when="before")
    dying.commit([put("a")])
    with pytest.raises(Crash):
        dying.commit([put("b")])
    assert sorts(table) == ["a"]


def test_crash_after_a_commit_keeps_the_commit(table: SqliteTable) -> None:
    dying = CrashingTable(table, crash_at=1, when="after")
    with pytest.raises(Crash):
        dying.commit([put("a"), put("b")])
    assert sorts(table) == ["a", "b"]


def test_failed_commit_raises_conflict_instead_of_crash(table: SqliteTable) -> None:
    table.commit([put("a")])
    with pytest.raises(Conflict):
        CrashingTable(table, crash_at=1, when="after").commit([put("a")])


def test_calls_after_a_crash_raise_crash(table: SqliteTable) -> None:
    dying = CrashingTable(table, crash_at=1)
    for _ in range(3):
        with pytest.raises(Crash):
            dying.commit([put("a")])
        with pytest.raises(Crash):
            dying.get(Key("p", "a"))
        with pytest.raises(Crash):
            dying.query("p", "a", "z")
    assert dying.commits == 1


def test_crash_is_no_exception_subclass() -> None:
    assert not issubclass(Crash, Exception)


def test_flaky_table_fails_before_and_after_and_repeats_commits(table: SqliteTable) -> None:
    flaky = FlakyTable(table, seed=3, share=1.0)
    outcomes = set()
    for n in range(60):
        sort = f"m{n:02d}"
        try:
            flaky.commit([put(sort)])
            outcome = "repeated unnoticed"
        except Unavailable:
            outcome = "unavailable"
        except Conflict:
            outcome = "repeated"
        outcomes.add((outcome, table.get(Key("p", sort)) is not None))
    # A Put that expects no row conflicts with the first copy of the commit.
    assert outcomes == {("unavailable", False), ("unavailable", True), ("repeated", True)}
    assert flaky.fault_count == 60


def test_flaky_table_repeats_faults_for_equal_seeds(tmp_path: Path) -> None:
    def outcomes(name: str) -> list[bool]:
        table = SqliteTable(tmp_path / name, synchronous="NORMAL")
        flaky = FlakyTable(table, seed=9, share=0.5)
        for n in range(20):
            try:
                flaky.commit([put(f"m{n:02d}")])
            except (Unavailable, Conflict):
                continue
        exists = [table.get(Key("p", f"m{n:02d}")) is not None for n in range(20)]
        table.close()
        return exists

    assert outcomes("one") == outcomes("two")


def test_flaky_table_fails_reads(table: SqliteTable) -> None:
    flaky = FlakyTable(table, seed=1, share=0, reads_share=1.0)
    with pytest.raises(Unavailable):
        flaky.get(Key("p", "a"))
    with pytest.raises(Unavailable):
        flaky.query("p", "a", "z")


def test_interleaving_table_acts_once_before_a_commit(table: SqliteTable) -> None:
    racing = InterleavingTable(table, lambda: table.commit([put("a")]))
    with pytest.raises(Conflict):
        racing.commit([put("a")])
    racing.commit([put("b")])
    assert sorts(table) == ["a", "b"]


def test_torn_query_returns_rows_of_two_moments(table: SqliteTable) -> None:
    table.commit([put("b"), put("d"), put("f")])

    def act(partition: str) -> None:
        assert partition == "p"
        table.commit([put("a"), put("b", 2), put("e"), put("f", 2)])

    # The page has the old b, e and the new f, but not a.
    page = TearingTable(table, act, torn_at="c").query("p", "a", "z")
    assert [(row.key.sort, row.revision) for row in page.rows] == [
        ("b", 1),
        ("d", 1),
        ("e", 1),
        ("f", 2),
    ]


def test_torn_page_respects_the_limit(table: SqliteTable) -> None:
    table.commit([put("b"), put("d")])
    torn = TearingTable(table, lambda _: table.commit([put("c"), put("e")]), torn_at="b")
    page = torn.query("p", "a", "z", limit=2)
    assert [row.key.sort for row in page.rows] == ["b", "c"]
    assert page.next_sort == "d"


def test_only_selected_queries_are_torn(table: SqliteTable) -> None:
    acted: list[str] = []
    torn = TearingTable(table, acted.append, torn_at="m", queries=frozenset({2}))
    assert [sorts(torn) for _ in range(3)] == [[], [], []]
    assert acted == ["p"]
