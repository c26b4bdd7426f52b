"""Servers of one state on PostgreSQL as processes, and an agent that belongs to no server."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import threading
import time
from collections import Counter
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from types import TracebackType
from typing import Any, Self

from detcloud.client import Client
from detcloud.client.handles import Experiment
from detcloud.shared.errors import DetcloudError
from detcloud.shared.http import Transport
from detcloud.shared.processes import list_descendants
from local_cluster.certificates import read_pin
from tests.integration.embedded_cluster import environment
from tests.patience import PROCESS_SECONDS_MAX, wait_until

POOL = "lab"
# Without a pool for own agents, only the agent that belongs to no server runs trials.
CONFIG = f"""
resource_manager: {{default_compute_resource_pool: cloud, default_aux_resource_pool: cloud}}
resource_pools:
- {{pool_name: cloud, provider: {{type: local, max_instances: 1}}}}
- {{pool_name: {POOL}}}
"""
# Each run of a trial adds a line to the file LEDGER.
TRAIN = """
import os, sys, time
from detcloud import core

with core.init() as context:
    ledger = os.open(sys.argv[1], os.O_WRONLY | os.O_APPEND | os.O_CREAT)
    os.write(ledger, b"%d\\n" % context.info.trial_id)
    for operation in context.searcher.operations():
        time.sleep(float(sys.argv[2]))
        context.train.report_validation_metrics(operation.length, {"loss": 1.0})
        operation.complete(1.0)
