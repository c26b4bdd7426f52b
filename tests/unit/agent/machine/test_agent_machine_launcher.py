"""The launcher of an installed agent."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from detcloud.agent.machine.launcher import STARTS_MAX, agent_command, choose_version


@pytest.fixture
def places(tmp_path: Path) -> tuple[Path, Path]:
    """Return the folders of versions and work, with the versions `new` and `old`."""
    versions, work = tmp_path / "versions", tmp_path / "work"
    for name in ("new", "old"):
        (versions / name).mkdir(parents=True)
    work.mkdir()
    (versions / "current").symlink_to("new")
    (versions / "previous").symlink_to("old")
    return versions, work


def start(places: tuple[Path, Path]) -> str:
    return choose_version(*places).name


def test_version_that_never_answers_is_replaced(places: tuple[Path, Path]) -> None:
    assert [start(places) for _ in range(STARTS_MAX + 2)] == ["new"] * STARTS_MAX + ["old", "old"]
    assert json.loads((places[1] / "rejected.json").read_bytes()) == {"version": "new"}


def test_confirmed_version_stays(places: tuple[Path, Path]) -> None:
    (places[1] / "confirmed.json").write_text('{"version": "new"}')
    assert {start(places) for _ in range(STARTS_MAX + 3)} == {"new"}


def test_only_version_is_started_again(places: tuple[Path, Path]) -> None:
    (places[0] / "previous").unlink()
    assert {start(places) for _ in range(STARTS_MAX + 3)} == {"new"}


@pytest.mark.parametrize("content", ["", "[]", '{"starts": 1'])
def test_damaged_records_are_ignored(places: tuple[Path, Path], content: str) -> None:
    for name in ("starts.json", "confirmed.json"):
        (places[1] / name).write_text(content)
    assert start(places) == "new"


def test_command_names_the_folder_of_the_version(tmp_path: Path) -> None:
    settings = {
        "url": "http://s",
        "name": "gpu-1",
        "pool": "default",
        "work": "/w",
        "pin": "",
        "updates": False,
        "options": ["--cpu-slots=2"],
    }
    command = agent_command(tmp_path, tmp_path / "versions/new", settings)
    assert command[0] == str(tmp_path / "versions/new/bin/python")
    assert "--pin" not in command
    assert command[-2:] == ["--no-updates", "--cpu-slots=2"]
