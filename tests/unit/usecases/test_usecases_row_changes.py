from pathlib import Path

import pytest

from control_plane.errors import Code, RequestError
from control_plane.state.sqlite import SqliteTable
from control_plane.state.table import Conflict, Expect, Key, Put, Row, Write
from control_plane.usecases.row_changes import change_row

OURS, ANOTHER = Key("a", "1"), Key("a", "2")


def test_change_is_retried_after_a_concurrent_change(tmp_path: Path) -> None:
    table = SqliteTable(tmp_path / "table.db", synchronous="NORMAL")
    seen = []

    def change(row: Row | None) -> tuple[int, tuple[Write, ...]]:
        seen.append(row.body if row else None)
        if row is None:
            table.commit((Put(OURS, 1, b"theirs", Expect.ABSENT),))
        revision = row.revision if row else 0
        return len(seen), (Put(OURS, revision + 1, b"ours", revision or Expect.ABSENT),)

    assert change_row(table, OURS, change, "row 1") == 2
    assert seen == [None, b"theirs"]
    assert table.get(OURS) == Row(OURS, 2, b"ours")


def test_conflict_on_an_unrelated_row_is_raised(tmp_path: Path) -> None:
    table = SqliteTable(tmp_path / "table.db", synchronous="NORMAL")
    table.commit((Put(ANOTHER, 1, b"", Expect.ABSENT),))
    with pytest.raises(Conflict):
        change_row(table, OURS, lambda row: (0, (Put(ANOTHER, 1, b"", Expect.ABSENT),)), "row 1")


def test_endless_conflicts_are_unavailable(tmp_path: Path) -> None:
    table = SqliteTable(tmp_path / "table.db", synchronous="NORMAL")
    with pytest.raises(RequestError, match="row 1 changes too fast") as refused:
        change_row(table, OURS, lambda row: (0, (Put(OURS, 2, b"", 7),)), "row 1")
    assert refused.value.code is Code.UNAVAILABLE
