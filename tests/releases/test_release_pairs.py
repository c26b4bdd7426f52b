"""Agents of the last release with today's API, and today's agents with the last release's API.

Both pairs occur during a rolling deploy and after a rollback. `detcloud-VERSION.tar.xz` is the code
of a released version: the server's packages and `harness`. Both sides run as real processes, and an
experiment trains between them.
"""

from __future__ import annotations

import os
import subprocess
import sys
import tarfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from detcloud.client import Client
from tests.integration.embedded_cluster import ROOT, EmbeddedCluster, config, model_dir
from tests.patience import PROCESS_SECONDS_MAX, wait_until

pytestmark = pytest.mark.end_to_end

RELEASE = Path(__file__).with_name("detcloud-0.1.0.tar.xz")
POOLS = "resource_pools: [{pool_name: default}, {pool_name: mixed}]"


class ReleasedCluster(EmbeddedCluster):
    """A local cluster of the code at `code`, with the module `server` as the server."""

    def __init__(self, home: Path, code: Path, server: str) -> None:
        super().__init__(home)
        self.code = code
        self._server = server

    def command(self) -> list[str]:
        settings = self.home.with_suffix(".yaml")
        settings.write_text(POOLS)
        home = ["--home", str(self.home), "--config", str(settings)]
        return [sys.executable, "-P", "-m", self._server, *home]

    def environment(self) -> dict[str, str]:
        return environment_of(self.code)


@pytest.fixture(scope="module")
def release(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return the folder of the last release's code."""
    folder = tmp_path_factory.mktemp("released")
    with tarfile.open(RELEASE) as archive:
        archive.extractall(folder, filter="data")
    return folder


def environment_of(code: Path) -> dict[str, str]:
    return {**os.environ, "PYTHONPATH": f"{code}{os.pathsep}{code / 'harness'}"}


@contextmanager
def agent_of(code: Path, client: Client, folder: Path) -> Iterator[subprocess.Popen[bytes]]:
    """Run an agent of the code as the only agent of the pool `mixed`."""
    token = client.create_token(role="join", resource_pool="mixed")
    token_file = folder / "join-token"
    token_file.write_text(str(token.token or ""))
    command = [sys.executable, "-P", "-m", "detcloud.agent", "--url", client.url]
    command += ["--token-file", str(token_file), "--name", "other", "--pool", "mixed"]
    command += ["--work-dir", str(folder / "work"), "--slots", "1"]
    with (folder / "agent.log").open("wb") as log:
        process = subprocess.Popen(command, env=environment_of(code), stdout=log, stderr=log)
    try:
        yield process
    finally:
        process.terminate()
        process.wait(PROCESS_SECONDS_MAX)


@pytest.mark.parametrize("is_agent_old", [True, False], ids=["old agent", "old API"])
def test_experiment_trains_between_two_releases(
    release: Path, tmp_path: Path, is_agent_old: bool
) -> None:
    server = (ROOT, "local_cluster") if is_agent_old else (release, "lambdas.embedded")
    cluster = ReleasedCluster(tmp_path / "home", *server)
    try:
        client = cluster.start(slots=1)
        with agent_of(release if is_agent_old else ROOT, client, tmp_path) as agent:
            _train(client, model_dir(tmp_path / "model"), tmp_path / "agent.log")
            assert agent.poll() is None
    finally:
        cluster.end()


def _train(client: Client, model: Path, log: Path) -> None:
    """Train two trials, the second after a pause, and check the reports of both."""
    settings: dict[str, Any] = config(pause_seconds=0.3, batches=6, trials=2)
    # The server's own agent is in the default pool.
    experiment = client.create_experiment(
        settings | {"resources": {"resource_pool": "mixed"}}, model
    )
    wait_until(lambda: _allocations(client) == 1, what=f"a first run\n{log.read_text()}")
    experiment.pause()
    wait_until(lambda: not _allocations(client), what="the end of its runs")
    experiment.activate()
    assert experiment.wait(0.2, timeout_seconds=PROCESS_SECONDS_MAX) == "COMPLETED", log.read_text()
    trials = client.experiment(experiment.id).trials()
    assert [trial.restarts for trial in trials] == [0, 0]
    for trial in trials:
        assert [report["steps_completed"] for report in trial.metrics("validation")] == [6]
        assert any("stops at 6" in line for line in _log_lines(trial))
        assert len(list(trial.checkpoints())) >= 1


def _allocations(client: Client) -> int:
    return sum(pool.running for pool in client.resource_pools())


def _log_lines(trial: Any) -> list[str]:
    return [str(line) for line in trial.logs()]
