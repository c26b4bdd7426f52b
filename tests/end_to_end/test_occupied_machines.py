"""A trial leaves a real agent's machine when people use the machine, and comes back afterwards."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.end_to_end.agents import Agents
from tests.end_to_end.laptop import Laptop
from tests.patience import wait_until

pytestmark = [pytest.mark.end_to_end, pytest.mark.nightly]

CONFIG = """
name: counting
entrypoint: python3 train.py
searcher: {name: single, metric: loss, max_length: 1000}
"""
TRAIN = """
import time
from pathlib import Path
from detcloud import core

with core.init() as context:
    steps = 0
    if context.info.latest_checkpoint:
        with context.checkpoint.restore_path(context.info.latest_checkpoint) as folder:
            steps = int((Path(folder) / "steps").read_text())
    print(f"run {context.info.epoch} begins", "after" if steps else "without", flush=True)
    for operation in context.searcher.operations():
        while steps < operation.length:
            steps += 1
            time.sleep(0.05)
            if context.preempt.should_preempt():
                with context.checkpoint.store_path({"steps_completed": steps}) as (folder, _):
                    (Path(folder) / "steps").write_text(str(steps))
                raise SystemExit
        operation.report_completed(0.5)
"""
ALWAYS = ("--people-hours", "00:00-24:00")


@pytest.fixture
def agents(laptop: Laptop) -> Iterator[Agents]:
    made = Agents(laptop)
    yield made
    made.end()


def agent_of(laptop: Laptop) -> dict[str, Any]:
    with laptop.cluster() as cluster:
        data: dict[str, Any] = cluster.agent("desk").data
        return data


def test_trial_leaves_an_occupied_machine_and_continues_later(
    laptop: Laptop, agents: Agents, tmp_path: Path
) -> None:
    laptop.run("up", "--slots", 1)
    laptop.run("agent", "disable", "local")
    agents.start("desk", 1)
    wait_until(lambda: "desk" in agents.alive())
    model = tmp_path / "model"
    model.mkdir()
    (model / "train.py").write_text(TRAIN)
    config = tmp_path / "config.yaml"
    config.write_text(CONFIG)
    laptop.run("create", config, model)
    wait_until(lambda: "run 1 begins without" in laptop.log(1))

    # The trial survives the restart of its agent, which now reports people.
    agents.kill("desk")
    agents.start("desk", 1, *ALWAYS)
    wait_until(lambda: not agent_of(laptop)["slots"][0]["allocation"])
    occupancy = agent_of(laptop)["occupancy"]
    assert (occupancy["reason"], occupancy["running"]) == (
        "hours of people: 00:00-24:00",
        "checkpoint",
    )
    assert "occupied" in laptop.run("agent", "list").stdout
    assert "1 agent takes no work for now" in laptop.run("job", "list").stdout
    assert "run 2" not in laptop.log(1)

    agents.kill("desk")
    agents.start("desk", 1)
    wait_until(lambda: "run 2 begins after" in laptop.log(1))
    assert agent_of(laptop)["occupancy"] is None
    laptop.run("experiment", "kill", 1)
