"""The suite of container runtimes, for each runtime."""

from __future__ import annotations

import json
import os
import signal
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from detcloud.agent.allocation.allocation import Allocation
from detcloud.agent.docker.launch import container_name
from detcloud.agent.processes.runtime import ProcessRuntime
from detcloud.agent.runtime import ContainerRuntime
from tests.conformance.container_runtime import ContainerRuntimeContract, OpenNode
from tests.emulators.docker_engine import DockerEngine
from tests.integration.docker_node import container_spec, docker_runtime
from tests.integration.trial_node import TrialNode, opened

pytestmark = pytest.mark.end_to_end


class TestProcesses(ContainerRuntimeContract):
    """Trials as processes of this machine."""

    @pytest.fixture
    def open_node(self, tmp_path: Path) -> Iterator[OpenNode]:
        yield from nodes(tmp_path, ProcessRuntime, {})

    @pytest.fixture
    def stop_from_outside(self) -> Callable[[Allocation], None]:
        def stop(trial: Allocation) -> None:
            process = json.loads((trial.directory.agent / "process.json").read_bytes())
            os.kill(process["supervisor"], signal.SIGTERM)

        return stop


class TestDocker(ContainerRuntimeContract):
    """Trials in containers of the tests' own engine."""

    @pytest.fixture
    def open_node(self, tmp_path: Path, engine: DockerEngine) -> Iterator[OpenNode]:
        yield from nodes(tmp_path, lambda: docker_runtime(engine, tmp_path), container_spec())

    @pytest.fixture
    def stop_from_outside(self, engine: DockerEngine) -> Callable[[Allocation], None]:
        def stop(trial: Allocation) -> None:
            engine.api.signal_container(container_name(trial.directory.agent), signal.SIGTERM)

        return stop


@pytest.mark.nightly
class TestPodman(ContainerRuntimeContract):
    """Trials in containers of Podman's service, which the tests start."""

    @pytest.fixture
    def open_node(self, tmp_path: Path, podman: DockerEngine) -> Iterator[OpenNode]:
        options: dict[str, Any] = {"runtime": "podman", "is_podman": True}
        yield from nodes(
            tmp_path, lambda: docker_runtime(podman, tmp_path, **options), container_spec()
        )

    @pytest.fixture
    def stop_from_outside(self, podman: DockerEngine) -> Callable[[Allocation], None]:
        def stop(trial: Allocation) -> None:
            podman.api.signal_container(container_name(trial.directory.agent), signal.SIGTERM)

        return stop


def nodes(folder: Path, runtime: Any, spec: dict[str, Any]) -> Iterator[OpenNode]:
    def open_node(former: TrialNode | None = None, **options: Any) -> TrialNode:
        if former is not None:
            former.abandon()
        used: ContainerRuntime = runtime()
        return TrialNode(folder, runtime=used, spec=spec, **options)

    yield open_node
    while opened:
        opened.pop().close()
