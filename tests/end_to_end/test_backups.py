"""A cluster that is restored from a backup, with newer runs on the agent."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.end_to_end.laptop import Laptop
from tests.end_to_end.tiny_model import BATCHES, write_model

pytestmark = pytest.mark.end_to_end


def test_restored_cluster_resumes_training_without_counting_twice(
    laptop: Laptop, tmp_path: Path
) -> None:
    model = write_model(tmp_path)
    laptop.run("up", "--slots", 1)
    laptop.run("pause", laptop.json("create", *model)["id"])
    archive = tmp_path / "backup.tar"
    assert laptop.json("backup", archive)["archive"] == str(archive)
    laptop.run("activate", 1)
    laptop.run("wait", 1)
    assert laptop.json("create", *model)["id"] == 2
    later = max(one["id"] for one in laptop.json("trial", "list", 2))
    assert "stop it first with `detcloud down`" in laptop.run("restore", archive, code=1).stderr
    # As after a crash: the agent still has directories of earlier runs.
    laptop.run("down")
    assert (
        "confirm with --yes, since stdin is not a terminal"
        in laptop.run("restore", archive, code=1).stderr
    )
    assert laptop.json("restore", archive, "--yes")["experiments"] == 1
    laptop.run("up", "--slots", 1)
    [restored] = laptop.json("list")
    assert (restored["id"], restored["state"]) == (1, "PAUSED")
    laptop.run("activate", 1)
    assert laptop.run("wait", 1).stdout == "experiment 1 finished\n"
    trials = laptop.json("trial", "list", 1)
    assert [one["steps_completed"] for one in trials] == [BATCHES, BATCHES]
    trial = laptop.json("trial", "describe", trials[0]["id"], "--metrics")
    steps = [one["steps_completed"] for one in trial["metrics"] if one["group"] == "training"]
    assert steps == list(range(1, BATCHES + 1))
    assert laptop.json("create", *model)["id"] == 3
    assert min(one["id"] for one in laptop.json("trial", "list", 3)) > later
    assert "dropping all trials" in (laptop.home / "agent.log").read_text()
