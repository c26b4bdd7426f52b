"""The SQLite table beyond the common suite of state tables: query plans, and reads during a
write.
"""

import sqlite3
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

from control_plane.state import sqlite
from control_plane.state.sqlite import SqliteTable, check_table_file, copy_table_file
from control_plane.state.table import Expect, Key, Put, Unavailable
from tests.patience import ANSWER_SECONDS_MAX
from tests.unit.state.sqlite_disk import Disk

KEYS = [Key("trial#1", "M"), Key("trial#2", "M"), Key("trial#2", "P")]


@pytest.fixture
def disk() -> Disk[sqlite3.Connection]:
    return Disk(sqlite3.Connection)


@pytest.fixture
def table(tmp_path: Path, disk: Disk[sqlite3.Connection]) -> Iterator[SqliteTable]:
    created = SqliteTable(tmp_path / "state.db", synchronous="NORMAL", connect=disk.connect)
    created.commit([Put(key, 1, b"body", Expect.ABSENT, due_ms=5) for key in KEYS])
    yield created
    created.close()


def test_reads_use_an_index(table: SqliteTable, disk: Disk[sqlite3.Connection]) -> None:
    [db] = disk.connections
    statements: list[str] = []
    db.set_trace_callback(statements.append)
    table.get(KEYS[0])
    table.get_many(KEYS)
    table.query("trial#2", "A", "Z", descending=True)
    table.due_keys(0, 10)
    db.set_trace_callback(None)
    plans = [db.execute(f"explain query plan {statement}").fetchall() for statement in statements]
    assert len(plans) == 4
    assert all(plans)
    assert [step for plan in plans for *_, step in plan if step.startswith("SCAN rows")] == []


def test_reads_do_not_wait_for_a_writer(tmp_path: Path) -> None:
    writing, may_end = threading.Event(), threading.Event()

    class SlowConnection(sqlite3.Connection):
        """A connection that commits only after `may_end` if it is slow."""

        is_slow = False

        def execute(self, statement: str, *values: Any) -> sqlite3.Cursor:
            if statement == "commit" and self.is_slow:
                writing.set()
                assert may_end.wait(ANSWER_SECONDS_MAX)
            return super().execute(statement, *values)

    disk = Disk(SlowConnection)
    table = SqliteTable(tmp_path / "state.db", synchronous="NORMAL", connect=disk.connect)
    table.commit([Put(KEYS[0], 1, b"body", Expect.ABSENT)])
    disk.connections[0].is_slow = True
    with ThreadPoolExecutor(1) as pool:
        commit = pool.submit(table.commit, [Put(KEYS[0], 2, b"later", 1)])
        assert writing.wait(ANSWER_SECONDS_MAX)
        before = [table.get(KEYS[0]), *table.query("trial#1", "A", "Z").rows]
        may_end.set()
        commit.result(ANSWER_SECONDS_MAX)
    assert [row and row.body for row in before] == [b"body", b"body"]
    after = table.get(KEYS[0])
    assert after is not None
    assert after.body == b"later"
    table.close()


def test_threads_share_a_table_in_memory() -> None:
    table = SqliteTable(sqlite.IN_MEMORY)
    table.commit([Put(key, 1, b"body", Expect.ABSENT) for key in KEYS])
    with ThreadPoolExecutor(8) as pool:
        rows = list(pool.map(lambda _: table.get(KEYS[0]), range(200)))
    assert {row and row.body for row in rows} == {b"body"}
    table.close()


def test_missing_file_is_neither_accepted_nor_created(tmp_path: Path) -> None:
    missing = tmp_path / "a?b" / "state.db"
    missing.parent.mkdir()
    with pytest.raises(Unavailable, match="unable to open"):
        check_table_file(missing)
    with pytest.raises(Unavailable, match="cannot be copied"):
        copy_table_file(missing, tmp_path / "copy.db")
    assert not missing.exists()


def test_copy_contains_the_rows(table: SqliteTable, tmp_path: Path) -> None:
    copy_table_file(tmp_path / "state.db", tmp_path / "copy.db")
    copied = SqliteTable(tmp_path / "copy.db")
    assert copied.get(KEYS[0]) == table.get(KEYS[0])
    copied.close()
