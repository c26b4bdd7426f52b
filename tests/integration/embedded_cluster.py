"""A real embedded cluster in a folder: the server, the agent and the trials as processes."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

from detcloud.client import Client
from detcloud.shared.processes import list_descendants
from tests.own_ports import record_own_port
from tests.patience import PROCESS_SECONDS_MAX, wait_until

ROOT = Path(__file__).parents[2]

# Trains a batch in PAUSE seconds, obeys requests to stop, and stores a checkpoint at each end.
TRAIN = """
import json, pathlib, sys, time
from detcloud import core

pause = float(sys.argv[1])

with core.init() as context:
    steps = context.info.steps_completed
    if context.info.latest_checkpoint:
        with context.checkpoint.restore_path(context.info.latest_checkpoint) as folder:
            assert json.loads((folder / "state.json").read_text()) == steps

    def save():
        with context.checkpoint.store_path({"steps_completed": steps}) as (folder, uuid):
            (folder / "state.json").write_text(json.dumps(steps))

    print("trial", context.info.trial_id, "starts at", steps, flush=True)
    for operation in context.searcher.operations():
        while steps < operation.length and not context.preempt.should_preempt():
            time.sleep(pause)
            steps += 1
            context.train.report_training_metrics(steps, {"loss": 1 / steps})
        save()
        if steps < operation.length:
            break
        loss = context.info.hparams["x"] ** 2
        context.train.report_validation_metrics(steps, {"loss": loss})
        operation.complete(loss)
    print("trial", context.info.trial_id, "stops at", steps, flush=True)
"""


class EmbeddedCluster:
    """A cluster that a test starts, kills and inspects; `end` ends every process."""

    def __init__(self, home: Path) -> None:
        self.home = home
        self.process: subprocess.Popen[bytes] | None = None
        self._started: set[int] = set()
        self._clients: list[Client] = []

    def start(self, slots: int = 2) -> Client:
        """Start the server; return a client after the server and the agent are recorded."""
        record_own_port(self.home)
        self.process = subprocess.Popen(
            [*self.command(), "--slots", str(slots)],
            env=self.environment(),
            stderr=subprocess.DEVNULL,
        )
        pid = self.process.pid
        wait_until(lambda: self.record().get("pid") == pid, what="the server's record")
        wait_until(lambda: self.record().get("agent_pid"), what="the agent's record")
        return self.client()

    def command(self) -> list[str]:
        return [sys.executable, "-P", "-m", "local_cluster", "--home", str(self.home)]

    def environment(self) -> dict[str, str]:
        return environment()

    def client(self) -> Client:
        client = Client(self.record()["url"], (self.home / "token").read_text().strip())
        self._clients.append(client)
        return client

    def record(self) -> dict[str, Any]:
        try:
            fields = json.loads((self.home / "server.json").read_text())
        except (OSError, ValueError, RecursionError):
            return {}
        return fields if isinstance(fields, dict) else {}

    def kill(self) -> None:
        """Kill the server with SIGKILL; the agent and the trials continue."""
        assert self.process is not None
        self._note()
        self.process.kill()
        self.process.wait()

    def stop(self) -> int:
        """Send SIGTERM to the server and return the exit code."""
        assert self.process is not None
        self._note()
        self.process.terminate()
        return self.process.wait(PROCESS_SECONDS_MAX)

    def end(self) -> None:
        for client in self._clients:
            client.close()
        if self.process is not None and self.process.poll() is None:
            self.kill()
        for pid in self._started:
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)

    def _note(self) -> None:
        assert self.process is not None
        self._started |= {child.pid for child in list_descendants(self.process.pid)}


def environment() -> dict[str, str]:
    return {**os.environ, "PYTHONPATH": f"{ROOT}{os.pathsep}{ROOT / 'harness'}"}


def model_dir(folder: Path) -> Path:
    folder.mkdir()
    (folder / "train.py").write_text(TRAIN)
    return folder


def config(pause_seconds: float = 0.0, batches: int = 4, trials: int = 4) -> dict[str, Any]:
    return {
        "name": "test",
        "entrypoint": ["python", "train.py", str(pause_seconds)],
        "searcher": {
            "name": "random",
            "metric": "loss",
            "max_length": {"batches": batches},
            "max_trials": trials,
        },
        "hyperparameters": {"x": {"type": "double", "minval": 0, "maxval": 1}},
        "reproducibility": {"experiment_seed": 7},
    }
