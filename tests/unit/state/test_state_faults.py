from collections.abc import Iterator
from pathlib import Path

import pytest

from control_plane.state.faults import (
    Crash,
    CrashingTable,
    FlakyTable,
    InterleavingTable,
    TearingTable,
)
from control_plane.state.sqlite import SqliteTable
from control_plane.state.table import Conflict, Expect, Key, Put, StateTable, Unavailable


@pytest.fixture
def table(tmp_path: Path) -> Iterator[SqliteTable]:
    made = SqliteTable(tmp_path / "table.db", synchronous="NORMAL")
    yield made
    made.close()


def put(sort: str, revision: int = 1) -> Put:
    return Put(Key("p", sort), revision, b"", revision - 1 or Expect.ABSENT)


def sorts(table: StateTable, first: str = "a", last: str = "z", limit: int = 9) -> list[str]:
    return [row.key.sort for row in table.query("p", first, last, limit=limit).rows]


def test_a_crash_before_a_commit_leaves_nothing_of_it(table: SqliteTable) -> None:
    dying = CrashingTable(table, crash_at=2, when="before")
    dying.commit([put("a")])
    with pytest.raises(Crash):
        dying.commit([put("b")])
    assert sorts(table) == ["a"]


def test_a_crash_after_a_commit_leaves_all_of_it(table: SqliteTable) -> None:
    dying = CrashingTable(table, crash_at=1, when="after")
    with pytest.raises(Crash):
        dying.commit([put("a"), put("b")])
    assert sorts(table) == ["a", "b"]


def test_a_crash_after_a_commit_that_fails_is_the_conflict(table: SqliteTable) -> None:
    table.commit([put("a")])
    with pytest.raises(Conflict):
        CrashingTable(table, crash_at=1, when="after").commit([put("a")])


def test_the_dead_do_nothing_more(table: SqliteTable) -> None:
    dying = CrashingTable(table, crash_at=1)
    for _ in range(3):
        with pytest.raises(Crash):
            dying.commit([put("a")])
        with pytest.raises(Crash):
            dying.get(Key("p", "a"))
        with pytest.raises(Crash):
            dying.query("p", "a", "z")
    assert dying.commits == 1


def test_no_handler_of_exception_survives_a_crash() -> None:
    assert not issubclass(Crash, Exception)


def test_a_flaky_table_fails_before_and_after_and_repeats(table: SqliteTable) -> None:
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
    # A put that must be absent conflicts with its own first copy.
    assert outcomes == {("unavailable", False), ("unavailable", True), ("repeated", True)}
    assert flaky.fault_count == 60


def test_a_flaky_table_is_the_same_for_the_same_seed(tmp_path: Path) -> None:
    def outcomes(name: str) -> list[bool]:
        table = SqliteTable(tmp_path / name, synchronous="NORMAL")
        flaky = FlakyTable(table, seed=9, share=0.5)
        for n in range(20):
            try:
                flaky.commit([put(f"m{n:02d}")])
            except (Unavailable, Conflict):
                continue
        found = [table.get(Key("p", f"m{n:02d}")) is not None for n in range(20)]
        table.close()
        return found

    assert outcomes("one") == outcomes("two")


def test_readings_fail_too_if_asked_for(table: SqliteTable) -> None:
    flaky = FlakyTable(table, seed=1, share=0, reads_share=1.0)
    with pytest.raises(Unavailable):
        flaky.get(Key("p", "a"))
    with pytest.raises(Unavailable):
        flaky.query("p", "a", "z")


def test_somebody_acts_once_before_a_commit(table: SqliteTable) -> None:
    racing = InterleavingTable(table, lambda: table.commit([put("a")]))
    with pytest.raises(Conflict):
        racing.commit([put("a")])
    racing.commit([put("b")])
    assert sorts(table) == ["a", "b"]


def test_a_torn_query_shows_rows_of_two_moments(table: SqliteTable) -> None:
    table.commit([put("b"), put("d"), put("f")])

    def act(partition: str) -> None:
        assert partition == "p"
        table.commit([put("a"), put("b", 2), put("e"), put("f", 2)])

    # b is old, a is missed; e and the new f are seen.
    page = TearingTable(table, act, torn_at="c").query("p", "a", "z")
    assert [(row.key.sort, row.revision) for row in page.rows] == [
        ("b", 1),
        ("d", 1),
        ("e", 1),
        ("f", 2),
    ]


def test_a_torn_page_keeps_its_limit(table: SqliteTable) -> None:
    table.commit([put("b"), put("d")])
    torn = TearingTable(table, lambda _: table.commit([put("c"), put("e")]), torn_at="b")
    page = torn.query("p", "a", "z", limit=2)
    assert [row.key.sort for row in page.rows] == ["b", "c"]
    assert page.next_sort == "d"


def test_only_the_queries_asked_for_are_torn(table: SqliteTable) -> None:
    acted: list[str] = []
    torn = TearingTable(table, acted.append, torn_at="m", queries=frozenset({2}))
    assert [sorts(torn) for _ in range(3)] == [[], [], []]
    assert acted == ["p"]
