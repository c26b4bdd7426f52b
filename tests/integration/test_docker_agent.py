"""The agent as a process, with trials in containers."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from detcloud.agent.docker.container import LABEL
from tests.emulators.docker_engine import DockerEngine
from tests.integration.agent_cluster import FakeCluster
from tests.integration.agent_process import GO, LEAVE, PRELUDE, AgentProcess
from tests.integration.docker_node import container_spec
from tests.patience import PROCESS_SECONDS_MAX, wait_until

pytestmark = pytest.mark.end_to_end

COUNT = """
def count(start):
    for n in range(start, start + 50):
        report("metrics", group="training", n=n)
        print(n)
        time.sleep(0.02)
"""


@pytest.fixture
def options(engine: DockerEngine, monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Return the agent's options for trials in containers of the engine."""
    monkeypatch.setenv("DOCKER_HOST", f"unix://{engine.socket}")
    return ["--container-runtime", "docker", "--container-memory-mib", "2048"]


def containers(engine: DockerEngine, agent: AgentProcess) -> list[dict[str, Any]]:
    return engine.api.list_containers(f"{LABEL}work={agent.work}")


def test_replacement_of_a_killed_agent_keeps_lines_of_containers(
    agent: AgentProcess, cluster: FakeCluster, options: list[str], engine: DockerEngine
) -> None:
    cluster.forgets_exited = True
    cluster.assign(
        "4.1", PRELUDE + COUNT + "count(0)\n" + GO + "count(50)\n" + LEAVE, **container_spec()
    )
    first = agent.start(*options)
    wait_until(lambda: cluster.lines("4.1"))
    first.kill()
    first.wait()
    (container,) = containers(engine, agent)
    assert container["State"] == "running"
    agent.let_go("4.1")
    agent.start(*options)
    wait_until(lambda: cluster.exit_record("4.1"))
    assert [line["n"] for line in cluster.lines("4.1")[:-1]] == list(range(100))
    notice, *printed = cluster.log["4.1"].decode().splitlines()
    assert notice.startswith("[detcloud] image ")
    assert printed == [str(n) for n in range(100)]
    assert (cluster.exit_record("4.1") or {})["reason"] == "completed"
    assert [one for one in cluster.kinds("4.1") if one != "environment"] == [
        "PULLING",
        "STARTING",
        "RUNNING",
        "exited",
    ]
    # The disk and the engine keep no trace of the trial.
    wait_until(lambda: not (agent.work / "allocations/4.1").exists())
    wait_until(lambda: not containers(engine, agent))


def test_next_agent_carries_out_a_kill_from_before_the_agents_death(
    agent: AgentProcess, cluster: FakeCluster, options: list[str]
) -> None:
    program = 'signal.signal(signal.SIGTERM, signal.SIG_IGN)\nreport("ready")\ntime.sleep(600)\n'
    cluster.assign("4.1", PRELUDE + program, **container_spec())
    first = agent.start(*options)
    wait_until(lambda: cluster.lines("4.1"))
    cluster.change("4.1", state="kill", grace_ms=500)
    wait_until((agent.work / "allocations/4.1/agent/kill.json").exists)
    first.kill()
    first.wait()
    agent.start(*options)
    wait_until(lambda: cluster.exit_record("4.1"))
    assert (cluster.exit_record("4.1") or {})["reason"] == "killed"


def test_agent_without_allowed_folders_mounts_no_folder(
    agent: AgentProcess, cluster: FakeCluster, options: list[str]
) -> None:
    cluster.assign("4.1", PRELUDE + LEAVE, **container_spec())
    agent.start(*options, "--allow-mount")
    wait_until(lambda: cluster.exit_record("4.1"))
    ended = cluster.exit_record("4.1") or {}
    assert ended["reason"] == "errored"
    assert "not allowed on this agent; allowed are: none" in ended["message"]


@pytest.mark.parametrize(
    ("host", "why"),
    [
        ("unix:///no/such.sock", "the container engine at /no/such.sock: No such file"),
        ("tcp://10.0.0.1:2375", "the engine must be on this machine"),
    ],
)
def test_agent_without_an_engine_exits_with_a_message(
    agent: AgentProcess, monkeypatch: pytest.MonkeyPatch, host: str, why: str
) -> None:
    monkeypatch.setenv("DOCKER_HOST", host)
    process = agent.start("--container-runtime", "docker")
    assert process.wait(PROCESS_SECONDS_MAX) == 2
    errors = agent.errors.read_text()
    assert why in errors
    assert "run trials with --container-runtime process" in errors
    assert len(errors.splitlines()) == 1


def test_trial_of_a_different_runtime_is_not_taken_over(
    agent: AgentProcess, cluster: FakeCluster, options: list[str]
) -> None:
    cluster.assign("4.1", PRELUDE + 'report("ready")\ntime.sleep(600)\n')
    first = agent.start()
    wait_until(lambda: cluster.lines("4.1"))
    first.kill()
    first.wait()
    assert agent.start(*options).wait(PROCESS_SECONDS_MAX) == 2
    errors = agent.errors.read_text()
    assert "allocations/4.1 was begun with --container-runtime process" in errors
    agent.start()
    cluster.change("4.1", state="kill", grace_ms=0)
    wait_until(lambda: cluster.exit_record("4.1"))
    assert (cluster.exit_record("4.1") or {})["reason"] == "killed"


def test_unknown_container_runtime_is_refused(
    agent: AgentProcess, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("DETCLOUD_CONTAINER_RUNTIME", "lxc")
    assert agent.start().wait(PROCESS_SECONDS_MAX) == 2
    runtimes = "process, docker, podman or apptainer"
    expected = f"DETCLOUD_CONTAINER_RUNTIME must be {runtimes}, not 'lxc'"
    assert expected in agent.errors.read_text()


def test_malformed_container_user_is_refused(agent: AgentProcess) -> None:
    process = agent.start("--container-runtime", "docker", "--container-user", "root")
    assert process.wait(PROCESS_SECONDS_MAX) == 2
    assert "must be UID:GID, two numbers, not 'root'" in Path(agent.errors).read_text()
