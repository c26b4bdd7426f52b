"""The command line for a newcomer, with trials that take no time."""

from __future__ import annotations

import json
import re
import sys
from pathlib import Path

import pytest
import yaml

from detcloud.shared.processes import read_process
from tests.end_to_end.laptop import DIGITS, Laptop
from tests.end_to_end.tiny_model import BATCHES, TRAIN, write_model
from tests.patience import PROCESS_SECONDS_MAX, wait_until

pytestmark = pytest.mark.end_to_end


def test_create_starts_a_cluster_and_follows_to_the_end(laptop: Laptop, tmp_path: Path) -> None:
    done = laptop.run("create", *write_model(tmp_path), "--follow")
    assert done.stderr == "starting a local cluster ...\n"
    lines = done.stdout.splitlines()
    assert lines[0] == "Created experiment 1"
    place = next(index for index, line in enumerate(lines) if line.startswith(" Trial | Number"))
    assert lines[place - 1] == "experiment 1: finished"
    rows = [[cell.strip() for cell in line.split("|")] for line in lines[place + 2 : place + 4]]
    assert [row[:4] for row in rows] == [
        ["1", "0", "finished", "[##########] 10/10"],
        ["2", "1", "finished", "[##########] 10/10"],
    ]
    # The metric is the square of x, and the smaller metric is better.
    assert re.fullmatch(r"best loss [0-9.e-]+ in trial [12]: x=[0-9.e-]+", lines[place + 4])
    assert lines[place + 5 :] == ["experiment 1 finished"]


def test_every_list_and_description_shows_the_search(laptop: Laptop, tmp_path: Path) -> None:
    created = laptop.json("create", *write_model(tmp_path))
    assert (created["id"], created["state"], created["name"]) == (1, "ACTIVE", "tiny")
    assert laptop.run("wait", 1).stdout == "experiment 1 finished\n"
    [listed] = laptop.json("list")
    described = laptop.json("describe", 1)
    assert listed["state"] == described["state"] == laptop.json("follow", 1)["state"] == "COMPLETED"
    trials = laptop.json("trial", "list", 1)
    assert [(one["id"], one["steps_completed"]) for one in trials] == [(1, BATCHES), (2, BATCHES)]
    trial = laptop.json("trial", "describe", 1, "--metrics")
    assert trial["metric"] == pytest.approx(trial["hparams"]["x"] ** 2)
    steps = [one["steps_completed"] for one in trial["metrics"] if one["group"] == "training"]
    assert steps == list(range(1, BATCHES + 1))
    checkpoints = laptop.json("checkpoint", "list", 1)
    assert sorted(one["trial_id"] for one in checkpoints) == [1, 2]
    uuid = checkpoints[0]["uuid"]
    assert laptop.json("checkpoint", "describe", uuid[:8]) == checkpoints[0]
    laptop.run("checkpoint", "download", uuid[:8], "-o", tmp_path / "fetched")
    assert json.loads((tmp_path / "fetched" / "state.json").read_text()) == BATCHES
    _check_export(laptop, uuid, tmp_path / "exported")
    [agent] = laptop.json("agent", "list")
    assert agent["state"] == "ALIVE"
    assert laptop.json("status")["experiments"] == {"ACTIVE": 0, "PAUSED": 0}
    # The human-readable output has the same values.
    assert " finished " in laptop.run("list").stdout
    assert "Name             tiny\n" in laptop.run("describe", 1).stdout
    assert " finished |    10 |     10 |" in laptop.run("trial", "list", 1).stdout
    assert (
        f"Latest checkpoint  {trial['latest_checkpoint']}" in laptop.run("t", "describe", 1).stdout
    )
    assert laptop.run("checkpoint", "list", 1, "--csv").stdout.count("COMPLETED") == 2


def _check_export(laptop: Laptop, uuid: str, folder: Path) -> None:
    """Check that a version with this checkpoint, of TRAIN, is exported completely."""
    laptop.run("model", "create", "tiny")
    laptop.run("model", "register-version", "tiny", uuid)
    manifest = laptop.json("model", "export", "tiny", 1, folder)
    assert manifest == json.loads((folder / "manifest.json").read_text())
    assert manifest["checkpoint"]["uuid"] == uuid
    assert manifest["code"]["sha256"] == laptop.json("describe", 1)["code_sha256"]
    assert json.loads((folder / "checkpoint/state.json").read_text()) == BATCHES
    assert (folder / "code/train.py").read_text() == TRAIN
    assert yaml.safe_load((folder / "config.yaml").read_text())["name"] == "tiny"
    # Code of the Core API may store any files.
    assert manifest["load"] is None


def test_logs_are_complete_and_can_be_followed(laptop: Laptop, tmp_path: Path) -> None:
    laptop.run("create", *write_model(tmp_path, 0.1, searcher=_searcher(trials=1)))
    wait_until(laptop.running)
    following = laptop.spawn("trial", "logs", 1, "-f")
    text, _ = following.communicate(timeout=PROCESS_SECONDS_MAX)
    assert following.returncode == 0
    printed = [line for line in text.splitlines() if not line.startswith("[detcloud] ")]
    assert printed == ["files train.py", "starts at 0", "stops at 10"]
    assert laptop.run("trial", "logs", 1).stdout == text
    assert laptop.run("trial", "logs", 1, "--tail", 1).stdout == "stops at 10\n"
    prefixed = "".join(f"[trial 1] {line}\n" for line in text.splitlines())
    assert laptop.run("logs", 1).stdout == prefixed


