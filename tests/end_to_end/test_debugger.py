"""`detcloud create --debug` on one machine: debugpy in the trial, and a client as VS Code."""

from __future__ import annotations

import json
import signal
import socket
from pathlib import Path
from typing import Any

import pytest

from detcloud.cli.framework.exit_codes import INTERRUPTED
from tests.conftest import require_installed
from tests.debug_client import DebugClient
from tests.end_to_end.laptop import Laptop
from tests.end_to_end.tunnel_steps import Background
from tests.patience import PROCESS_SECONDS_MAX

pytestmark = pytest.mark.end_to_end

require_installed("debugpy")

SCRIPT = """
import time

from detcloud import core

state = {"ends": False, "rounds": 0}

def work():
    state["rounds"] += 1
    time.sleep(0.05)

with core.init() as context:
    while not state["ends"]:
        work()
    print("rounds", state["rounds"])
    context.train.report_validation_metrics(1, {"loss": 1.0})
"""
IN_WORK = 9
CONFIG = """
entrypoint: python3 train.py
searcher: {name: single, metric: loss}
resources: {slots_per_trial: 0}
"""


MODEL = """\
import torch
from detcloud import pytorch

class Trial(pytorch.PyTorchTrial):
    def __init__(self, context):
        self.context = context
        self.model = context.wrap_model(torch.nn.Linear(1, 1))
        self.optimizer = context.wrap_optimizer(torch.optim.SGD(self.model.parameters(), lr=0.1))

    def build_training_data_loader(self):
        data = [torch.ones(1)] * 8
        return pytorch.DataLoader(data, self.context.get_per_slot_batch_size())

    def build_validation_data_loader(self):
        return pytorch.DataLoader([torch.ones(1)] * 2)

    def train_batch(self, batch, epoch_idx, batch_idx):
        loss = self.model(batch).square().mean()
        self.context.backward(loss)
        self.context.step_optimizer(self.optimizer)
        return {"loss": loss}

    def evaluate_batch(self, batch):
        return {"loss": self.model(batch).mean()}
"""
FIRST_LINE, IN_BATCH = 1, 18


def read_json(command: Background) -> Any:
    """Return the next object of JSON that a command prints, after other lines."""
    command.read_until(r"^\{$")
    lines = ["{"]
    while lines[-1] != "}\n":
        command.read_until("")
        lines.append(command.lines[-1])
    return json.loads("".join(lines))


def attach(entry: dict[str, Any], breakpoints: dict[str, list[int]]) -> DebugClient:
    """Attach to a trial as VS Code does with an entry of launch.json."""
    assert (entry["type"], entry["request"]) == ("debugpy", "attach")
    place = entry["connect"]
    client = DebugClient(socket.create_connection((place["host"], place["port"])))
    (mapping,) = entry["pathMappings"]
    local, remote = Path(mapping["localRoot"]), Path(mapping["remoteRoot"])
    client.attach(local, remote, breakpoints)
    return client


def test_debugger_attaches_to_a_trial_and_comes_back(laptop: Laptop, tmp_path: Path) -> None:
    folder = tmp_path / "model"
    folder.mkdir()
    (folder / "train.py").write_text(SCRIPT)
    (tmp_path / "debug.yaml").write_text(CONFIG)
    with Background(laptop, "create", tmp_path / "debug.yaml", folder, "--debug") as created:
        entry = read_json(created)
        created.read_until(r"rank 0 waits for a debugger, at most 1800 s")
        with attach(entry, {"train.py": [IN_WORK]}) as client:
            thread = client.wait_for_stop()
            # Not a round has passed without the debugger.
            assert client.evaluate(thread, "state['rounds']") == "0"
            created.read_until("a debugger is attached")
            created.process.send_signal(signal.SIGINT)
            created.read_until("attach a debugger again with `detcloud experiment debug 1`")
            assert created.process.wait(PROCESS_SECONDS_MAX) == INTERRUPTED
    with Background(laptop, "experiment", "debug", 1, folder, "--json") as again:
        described = read_json(again)
        assert (described["experiment_id"], described["trial_id"]) == (1, 1)
        with attach(described["launch"], {"train.py": [IN_WORK]}) as client:
            thread = client.wait_for_stop()
            assert int(client.evaluate(thread, "state['rounds']")) > 0
            client.evaluate(thread, "state.update(ends=True)")
            client.request("continue", threadId=thread)
            again.read_until("experiment 1 finished")
            assert again.process.wait(PROCESS_SECONDS_MAX) == 0
    config = laptop.json("experiment", "config", 1)
    assert (config["debugger"]["enabled"], config["max_restarts"]) == (True, 0)
    soon = "--config", "debugger.attach_timeout=1"
    laptop.run("create", tmp_path / "debug.yaml", folder, "--debug", *soon, code=1)
    message = laptop.json("experiment", "describe", 2)["message"]
    assert "no debugger was attached within 1 s (debugger.attach_timeout)" in message


@pytest.mark.nightly
@pytest.mark.parametrize("slots", [1, 2])
def test_debugger_attaches_to_a_trial_class(laptop: Laptop, tmp_path: Path, slots: int) -> None:
    require_installed("torch")
    laptop.run("up", "--slots", 2)
    folder = tmp_path / "model"
    folder.mkdir()
    (folder / "model_def.py").write_text(MODEL)
    config = {
        "entrypoint": "model_def:Trial",
        "hyperparameters": {"global_batch_size": 2},
        "searcher": {"name": "single", "metric": "loss", "max_length": {"batches": 4}},
        "resources": {"slots_per_trial": slots},
    }
    (tmp_path / "class.yaml").write_text(json.dumps(config))
    # Only a process without others waits before the module.
    lines = [FIRST_LINE, IN_BATCH] if slots == 1 else [IN_BATCH]
    with Background(laptop, "create", tmp_path / "class.yaml", folder, "--debug") as created:
        entry = read_json(created)
        with attach(entry, {"model_def.py": lines}) as client:
            if slots == 1:
                thread = client.wait_for_stop()
                assert client.evaluate(thread, "__name__") == "'model_def'"
                client.request("continue", threadId=thread)
            thread = client.wait_for_stop()
            assert client.evaluate(thread, "self.context.distributed.rank, batch_idx") == "(0, 0)"
            created.read_until("rank 0 waits")
        assert created.process.wait(PROCESS_SECONDS_MAX) == 0
