"""`detcloud create --debug` and `experiment debug`: refusals, the trial's place, and the entry."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from detcloud.cli.commands.debugger import (
    WORKSPACE,
    DebuggedTrial,
    launch_entry,
    parse_place,
)
from detcloud.client import Client, Experiment
from tests.unit.cli.conftest import Detcloud
from tests.unit.client.fake_cluster import FakeCluster

PLACE = {"allocation": "3.2", "folder": "/run/code"}


@pytest.mark.parametrize(
    ("fields", "found"),
    [
        ({"environment": None, "allocation": {"id": "3.2"}}, None),
        ({"environment": {"debugger": PLACE}, "allocation": None}, None),
        # The report of an earlier run.
        ({"environment": {"debugger": PLACE}, "allocation": {"id": "3.3"}}, None),
        (
            {"environment": {"debugger": PLACE}, "allocation": {"id": "3.2"}},
            DebuggedTrial(3, "/run/code"),
        ),
    ],
)
def test_place_of_the_present_run_counts(
    fields: dict[str, Any], found: DebuggedTrial | None
) -> None:
    assert parse_place(3, fields) == found


def test_entry_maps_the_folder_of_the_code(tmp_path: Path) -> None:
    trial = DebuggedTrial(3, "/run/code")
    file = tmp_path / "train.py"
    file.touch()
    assert launch_entry(7, 5678, file, trial) == {
        "name": "detcloud: experiment 7",
        "type": "debugpy",
        "request": "attach",
        "connect": {"host": "127.0.0.1", "port": 5678},
        "pathMappings": [{"localRoot": str(tmp_path), "remoteRoot": "/run/code"}],
    }
    assert launch_entry(7, 1, tmp_path, trial)["pathMappings"][0]["localRoot"] == str(tmp_path)
    assert launch_entry(7, 1, None, trial)["pathMappings"][0]["localRoot"] == WORKSPACE


@pytest.mark.parametrize("option", ["--paused", "--local"])
def test_debugger_needs_a_running_trial(
    option: str, detcloud: Detcloud, config: Path, model_dir: Path
) -> None:
    words = "create", str(config), str(model_dir), "--test-mode", "--debug", option
    done = detcloud(*words)
    assert done.code == 1
    assert f"--debug needs a trial that runs: remove {option}" in done.err


def test_experiment_without_a_debugger_is_refused(fake: FakeCluster, detcloud: Detcloud) -> None:
    fake.add_experiment({"name": "digits"}, {})
    done = detcloud("experiment", "debug", "1")
    assert done.code == 1
    assert "experiment 1 has no debugger: create it with `detcloud create --debug`" in done.err


def test_end_of_the_experiment_ends_the_wait(
    fake: FakeCluster,
    detcloud: Detcloud,
    config: Path,
    model_dir: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    sent: list[str] = []
    create = Client.create_experiment

    def record(client: Client, *paths: Any, overrides: list[str], **options: Any) -> Experiment:
        sent.extend(overrides)
        return create(client, *paths, overrides=overrides, **options)

    monkeypatch.setattr(Client, "create_experiment", record)
    own = "--config", "max_restarts=2"
    done = detcloud("create", str(config), str(model_dir), "--debug", *own)
    # The trials of the fake cluster accept no debugger.
    assert done.code == 0
    assert done.out == ""
    assert "Created experiment 1" in done.err
    assert "experiment 1 finished" in done.err
    # The last override of a field wins.
    assert sent == ["debugger.enabled=true", "max_restarts=0", "max_restarts=2"]
