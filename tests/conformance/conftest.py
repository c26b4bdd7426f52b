from __future__ import annotations

import time
from collections.abc import Iterator

import pytest

from tests.emulators.apptainer_program import Apptainer, apptainer_program
from tests.emulators.docker_engine import DockerEngine, docker_engine
from tests.emulators.hadoop import Hadoop, hadoop
from tests.emulators.podman_engine import podman_engine
from tests.emulators.webhdfs import WebHdfs, webhdfs


@pytest.fixture
def pauses(monkeypatch: pytest.MonkeyPatch) -> list[float]:
    """Return a list of the pauses that the code requests; no pause takes time."""
    slept: list[float] = []
    monkeypatch.setattr(time, "sleep", slept.append)
    return slept


@pytest.fixture(scope="session")
def engine() -> Iterator[DockerEngine]:
    with docker_engine() as started:
        yield started


@pytest.fixture(scope="session")
def podman() -> Iterator[DockerEngine]:
    with podman_engine() as started:
        yield started


@pytest.fixture(scope="session")
def apptainer() -> Iterator[Apptainer]:
    with apptainer_program() as found:
        yield found


@pytest.fixture(scope="session")
def model_hdfs() -> Iterator[WebHdfs]:
    """Yield HDFS in this process; each test uses a separate folder."""
    with webhdfs() as started:
        yield started


@pytest.fixture(scope="session")
def real_hdfs(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Hadoop]:
    """Yield Hadoop's HDFS; each test uses a separate folder."""
    with hadoop(tmp_path_factory.mktemp("hadoop")) as started:
        yield started
