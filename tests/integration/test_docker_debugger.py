"""A debugger that attaches to a trial in a container, by the bridge that the agent starts."""

from __future__ import annotations

import importlib.util
from pathlib import Path

import pytest

from detcloud.agent.tunnel_services import MODULES
from detcloud.shared.tunnel.services import DEBUGGER
from tests.conftest import require_installed
from tests.debug_client import DebugClient
from tests.emulators.docker_engine import DockerEngine
from tests.integration.docker_node import container_spec, docker_runtime
from tests.integration.trial_node import TrialNode

require_installed("debugpy")

SCRIPT = """\
import os
from detcloud import core

with core.init() as context:
    user = os.getuid()
    print("user", user)
"""
LAST_LINE = 6


@pytest.mark.nightly
def test_debugger_attaches_to_a_trial_in_a_container(tmp_path: Path, engine: DockerEngine) -> None:
    spec = importlib.util.find_spec("debugpy")
    assert spec is not None
    packages = Path(str(spec.origin)).parents[1]
    runtime = docker_runtime(engine, tmp_path)
    config = container_spec(
        debugger={"enabled": True, "attach_timeout": 600},
        environment={"environment_variables": [f"PYTHONPATH={packages}"]},
    )
    node = TrialNode(tmp_path, runtime=runtime, spec=config)
    trial = node.begin("4.1", {"train.py": SCRIPT}, entrypoint="exec python3 train.py")
    node.watch(trial, lambda: "waits for a debugger" in trial.directory.log.read_text())
    code = trial.directory.code
    connection = runtime.spawn(trial.directory.agent, MODULES[DEBUGGER])
    with DebugClient(connection) as client:
        client.attach(code, code, {"train.py": [LAST_LINE]})
        thread = client.wait_for_stop()
        assert int(client.evaluate(thread, "user")) == (runtime.owner or (0, 0))[0]
        client.request("continue", threadId=thread)
    node.watch(trial)
    assert "a debugger is attached" in trial.directory.log.read_text()
