"""`detcloud server`: a server with TLS, an agent on another machine, and restarts under load."""

from __future__ import annotations

import re
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from detcloud.client import Client, Experiment
from detcloud.shared import pins
from detcloud.shared.http import Unreachable
from tests.integration.embedded_cluster import config, environment, model_dir
from tests.patience import PROCESS_SECONDS_MAX, wait_until

# A batch every 0.05 s: 60 batches take at least 3 s, longer than a restart of the server.
BATCHES = 60


class Lab:
    """A server without an agent of its own, and an agent that pins the server's certificate."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        with socket.create_server(("0.0.0.0", 0)) as probe:
            self.port = probe.getsockname()[1]
        self.url = f"https://127.0.0.1:{self.port}"
        self.environment = environment() | {"HOME": str(folder)}
        for name in ("DETCLOUD_URL", "DETCLOUD_TOKEN", "DETCLOUD_HOME", "DETCLOUD_PIN"):
            self.environment.pop(name, None)
        self.server: subprocess.Popen[bytes] | None = None
        self.agent: subprocess.Popen[bytes] | None = None

    def command_line(self, *words: str) -> str:
        """Run a `detcloud` command, and return the standard output."""
        command = [sys.executable, "-m", "detcloud.cli.main", *words]
        done = subprocess.run(
            command, env=self.environment, capture_output=True, text=True, check=False
        )
        assert done.returncode == 0, done.stderr
        return done.stdout

    def start(self) -> None:
        words = ["server", "run", "--data", str(self.folder / "data"), "--no-agent"]
        words += ["--listen", f"0.0.0.0:{self.port}", "--url", self.url]
        self.server = subprocess.Popen(
            [sys.executable, "-m", "detcloud.cli.main", *words],
            env=self.environment,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
        )
        data = ("--data", str(self.folder / "data"))
        wait_until(lambda: self._succeeds("server", "status", *data), what="a ready server")

    def _succeeds(self, *words: str) -> bool:
        command = [sys.executable, "-m", "detcloud.cli.main", *words]
        return not subprocess.run(
            command, env=self.environment, capture_output=True, check=False
        ).returncode

    def end_server(self, number: signal.Signals) -> int:
        assert self.server is not None
        self.server.send_signal(number)
        return self.server.wait(PROCESS_SECONDS_MAX)

    def sign_in(self) -> str:
        """Sign in with a code of the server's machine, and return the pin."""
        text = self.command_line("server", "code", "--data", str(self.folder / "data"))
        found = re.search(r"detcloud login (\S+) --pin (\S+) --code (\S+)", text)
        assert found is not None
        self.command_line("login", found[1], "--pin", found[2], "--code", found[3])
        return found[2]

    def start_agent(self, pin: str) -> None:
        token = self.folder / "join.token"
        token.write_text(self.command_line("token", "create", "--join", "default"))
        options = ["--url", self.url, "--pin", pin, "--token-file", str(token), "--name", "box"]
        options += ["--pool", "default", "--work-dir", str(self.folder / "box"), "--slots", "1"]
        self.agent = subprocess.Popen(
            [sys.executable, "-m", "detcloud.agent", *options],
            env=self.environment,
            stderr=subprocess.DEVNULL,
        )

    def end(self) -> None:
        for process in (self.agent, self.server):
            if process is not None and process.poll() is None:
                process.terminate()
                process.wait(PROCESS_SECONDS_MAX)


@pytest.fixture
def lab(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Lab]:
    monkeypatch.setattr(pins, "_pins", {})
    lab = Lab(tmp_path)
    yield lab
    lab.end()


def client_of(lab: Lab, pin: str) -> Client:
    token = (lab.folder / "data/token").read_text().strip()
    return Client(lab.url, token, pin=pin)


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


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGKILL])
def test_restart_under_load_loses_no_report(
    lab: Lab, tmp_path: Path, number: signal.Signals
) -> None:
    lab.start()
    pin = lab.sign_in()
    lab.start_agent(pin)
    with client_of(lab, pin) as client:
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
