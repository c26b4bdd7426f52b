"""A trial that fails alike on two real agents is not started a third time."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.end_to_end.agents import Agents
from tests.end_to_end.laptop import Laptop
from tests.patience import wait_until

pytestmark = pytest.mark.end_to_end

CONFIG = """
name: failing
entrypoint: python3 train.py
searcher: {name: single, metric: loss, max_length: 2}
max_restarts: 5
"""
TRAIN = """
import os, pathlib, time
from detcloud import core

def fail(run):
    raise ValueError(f"run {run} got 7 classes")

with core.init() as context:
    run = context.info.epoch
    print("starts", flush=True)
    while not pathlib.Path("FOLDER", str(run)).exists():
        time.sleep(0.1)
    fail(run)
"""


@pytest.fixture
def agents(laptop: Laptop) -> Iterator[Agents]:
    made = Agents(laptop)
    yield made
    made.end()


def trial_of(laptop: Laptop) -> dict[str, Any]:
    with laptop.cluster() as cluster:
        data: dict[str, Any] = cluster.trial(1).data
        return data


def place_of(laptop: Laptop, run: int) -> str:
    """Return the agent of a run once its code has started, or ""."""
    trial = trial_of(laptop)
    allocation = trial["allocation"] or {}
    if laptop.log(1).count("starts") < run or not allocation.get("places"):
        return ""
    agent: str = allocation["places"][0]["agent_id"]
    return agent


def test_alike_failures_on_two_agents_end_the_trial(
    laptop: Laptop, agents: Agents, tmp_path: Path
) -> None:
    laptop.run("up", "--slots", 1)
    agents.start("b", 1)
    wait_until(lambda: agents.alive() == {"local", "b"})
    model = tmp_path / "model"
    model.mkdir()
    (model / "train.py").write_text(TRAIN.replace("FOLDER", str(tmp_path)))
    config = tmp_path / "config.yaml"
    config.write_text(CONFIG)
    laptop.run("create", config, model)

    first = wait_until(lambda: place_of(laptop, 1))
    laptop.run("agent", "disable", first, "--drain")
    (tmp_path / "1").touch()
    second = wait_until(lambda: place_of(laptop, 2))
    assert {first, second} == {"local", "b"}
    assert trial_of(laptop)["restarts"] == 1
    (tmp_path / "2").touch()
    laptop.run("wait", 1, code=1)
    trial = trial_of(laptop)
    assert (trial["state"], trial["restarts"]) == ("ERROR", 2)
    reason = f"it failed alike on agents {first} and {second} after 0 batches"
    assert trial["message"].startswith(f"no restart: {reason}")
    assert "ValueError: run 2 got 7 classes" in trial["message"]
    assert f"no restart: {reason}" in laptop.run("history", 1).stdout
