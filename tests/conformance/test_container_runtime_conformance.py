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
from detcloud.agent.apptainer.runtime import ApptainerRuntime
from detcloud.agent.docker.container import ContainerRules
from detcloud.agent.docker.launch import container_name
from detcloud.agent.processes.runtime import ProcessRuntime
from detcloud.agent.runtime import ContainerRuntime
from tests.conformance.container_runtime import ContainerRuntimeContract, OpenNode
from tests.emulators.apptainer_program import Apptainer
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
        return stop_supervisor


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


@pytest.mark.nightly
class TestApptainer(ContainerRuntimeContract):
    """Trials in containers of the installed Apptainer."""

    @pytest.fixture
    def open_node(self, tmp_path: Path, apptainer: Apptainer) -> Iterator[OpenNode]:
        rules = ContainerRules(tmp_path, "node", os.getuid(), os.getgid(), runtime="apptainer")
        yield from nodes(
            tmp_path,
            lambda: ApptainerRuntime(str(apptainer.program), rules),
            container_spec(str(apptainer.image)),
        )

    @pytest.fixture
    def stop_from_outside(self) -> Callable[[Allocation], None]:
        return stop_supervisor


def stop_supervisor(trial: Allocation) -> None:
    process = json.loads((trial.directory.agent / "process.json").read_bytes())
    os.kill(process["supervisor"], signal.SIGTERM)


def nodes(folder: Path, runtime: Any, spec: dict[str, Any]) -> Iterator[OpenNode]:
    def open_node(former: TrialNode | None = None, **options: Any) -> TrialNode:
        if former is not None:
            former.abandon()
        used: ContainerRuntime = runtime()
        return TrialNode(folder, runtime=used, spec=spec, **options)

    yield open_node
    while opened:
        opened.pop().close()
