"""The suite of container runtimes over each of them."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

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


class TestDocker(ContainerRuntimeContract):
    """Trials in containers of an engine of the tests' own."""

    @pytest.fixture
    def open_node(self, tmp_path: Path, engine: DockerEngine) -> Iterator[OpenNode]:
        yield from nodes(tmp_path, lambda: docker_runtime(engine, tmp_path), container_spec())


def nodes(folder: Path, runtime: Any, spec: dict[str, Any]) -> Iterator[OpenNode]:
    def open_node(former: TrialNode | None = None, **options: Any) -> TrialNode:
        if former is not None:
            former.abandon()
        used: ContainerRuntime = runtime()
        return TrialNode(folder, runtime=used, spec=spec, **options)

    yield open_node
    while opened:
        opened.pop().close()
