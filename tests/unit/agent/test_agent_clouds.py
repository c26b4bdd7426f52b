"""The registry of the agent's clouds: what it names is there, and is imported when it is used."""

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
def test_the_module_of_a_cloud_has_the_functions(cloud: AgentCloud, name: str) -> None:
    function = getattr(load_instance(cloud.name), name)
    asked = list(inspect.signature(getattr(CloudInstance, name)).parameters)
    assert ["self", *inspect.signature(function).parameters] == asked


def test_no_value_of_an_option_is_two_clouds() -> None:
    assert len({cloud.name for cloud in CLOUDS}) == len(CLOUDS)
    assert len({"file", *(cloud.notices for cloud in CLOUDS)}) == len(CLOUDS) + 1


def _run(*words: str) -> subprocess.CompletedProcess[str]:
    environment = {**os.environ, "PYTHONPATH": str(Path(detcloud.__file__).parents[1])}
    return subprocess.run(
        [sys.executable, *words], capture_output=True, text=True, env=environment, timeout=30
    )


def test_an_agent_imports_no_cloud_before_an_option_names_it() -> None:
    names = " or ".join(f"m.startswith('detcloud.agent.{cloud.name}')" for cloud in CLOUDS)
    code = f"import sys, detcloud.agent.__main__; print([m for m in sys.modules if {names}])"
    assert _run("-c", code).stdout == "[]\n"


CHOICE = " or ".join(["--token-file", *(f"--identity {cloud.name}" for cloud in CLOUDS)])


@pytest.mark.parametrize(
    ("flags", "said"),
    [
        ((), f"give either {CHOICE}"),
        (("--identity", "aws", "--token-file", "x"), f"give either {CHOICE}"),
        (("--identity", "aws"), "--identity aws needs --cluster, the id of the cluster"),
    ],
)
def test_an_agent_without_a_way_to_say_who_it_is_ends(
    flags: tuple[str, ...], said: str, tmp_path: Path
) -> None:
    done = _run("-m", "detcloud.agent", *REQUIRED, "--work-dir", str(tmp_path), *flags)
    assert (done.returncode, done.stderr) == (2, f"detcloud agent: {said}\n")
