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


def read_json(command: Background) -> Any:
    """Return the next object of JSON that a command prints, after other lines."""
    command.read_until(r"^\{$")
    lines = ["{"]
    while lines[-1] != "}\n":
        command.read_until("")
        lines.append(command.lines[-1])
    return json.loads("".join(lines))


def attach(entry: dict[str, Any]) -> DebugClient:
    """Attach to a trial as VS Code does with an entry of launch.json, at a breakpoint of `work`."""
    assert (entry["type"], entry["request"]) == ("debugpy", "attach")
    place = entry["connect"]
    client = DebugClient(socket.create_connection((place["host"], place["port"])))
    (mapping,) = entry["pathMappings"]
    local, remote = Path(mapping["localRoot"]), Path(mapping["remoteRoot"])
    client.attach(local, remote, {"train.py": [IN_WORK]})
    return client


def test_debugger_attaches_to_a_trial_and_comes_back(laptop: Laptop, tmp_path: Path) -> None:
    folder = tmp_path / "model"
    folder.mkdir()
    (folder / "train.py").write_text(SCRIPT)
    (tmp_path / "debug.yaml").write_text(CONFIG)
    with Background(laptop, "create", tmp_path / "debug.yaml", folder, "--debug") as created:
        entry = read_json(created)
        created.read_until(r"rank 0 waits for a debugger, at most 1800 s")
        with attach(entry) as client:
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
        with attach(described["launch"]) as client:
            thread = client.wait_for_stop()
            assert int(client.evaluate(thread, "state['rounds']")) > 0
            client.evaluate(thread, "state.update(ends=True)")
            client.request("continue", threadId=thread)
            again.read_until("experiment 1 finished")
            assert again.process.wait(PROCESS_SECONDS_MAX) == 0
    (config,) = [laptop.json("experiment", "config", 1)]
    assert (config["debugger"]["enabled"], config["max_restarts"]) == (True, 0)
