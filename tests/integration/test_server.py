"""`detcloud server`: a server with TLS, an agent on another machine, and restarts under load."""

from __future__ import annotations

import signal
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from detcloud.client import Client, Experiment
from detcloud.shared import pins
from detcloud.shared.http import Unreachable
from tests.integration.embedded_cluster import config, model_dir
from tests.integration.lab import Lab
from tests.integration.ssh_machine import SshMachine
from tests.patience import PROCESS_SECONDS_MAX, wait_until

# A batch every 0.05 s: 60 batches take at least 3 s, longer than a restart of the server.
BATCHES = 60


@pytest.fixture
def lab(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Lab]:
    monkeypatch.setattr(pins, "_pins", {})
    lab = Lab(tmp_path)
    yield lab
    lab.end()


class Load:
    """Threads that send requests until `end`, and record refused requests.

    Requests without an answer are sent again, as by commands and agents.
    """

    def __init__(self, client: Client) -> None:
        self.failures: list[Exception] = []
        self.answers = 0
        self._client = client
        self._ended = threading.Event()
        self._threads = [threading.Thread(target=self._run) for _ in range(4)]
        for thread in self._threads:
            thread.start()

    def _run(self) -> None:
        while not self._ended.is_set():
            try:
                self._client.whoami()
                self.answers += 1
            except Unreachable:
                continue
            except Exception as error:
                self.failures.append(error)
            time.sleep(0.01)

    def end(self) -> None:
        self._ended.set()
        for thread in self._threads:
            thread.join(PROCESS_SECONDS_MAX)


def training_batches(client: Client, trial: int) -> list[int]:
    reports = client.items(f"/trials/{trial}/metrics", group="training")
    return [int(report["steps_completed"]) for report in reports]


def state_of(experiment: Experiment) -> str:
    experiment.refresh()
    return experiment.state


@pytest.mark.nightly
@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGKILL])
def test_restart_under_load_loses_no_report(
    lab: Lab, tmp_path: Path, number: signal.Signals
) -> None:
    lab.start()
    pin = lab.sign_in()
    lab.start_agent(pin)
    with lab.client(pin) as client:
        experiment = client.create_experiment(
            config(0.05, BATCHES, trials=1), model_dir(tmp_path / "model")
        )
        trial = wait_until(lambda: list(experiment.trials()), what="a trial")[0]
        wait_until(lambda: len(training_batches(client, trial.id)) >= 5, what="reports")
        load = Load(client)
        code = lab.end_server(number)
        assert code == (0 if number is signal.SIGTERM else -signal.SIGKILL)
        lab.start()
        wait_until(lambda: state_of(experiment) == "COMPLETED", 60, "the completion")
        load.end()
        assert load.failures == []
        assert load.answers > 0
        # The trial never restarted, and each batch was reported once.
        trial.refresh()
        assert trial.restarts == 0
        assert training_batches(client, trial.id) == list(range(1, BATCHES + 1))
    assert lab.end_server(signal.SIGTERM) == 0


def test_machine_that_is_added_over_ssh_pins_the_certificate(
    lab: Lab, shared_folder: Path, tmp_path: Path
) -> None:
    lab.start()
    pin = lab.sign_in()
    machine = SshMachine(tmp_path / "machine")
    try:
        options = [*machine.options, "--name", "gpu-1", "--agent-option=--cpu-slots=1"]
        lab.command_line("agent", "add", machine.url, *options)
        with lab.client(pin) as client:
            [agent] = client.agents()
            assert (agent.id, agent.data["state"], len(agent.slots)) == ("gpu-1", "ALIVE", 1)
            store = {"type": "shared_fs", "host_path": str(shared_folder)}
            experiment = client.create_experiment(
                {**config(trials=1), "checkpoint_storage": store}, model_dir(tmp_path / "model")
            )
            wait_until(lambda: state_of(experiment) == "COMPLETED", what="the completion")
        line = lab.command_line("agent", "join-line")
        assert f"--pin {pin}" in line
        lab.command_line("agent", "remove", "gpu-1", "--ssh", machine.url, *machine.options)
    finally:
        machine.close()
