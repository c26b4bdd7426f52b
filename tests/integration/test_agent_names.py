"""Two real agents with one name: the second agent waits until the first agent is lost."""

from __future__ import annotations

import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from tests.integration.embedded_cluster import EmbeddedCluster, environment
from tests.patience import wait_until

pytestmark = [pytest.mark.end_to_end, pytest.mark.nightly]


@pytest.fixture
def cluster(tmp_path: Path) -> Iterator[EmbeddedCluster]:
    one = EmbeddedCluster(tmp_path / "home")
    one.start()
    yield one
    one.end()


@contextmanager
def run_agent(url: str, work: Path, token: Path) -> Iterator[Path]:
    """Run an agent with the name `twin` in a work directory. Yield the file of its log."""
    command = [sys.executable, "-P", "-m", "detcloud.agent", "--url", url, "--pool", "default"]
    command += ["--name", "twin", "--token-file", str(token), "--cpu-slots", "1"]
    log = work.with_suffix(f".{time.monotonic_ns()}.log")
    with log.open("wb") as errors:
        process = subprocess.Popen(
            [*command, "--work-dir", str(work)], env=environment(), stderr=errors
        )
        try:
            yield log
        finally:
            process.terminate()
            process.wait()


def test_second_agent_of_a_name_waits_for_the_end_of_the_first(
    cluster: EmbeddedCluster, tmp_path: Path
) -> None:
    token = tmp_path / "join.token"
    client = cluster.client()
    token.write_text(client.create_token(role="join", resource_pool="default").data["token"])
    with run_agent(client.url, tmp_path / "second", token) as first:
        wait_until(lambda: "enrolled as twin, epoch 1" in first.read_text())
        with run_agent(client.url, tmp_path / "third", token) as refused:
            wait_until(lambda: "another agent is connected as twin" in refused.read_text())
            time.sleep(10)
            assert "enrolled" not in refused.read_text()
            # The first agent is not disturbed.
            assert "another agent" not in first.read_text()
    with run_agent(client.url, tmp_path / "second", token) as restarted:
        # The work directory is the same, so that the agent needs no wait.
        wait_until(lambda: "enrolled as twin, epoch 2" in restarted.read_text(), 10)
    with run_agent(client.url, tmp_path / "third", token) as waiting:
        wait_until(lambda: "enrolled as twin, epoch 3" in waiting.read_text(), 120)
