"""The registry of the agent's clouds: named functions exist, and modules are imported on use."""

import inspect
import os
import subprocess
import sys
from pathlib import Path

import pytest

import detcloud
from detcloud.agent.clouds import CLOUDS, AgentCloud, CloudInstance, load_instance

REQUIRED = ("--url", "http://127.0.0.1:1", "--name", "a", "--pool", "p", "--slots", "1")


@pytest.mark.parametrize("cloud", CLOUDS, ids=lambda cloud: cloud.name)
@pytest.mark.parametrize("name", ["make_proof", "start_notices"])
def test_cloud_modules_have_the_required_functions(cloud: AgentCloud, name: str) -> None:
    function = getattr(load_instance(cloud.name), name)
    required = list(inspect.signature(getattr(CloudInstance, name)).parameters)
    assert ["self", *inspect.signature(function).parameters] == required


def test_option_values_of_clouds_are_unique() -> None:
    assert len({cloud.name for cloud in CLOUDS}) == len(CLOUDS)
    assert len({"file", *(cloud.notices for cloud in CLOUDS)}) == len(CLOUDS) + 1


def _run(*words: str) -> subprocess.CompletedProcess[str]:
    environment = {**os.environ, "PYTHONPATH": str(Path(detcloud.__file__).parents[1])}
    return subprocess.run(
        [sys.executable, *words], capture_output=True, text=True, env=environment, timeout=30
    )


def test_agent_imports_no_cloud_module_by_default() -> None:
    names = " or ".join(f"m.startswith('detcloud.agent.{cloud.name}')" for cloud in CLOUDS)
    code = f"import sys, detcloud.agent.__main__; print([m for m in sys.modules if {names}])"
    assert _run("-c", code).stdout == "[]\n"


CHOICE = " or ".join(["--token-file", *(f"--identity {cloud.name}" for cloud in CLOUDS)])


@pytest.mark.parametrize(
    ("flags", "message"),
    [
        ((), f"give either {CHOICE}"),
        (("--identity", "aws", "--token-file", "x"), f"give either {CHOICE}"),
        (("--identity", "aws"), "--identity aws needs --cluster, the id of the cluster"),
    ],
)
def test_agent_requires_exactly_one_form_of_identity(
    flags: tuple[str, ...], message: str, tmp_path: Path
) -> None:
    done = _run("-m", "detcloud.agent", *REQUIRED, "--work-dir", str(tmp_path), *flags)
    assert (done.returncode, done.stderr) == (2, f"detcloud agent: {message}\n")