def test_paused_search_starts_when_activated(laptop: Laptop, tmp_path: Path) -> None:
    submitted = laptop.run("create", *write_model(tmp_path), "--paused")
    assert submitted.stdout == "Created experiment 1\n"
    assert laptop.json("describe", 1)["state"] == "PAUSED"
    assert laptop.json("status")["resource_pools"][0]["running"] == 0
    assert laptop.json("activate", 1)["state"] == "ACTIVE"
    laptop.run("wait", 1)


def test_pause_stops_at_a_checkpoint_and_activate_resumes(laptop: Laptop, tmp_path: Path) -> None:
    laptop.run("create", *write_model(tmp_path, 0.1, searcher=_searcher(trials=1, batches=150)))
    with laptop.cluster() as cluster:
        trial = cluster.trial(1)
        wait_until(lambda: list(trial.metrics()))
    assert laptop.run("pause", 1).stdout == "experiment 1 is paused\n"
    wait_until(lambda: not laptop.running())
    with laptop.cluster() as cluster:
        wait_until(lambda: list(cluster.trial(1).checkpoints()))
    stopped_at = laptop.json("checkpoint", "list", 1)[0]["steps_completed"]
    assert 0 < stopped_at < 150
    assert laptop.run("activate", 1).stdout == "experiment 1 is active\n"
    laptop.run("wait", 1)
    log = laptop.run("trial", "logs", 1).stdout
    printed = [line for line in log.splitlines() if not line.startswith("[detcloud] ")]
    assert printed[2:5] == [f"stops at {stopped_at}", "files train.py", f"starts at {stopped_at}"]
    assert laptop.json("trial", "describe", 1)["restarts"] == 0


@pytest.mark.parametrize("command", ["cancel", "kill"])
def test_manually_ended_search_is_canceled(command: str, laptop: Laptop, tmp_path: Path) -> None:
    laptop.run("create", *write_model(tmp_path, 0.2, searcher=_searcher(batches=1000)))
    wait_until(lambda: len(laptop.running()) == 2)
    # A process that has not begun has no work to save.
    wait_until(lambda: all("starts at" in laptop.log(trial) for trial in (1, 2)))
    assert laptop.json(command, 1)["state"].startswith("STOPPING_")
    assert laptop.run("wait", 1, code=1).stdout == "experiment 1 is canceled\n"
    assert laptop.running() == []
    if command == "cancel":
        # The work so far is saved.
        assert len(laptop.json("checkpoint", "list", 1)) == 2
    assert {one["state"] for one in laptop.json("trial", "list", 1)} == {"CANCELED"}


def test_overrides_change_fields(laptop: Laptop, tmp_path: Path) -> None:
    overrides = ["--config", "searcher.max_trials=3", "--config", "searcher.max_length.batches=2"]
    laptop.run("create", *write_model(tmp_path), *overrides, "--follow")
    assert [one["target_steps"] for one in laptop.json("trial", "list", 1)] == [2, 2, 2]
    config = laptop.json("experiment", "config", 1)
    assert config["searcher"]["max_length"] == {"batches": 2}


def test_up_is_idempotent_and_down_ends_every_process(laptop: Laptop, tmp_path: Path) -> None:
    assert not laptop.home.exists()
    assert "no cluster runs here" in laptop.run("status", code=4).stdout
    up = laptop.run("up", "--slots", 3)
    url, pid = laptop.record()["url"], laptop.record()["pid"]
    first, page = up.stdout.splitlines()
    assert first == f"the local cluster is up at {url} (pid {pid}, data in {laptop.home})"
    assert f"{url}/ui/#/sign-in/dct_" in page
    again = laptop.run("up")
    assert again.stdout == f"the local cluster is already running at {url} (pid {pid})\n"
    with laptop.cluster() as cluster:
        wait_until(lambda: cluster.overview()["resource_pools"][0]["slots"] == 3)
    assert laptop.json("status")["resource_pools"][0]["slots"] == 3
    command = [sys.executable, "-P", "-m", "local_cluster", "--home", str(laptop.home)]
    second = laptop.shell(command)
    refusal = f"detcloud server: a server runs on {laptop.home} already\n"
    assert (second.returncode, second.stderr) == (1, refusal)
    laptop.run("create", *write_model(tmp_path, 0.2))
    wait_until(laptop.running)
    assert laptop.run("down").stdout == "the local cluster was stopped\n"
    assert read_process(pid) is None
    assert laptop.processes() == []
    assert laptop.run("down").stdout == "no local cluster was running\n"
    # The cluster's work continues after the next start.
    laptop.run("up", "--slots", 2)
    assert laptop.run("wait", 1).stdout == "experiment 1 finished\n"


def test_up_right_after_down_starts(laptop: Laptop) -> None:
    for _ in range(2):
        laptop.run("up")
        laptop.run("down")
        assert laptop.processes() == []


def test_unknown_ids_and_words_are_refused_with_hints(laptop: Laptop) -> None:
    laptop.run("up")
    for words in (("describe", 7), ("trial", "logs", 7), ("checkpoint", "describe", "abcdef01")):
        assert laptop.run(*words, code=3).stderr.startswith("error: ")
    assert "did you mean `detcloud describe`?" in laptop.run("descrive", 1, code=2).stderr
    assert "is not a file" in laptop.run("create", "missing.yaml", DIGITS, code=1).stderr


def _searcher(trials: int = 2, batches: int = BATCHES) -> dict[str, object]:
    length = {"batches": batches}
    return {"name": "random", "metric": "loss", "max_trials": trials, "max_length": length}
