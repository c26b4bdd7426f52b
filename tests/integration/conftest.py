from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from detcloud.shared.files import delete_tree
from tests.emulators.docker_engine import DockerEngine, docker_engine
from tests.emulators.podman_engine import podman_engine
from tests.integration.agent_cluster import FakeCluster
from tests.integration.agent_process import AgentProcess
from tests.integration.trial_node import opened


@pytest.fixture
def cluster() -> Iterator[FakeCluster]:
    with FakeCluster() as fake:
        yield fake


@pytest.fixture
def agent(tmp_path: Path, cluster: FakeCluster) -> Iterator[AgentProcess]:
    started = AgentProcess(tmp_path / "work", cluster.url)
    yield started
    started.end()
    # Some hostile trials create folders too deep for pytest's own deletion.
    delete_tree(started.work)


@pytest.fixture(scope="session")
def engine() -> Iterator[DockerEngine]:
    with docker_engine() as started:
        yield started


@pytest.fixture(scope="session")
def podman() -> Iterator[DockerEngine]:
    with podman_engine() as started:
        yield started


@pytest.fixture(autouse=True)
def _trials_ended() -> Iterator[None]:
    """Close all nodes of a test, which ends their trials."""
    yield
    while opened:
        opened.pop().close()