"""


@dataclass
class GroupServer:
    """A server process with a data folder."""

    home: Path
    port: int
    scheme: str = "http"
    process: subprocess.Popen[bytes] | None = None

    @property
    def url(self) -> str:
        return f"{self.scheme}://127.0.0.1:{self.port}"

    def kill(self) -> None:
        """Kill the server with SIGKILL."""
        assert self.process is not None
        self.process.kill()
        self.process.wait()

    def stop(self) -> int:
        """Send SIGTERM, and return the exit code."""
        assert self.process is not None
        self.process.terminate()
        return self.process.wait(PROCESS_SECONDS_MAX)


class ServerGroup:
    """Two servers with a common state and common files, which start on demand.

    Args:
        folder: a folder for all files.
        state: the URL of the database.
        ports: the ports of the servers.
        place: the options that name the place of the objects. None for a common folder.
        has_tls: whether other machines call the servers, with a self-signed certificate.
    """

    def __init__(
        self,
        folder: Path,
        state: str,
        ports: tuple[int, int],
        place: Sequence[str] | None = None,
        *,
        has_tls: bool = False,
    ) -> None:
        self._place = place
        self._has_tls = has_tls
        self.folder = folder
        self.state = state
        scheme = "https" if has_tls else "http"
        self.servers = [GroupServer(folder / f"home{port}", port, scheme) for port in ports]
        self.ledger = folder / "ledger"
        self._agent: subprocess.Popen[bytes] | None = None
        self._clients: list[Client] = []
        (folder / "cluster.yaml").write_text(CONFIG)

    @property
    def url(self) -> str:
        return ",".join(server.url for server in self.servers)

    @property
    def pin(self) -> str | None:
        """The pin of the first server."""
        return read_pin(self.servers[0].home / "server.pem") if self._has_tls else None

    @property
    def token(self) -> str:
        return (self.servers[0].home / "token").read_text().strip()

    def start(self, number: int, *, files: str = "files", awaited: bool = True) -> GroupServer:
        """Start a server, and wait for an answer."""
        server = self.servers[number]
        server.home.mkdir(exist_ok=True)
        command = [sys.executable, "-P", "-m", "local_cluster", "--home", str(server.home)]
        if self._has_tls:
            command += ["--listen", f"0.0.0.0:{server.port}", "--url", server.url]
        else:
            command += ["--port", str(server.port)]
        command += self._place or ["--files", str(self.folder / files)]
        command += ["--config", str(self.folder / "cluster.yaml")] if number == 0 else []
        with (server.home / "stderr.log").open("ab") as errors:
            server.process = subprocess.Popen(
                command, env={**environment(), "DETCLOUD_STATE": self.state}, stderr=errors
            )
        if awaited:
            process = server.process
            wait_until(lambda: _answers(server.home) or process.poll() is not None)
            assert process.poll() is None, (server.home / "stderr.log").read_text()
        return server

    def start_agent(self, name: str = "machine", slots: int = 2) -> None:
        """Start an agent that calls any of the servers."""
        token_file = self.folder / "join.token"
        token = self.client().create_token(role="join", resource_pool=POOL)
        assert token.token is not None
        token_file.write_text(token.token)
        command = [sys.executable, "-P", "-m", "detcloud.agent", "--url", self.url]
        command += ["--name", name, "--pool", POOL, "--token-file", str(token_file)]
        command += ["--work-dir", str(self.folder / name), "--slots", str(slots)]
        command += ["--pin", self.pin] if self.pin is not None else []
        with (self.folder / f"{name}.log").open("ab") as errors:
            self._agent = subprocess.Popen(command, env=environment(), stderr=errors)

    def client(self, *servers: int) -> Client:
        """Return a client of the servers, by default of all in order."""
        urls = [self.servers[number].url for number in servers] or [self.url]
        client = Client(",".join(urls), self.token, pin=self.pin)
        self._clients.append(client)
        return client

    def submit(self, client: Client, trials: int, seconds: float) -> Experiment:
        """Submit a search with short trials."""
        model = self.folder / "model"
        model.mkdir(exist_ok=True)
        (model / "train.py").write_text(TRAIN)
        return client.create_experiment(search_config(self.ledger, trials, seconds), model)

    def faults(self, experiment: Experiment, trials: int) -> list[str]:
        """Return a line for each lost or repeated trial, run or report of an ended search."""
        found = [f"the search is {experiment.state}"] if experiment.state != "COMPLETED" else []
        runs = Counter(self.ledger.read_text().split())
        listed = list(experiment.trials())
        if len(listed) != trials:
            found.append(f"{len(listed)} of {trials} trials")
        for trial in listed:
            reports = len(list(trial.metrics()))
            if runs[str(trial.id)] != 1 or reports != 1 or trial.data["restarts"]:
                found.append(f"trial {trial.id}: {runs[str(trial.id)]} runs, {reports} reports")
        return found

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        for client in self._clients:
            client.close()
        for process in (self._agent, *(server.process for server in self.servers)):
            if process is not None and process.poll() is None:
                children = list_descendants(process.pid)
                process.kill()
                process.wait()
                for child in children:
                    with suppress(ProcessLookupError):
                        os.kill(child.pid, signal.SIGKILL)


@dataclass
class Prober:
    """A thread that reads the overview every 50 ms, with the times of the calls."""

    url: str
    token: str
    seconds: list[float] = field(default_factory=list)
    errors: list[str] = field(default_factory=list)

    def __post_init__(self) -> None:
        self._stopped = threading.Event()
        self._thread = threading.Thread(target=self._run, daemon=True)

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(self, *error: object) -> None:
        self._stopped.set()
        self._thread.join()

    def _run(self) -> None:
        client = Transport(self.url, self.token)
        while not self._stopped.wait(0.05):
            began = time.monotonic()
            try:
                client.request("GET", "/api/v1/experiments?limit=5")
            except DetcloudError as error:
                self.errors.append(str(error))
            self.seconds.append(time.monotonic() - began)
        client.close()


def search_config(ledger: Path, trials: int, seconds: float) -> dict[str, Any]:
    """Return the configuration of a search whose trials take `seconds`."""
    return {
        "name": "short trials",
        "entrypoint": ["python", "train.py", str(ledger), str(seconds)],
        "searcher": {
            "name": "random",
            "metric": "loss",
            "max_length": {"batches": 1},
            "max_trials": trials,
        },
        "resources": {"resource_pool": POOL},
        "hyperparameters": {"x": {"type": "double", "minval": 0, "maxval": 1}},
    }


def _answers(home: Path) -> bool:
    """Return whether the recorded server of a data folder answers this machine."""
    try:
        url = str(read_json(home / "server.json")["url"])
    except (OSError, ValueError):
        return False
    client = Transport(url, None, timeout_seconds=2.0, attempts_max=1)
    try:
        client.request("GET", "/api/v1/health")
    except DetcloudError:
        return False
    finally:
        client.close()
    return True


def read_json(path: Path) -> dict[str, Any]:
    """Return the object in a file."""
    fields = json.loads(path.read_text())
    assert isinstance(fields, dict)
    return fields
