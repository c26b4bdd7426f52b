"""The journals of every release replay with today's code."""

import json
from pathlib import Path
from typing import Any

import pytest

from control_plane.engine.replay import replay_actor
from control_plane.state.sqlite import SqliteTable
from detcloud import __version__
from tests.journals import journal_files
from tests.journals.scenarios import SCENARIOS_TO_RECORD

FILES = sorted(journal_files.FOLDER.glob("*/*.json.gz"))
AGAIN = "`python -m tests.journals.record` records those of an unreleased version again"


def scenario_name(path: Path) -> str:
    return f"{path.parent.name}/{path.name.removesuffix('.json.gz')}"


@pytest.mark.parametrize("path", FILES, ids=scenario_name)
def test_recorded_journal_replays_with_todays_code(path: Path, tmp_path: Path) -> None:
    table = SqliteTable(tmp_path / "table.db", synchronous="NORMAL")
    addresses = journal_files.load_file(path, table)
    replays = [replay_actor(table, address) for address in addresses]
    table.close()
    assert [(each.address, each.difference) for each in replays if each.difference] == [], AGAIN
    assert all(each.complete and each.entries for each in replays)


def test_every_scenario_of_this_version_is_recorded() -> None:
    recorded = {scenario_name(path) for path in FILES if path.parent.name == __version__}
    assert recorded == {f"{__version__}/{name}" for name in SCENARIOS_TO_RECORD}, AGAIN


@pytest.mark.parametrize(
    "path", sorted(journal_files.FOLDER.glob(f"*/{journal_files.SHAPES}")), ids=scenario_name
)
def test_assumptions_of_a_release_still_hold(path: Path) -> None:
    """New fields of a state come last, and the default of a message's field never changes.

    Defaults are not stored. A record in a default may get new fields with defaults.
    """
    then, now = json.loads(path.read_text(encoding="utf-8")), journal_files.current_shapes()
    for name, fields in then["states"].items():
        assert now["states"][name][: len(fields)] == fields, f"{name}: {AGAIN}"
    for name, defaults in then["defaults"].items():
        today = now["defaults"].get(name)
        assert today is not None, f"stored journals have {name}, which is gone: {AGAIN}"
        assert _known_fields(today, defaults) == defaults, f"{name}: {AGAIN}"


def _known_fields(now: Any, then: Any) -> Any:
    """Return the fields of `now` that `then` had, also in inner records."""
    if not isinstance(now, dict) or not isinstance(then, dict):
        return now
    return {name: _known_fields(value, then[name]) for name, value in now.items() if name in then}
