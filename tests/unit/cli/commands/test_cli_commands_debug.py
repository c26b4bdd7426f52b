"""`detcloud debug dump` reads the state table directly."""

import json
from contextlib import closing
from pathlib import Path

import pytest

from control_plane.state.sqlite import SqliteTable
from control_plane.state.table import Expect, Key, Put
from detcloud.cli.main import main


def test_the_rows_of_an_actor_are_printed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("DETCLOUD_HOME", str(tmp_path))
    with closing(SqliteTable(tmp_path / "state.db")) as table:
        table.commit((Put(Key("trial#7", "M"), 3, b'{"a": 1}', Expect.ABSENT),))
    assert main(["debug", "dump", "trial#7"]) == 0
    rows = json.loads(capsys.readouterr().out)
    assert rows == [{"sort": "M", "type": "head", "revision": 3, "body": {"a": 1}}]


def test_a_home_without_a_state_table_is_an_error(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("DETCLOUD_HOME", str(tmp_path))
    assert main(["debug", "dump", "trial#7"]) == 1
    assert f"no state table exists at {tmp_path}" in capsys.readouterr().err
