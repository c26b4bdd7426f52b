"""A trial over two real agents, where a whole machine dies at once."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.conftest import require_installed
from tests.end_to_end.agents import Agents
from tests.end_to_end.laptop import Laptop
from tests.end_to_end.refusing_model import MESSAGE, write_refusing_model
from tests.patience import wait_until

pytestmark = pytest.mark.end_to_end

SLOTS = 2
BATCHES = 60
CHECKPOINT_BATCHES = 10
# The lease of 30 s and a pass of the loss detection.
LOST_SECONDS_MAX = 60.0
# All nodes agree on each batch, so that no node is more than a batch ahead.
TRAIN = f"""\
import json, os, time
from datetime import timedelta
import torch
from torch import distributed
from detcloud import core

torch.set_num_threads(1)
distributed.init_process_group("gloo", timeout=timedelta(seconds=300))

def summed(number):
    value = torch.tensor([float(number)])
    distributed.all_reduce(value)
    return value.item()

with core.init() as context:
    rank, size = context.distributed.rank, context.distributed.size
    slots = int(os.environ["DETCLOUD_SLOTS"])
    print(f"run {{context.info.epoch}}: node {{rank}} of {{size}} with {{slots}} slots", flush=True)
    steps = context.info.steps_completed
    if context.info.latest_checkpoint:
        with context.checkpoint.restore_path(context.info.latest_checkpoint) as folder:
            assert steps == json.loads((folder / "state.json").read_text())
    for operation in context.searcher.operations():
        while steps < operation.length and not summed(context.preempt.should_preempt()):
            time.sleep(0.1)
            # 1 + 2 + ... + size
            assert summed(rank + 1) == size * (size + 1) / 2
            # The first run waits before its last batch for the end of a machine.
            if context.info.epoch == 1 and steps == operation.length - 1:
                continue
            steps += 1
            if steps % {CHECKPOINT_BATCHES} == 0 and rank == 0:
                with context.checkpoint.store_path({{"steps_completed": steps}}) as (folder, _):
                    (folder / "state.json").write_text(json.dumps(steps))
        if steps < operation.length:
            break
        total = summed(slots)
        context.train.report_validation_metrics(steps, {{"loss": total}})
        operation.complete(total)
"""


@pytest.fixture
def agents(laptop: Laptop) -> Iterator[Agents]:
    made = Agents(laptop)
    yield made
    made.end()


def write_model(folder: Path) -> tuple[Path, Path]:
    model = folder / "model"
    model.mkdir()
    (model / "train.py").write_text(TRAIN)
    config = {
        "name": "gang",
        "entrypoint": "python3 train.py",
        "resources": {"slots_per_trial": 2 * SLOTS},
        "searcher": {"name": "single", "metric": "loss", "max_length": {"batches": BATCHES}},
        "max_restarts": 0,
    }
    path = folder / "config.yaml"
    path.write_text(json.dumps(config, indent=1))
    return path, model


def test_trial_over_two_agents_restarts_after_an_agent_dies(
    laptop: Laptop, agents: Agents, tmp_path: Path
) -> None:
    require_installed("torch")
    laptop.run("up", "--slots", SLOTS)
    # Three agents, so that a silent agent is only a third and does not look like the server's own
    # outage.
    agents.start("b", SLOTS)
    agents.start("c", SLOTS)
    wait_until(lambda: agents.alive() == {"local", "b", "c"})
    laptop.run("create", *write_model(tmp_path))

    first = wait_until(lambda: _places(laptop, "RUNNING"))
    assert len(first) == 2
    wait_until(lambda: _trial(laptop)["latest_checkpoint"])
    # Unsent lines die with the agent.
    wait_until(lambda: "[rank=1] run 1" in laptop.log(1))
    victim = next(name for name in reversed(first) if name != "local")
    [healthy] = set(first) - {victim}
    agents.strike(victim)

    wait_until(lambda: _trial(laptop)["losses"], LOST_SECONDS_MAX)
    second = wait_until(lambda: _places(laptop, "RUNNING"))
    assert set(second) == {"local", "b", "c"} - {victim}
    assert healthy in second
    assert laptop.run("wait", 1).stdout == "experiment 1 finished\n"

    trial = _trial(laptop)
    # No restart was allowed, and none happened. The slots of both nodes were added up.
    assert (trial["state"], trial["restarts"], trial["losses"]) == ("COMPLETED", 0, 1)
    assert (trial["metric"], trial["steps_completed"]) == (2.0 * SLOTS, BATCHES)
    [loss] = trial["recent_losses"]
    assert loss["agent_id"] == victim
    assert loss["cause"].startswith(f"agent {victim} was lost: it has not been heard of for")
    assert loss["cause"] in laptop.run("trial", "describe", 1).stdout
    log = laptop.run("trial", "logs", 1).stdout
    for node in range(2):
        for run in (1, 2):
            prefix = "[rank=1] " if node else ""
            assert f"\n{prefix}run {run}: node {node} of 2 with {SLOTS} slots\n" in f"\n{log}"


def _trial(laptop: Laptop) -> dict[str, Any]:
    with laptop.cluster() as cluster:
        return cluster.trial(1).data


def _places(laptop: Laptop, state: str) -> list[str]:
    """Return the agents of the trial's allocation in this state, by rank; [] before."""
    listed = laptop.trials(1)
    allocation = listed[0]["allocation"] if listed else None
    if not allocation or allocation["state"] != state:
        return []
    return [place["agent_id"] for place in allocation["places"]]


@pytest.mark.nightly
def test_search_replaces_hyperparameters_that_a_remote_rank_refuses(
    laptop: Laptop, agents: Agents, tmp_path: Path
) -> None:
    require_installed("torch")
    laptop.run("up", "--slots", 1)
    agents.start("b", 1)
    wait_until(lambda: agents.alive() == {"local", "b"})
    searcher = {"name": "random", "max_trials": 1, "max_concurrent_trials": 1}
    laptop.run("create", *write_refusing_model(tmp_path, searcher))
    assert laptop.run("wait", 1).stdout == "experiment 1 finished\n"
    refused, drawn = laptop.trials(1)
    log = laptop.run("trial", "logs", 1).stdout
    assert (refused["state"], refused["restarts"], refused["metric"]) == ("COMPLETED", 0, None), log
    assert _trial(laptop)["message"] == MESSAGE, log
    assert log.count("comes to batch 2") == 2, log
    assert (drawn["state"], drawn["steps_completed"]) == ("COMPLETED", 4)
