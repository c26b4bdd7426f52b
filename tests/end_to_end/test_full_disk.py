"""A trial on a machine with a full disk continues on another machine, without a restart."""

from __future__ import annotations

import os
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.end_to_end.agents import Agents
from tests.end_to_end.laptop import Laptop
from tests.patience import wait_until

pytestmark = [
    pytest.mark.end_to_end,
    pytest.mark.skipif(os.getuid() != 0, reason="only root can mount a small disk"),
]

CONFIG = """
name: writing
entrypoint: python3 train.py
searcher: {name: single, metric: loss, max_length: 2}
max_restarts: 0
"""
TRAIN = """
import pathlib, time
from detcloud import core

with core.init() as context:
    print("starts", flush=True)
    while context.info.epoch == 1 and not pathlib.Path("MARK").exists():
        time.sleep(0.1)
    (pathlib.Path.home() / "data").write_bytes(b"x" * 100_000)
    for operation in context.searcher.operations():
        context.train.report_validation_metrics(operation.length, {"loss": 1.0})
        operation.complete(1.0)
"""


@pytest.fixture
def agents(laptop: Laptop) -> Iterator[Agents]:
    made = Agents(laptop)
    yield made
    made.end()


@pytest.fixture
def small_disk(laptop: Laptop) -> Iterator[Path]:
    folder = laptop.home / "b"
    folder.mkdir(parents=True)
    mount = ["mount", "-t", "tmpfs", "-o", "size=64m", "tmpfs", str(folder)]
    done = subprocess.run(mount, capture_output=True, text=True, check=False)
    if done.returncode != 0:
        pytest.skip(f"no small disk can be mounted: {done.stderr.strip()}")
    yield folder
    subprocess.run(["umount", "--lazy", str(folder)], check=True)


def trial_of(laptop: Laptop) -> dict[str, Any]:
    with laptop.cluster() as cluster:
        data: dict[str, Any] = cluster.trial(1).data
        return data


def faults_of(laptop: Laptop, name: str) -> list[str]:
    with laptop.cluster() as cluster:
        return [fault["reason"] for fault in cluster.agent(name).data["faults"]]


def fill(folder: Path) -> Path:
    """Write a file until the disk is full, and return the file."""
    path = folder / "foreign"
    with path.open("wb", buffering=0) as file:
        try:
            while True:
                file.write(b"x" * 4096)
        except OSError:
            return path


def test_trial_leaves_a_full_disk_and_the_machine_opens_again(
    laptop: Laptop, small_disk: Path, agents: Agents, tmp_path: Path
) -> None:
    laptop.run("up", "--slots", 1)
    wait_until(lambda: "local" in agents.alive())
    laptop.run("agent", "disable", "local")
    agents.start("b", 1)
    wait_until(lambda: "b" in agents.alive())
    model = tmp_path / "model"
    model.mkdir()
    (model / "train.py").write_text(TRAIN.replace("MARK", str(tmp_path / "mark")))
    config = tmp_path / "config.yaml"
    config.write_text(CONFIG)
    laptop.run("create", config, model)
    wait_until(lambda: "starts" in laptop.log(1))

    foreign = fill(small_disk)
    (tmp_path / "mark").touch()
    [reason] = wait_until(lambda: faults_of(laptop, "b"))
    assert reason.startswith(f"the disk of {small_disk} is full")
    assert "closed" in laptop.run("agent", "list").stdout
    assert reason in laptop.run("agent", "describe", "b").stdout
    wait_until(lambda: trial_of(laptop)["losses"])
    laptop.run("agent", "enable", "local")
    laptop.run("wait", 1)
    trial = trial_of(laptop)
    assert (trial["state"], trial["restarts"], trial["losses"]) == ("COMPLETED", 0, 1)
    [loss] = trial["recent_losses"]
    assert (loss["agent_id"], loss["cause"]) == ("b", f"the machine failed: {reason}")

    foreign.unlink()
    wait_until(lambda: not faults_of(laptop, "b"))
