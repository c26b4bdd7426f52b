"""An instance fetches the agent's code, which is what the cluster itself was deployed with."""

import hashlib
import io
import subprocess
import sys
import tarfile
from pathlib import Path

import pytest

from control_plane.agents.agent_code import AgentCode, agent_code, keep_agent_code
from tests.patience import PROCESS_SECONDS_MAX
from tests.unit.api.cluster import V1, Cluster
from tests.unit.api.exchange import call


def test_the_code_is_what_its_name_says(cluster: Cluster) -> None:
    answer = call(cluster.app, "GET", f"{V1}/agent-code/{agent_code().sha256}")
    assert answer.status == 200
    assert hashlib.sha256(answer.body).hexdigest() == agent_code().sha256
    assert "immutable" in answer.headers["cache-control"]


def test_other_code_is_not_there(cluster: Cluster) -> None:
    assert call(cluster.app, "GET", f"{V1}/agent-code/{'0' * 64}").code == "not_found"
    assert call(cluster.app, "GET", f"{V1}/agent-code/abc").code == "invalid"


def test_the_code_of_another_version_that_launched_instances_stays(
    cluster: Cluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    keep_agent_code(cluster.objects)
    keep_agent_code(cluster.objects)
    before = agent_code()
    # Deployed anew, with other code.
    content = b"another version"
    other = AgentCode(content, hashlib.sha256(content).hexdigest())
    monkeypatch.setattr("control_plane.agents.agent_code.agent_code", lambda: other)
    for code in (before, other):
        answer = call(cluster.app, "GET", f"{V1}/agent-code/{code.sha256}")
        assert (answer.status, answer.body) == (200, code.content)


def test_an_agent_runs_from_it_without_any_package(tmp_path: Path) -> None:
    with tarfile.open(fileobj=io.BytesIO(agent_code().content)) as archive:
        archive.extractall(tmp_path, filter="data")
    # -I and -S: neither the environment nor installed packages are seen.
    run = f"import sys; sys.path[:0] = [{str(tmp_path)!r}]; sys.argv[1:] = ['--help'];"
    run += "import detcloud.agent.__main__ as agent; agent.main()"
    done = subprocess.run(
        [sys.executable, "-I", "-S", "-c", run],
        capture_output=True,
        text=True,
        timeout=PROCESS_SECONDS_MAX,
    )
    assert done.returncode == 0, done.stderr
    assert "--token-file" in done.stdout


def test_the_archive_depends_on_nothing_but_the_code() -> None:
    first = agent_code()
    agent_code.cache_clear()
    assert agent_code() == first
