"""The agent as a process: settings of a configuration, and the fork server that starts trials."""

from __future__ import annotations

import json
import os
import signal
from pathlib import Path
from typing import Any

import pytest

from tests.integration.agent_cluster import FakeCluster
from tests.integration.agent_process import GO, AgentProcess, alive
from tests.patience import PROCESS_SECONDS_MAX, wait_until

pytestmark = pytest.mark.end_to_end

# A program that exits while its module is imported.
LEAVES = """
import os, sys, time
print(open("/proc/self/cmdline").read().split("\\0")[2], flush=True)
sys.exit(0)
"""
STAYS = LEAVES.replace("sys.exit(0)", f'home = os.environ["DETCLOUD_TRIAL_DIR"]{GO}sys.exit(0)')


def assign(cluster: FakeCluster, name: str, program: str = LEAVES, **spec: Any) -> None:
    """Assign a trial of a class, which a fork server may start."""
    base = {"version": 1, "entrypoint": "model_def:Trial", "epoch": 1, "config": {}}
    cluster.assign_files(name, {"model_def.py": program}, **{**base, **spec})


def fork_servers(agent: AgentProcess) -> list[int]:
    """Return the processes in the agent's folder for the fork server."""
    found = []
    for entry in Path("/proc").glob("[0-9]*/cwd"):
        try:
            if entry.readlink() == agent.work / "template":
                found.append(int(entry.parent.name))
        except OSError:
            continue
    return found


def test_fork_server_ends_with_the_agent_and_the_trial_continues(
    agent: AgentProcess, cluster: FakeCluster
) -> None:
    assign(cluster, "4.1", STAYS)
    first = agent.start()
    wait_until(lambda: b"launch.fork_server" in cluster.log.get("4.1", b""), seconds=40)
    process = json.loads((agent.work / "allocations/4.1/agent/process.json").read_bytes())
    first.kill()
    first.wait()
    # The supervisor was forked in the same folder and continues.
    wait_until(lambda: fork_servers(agent) == [process["supervisor"]])
    agent.let_go("4.1")
    agent.start()
    wait_until(lambda: cluster.exit_record("4.1"))
    assert (cluster.exit_record("4.1") or {})["code"] == 0
    assert cluster.kinds("4.1") == ["PULLING", "STARTING", "RUNNING", "exited"]
    wait_until(lambda: not alive(process["supervisor"]))


def test_stopped_agent_ends_the_fork_server(agent: AgentProcess, cluster: FakeCluster) -> None:
    assign(cluster, "4.1")
    process = agent.start()
    wait_until(lambda: cluster.exit_record("4.1"), seconds=40)
    assert cluster.log["4.1"] == b"detcloud.launch.fork_server\n"
    wait_until(lambda: len(fork_servers(agent)) == 1)
    (fork_server,) = fork_servers(agent)
    process.send_signal(signal.SIGTERM)
    assert process.wait(PROCESS_SECONDS_MAX) == 0
    assert not alive(fork_server)


@pytest.mark.parametrize("how", ["option", "variable"])
def test_fast_starts_can_be_switched_off(
    agent: AgentProcess, cluster: FakeCluster, monkeypatch: pytest.MonkeyPatch, how: str
) -> None:
    assign(cluster, "4.1")
    if how == "variable":
        monkeypatch.setenv("DETCLOUD_PLAIN_STARTS", "1")
    agent.start(*(["--plain-starts"] if how == "option" else []))
    wait_until(lambda: cluster.exit_record("4.1"))
    assert cluster.log["4.1"] == b"detcloud.launch.trial\n"
    assert not (agent.work / "template").exists()


def test_every_run_logs_unused_settings(
    agent: AgentProcess, cluster: FakeCluster, tmp_path: Path
) -> None:
    data = tmp_path / "data"
    data.mkdir()
    (data / "rows").write_text("1 2 3")
    config = {
        "environment": {
            "image": {"cpu": "org/image:1", "cuda": None, "rocm": None},
            "environment_variables": {"cpu": ["COLOUR=blue", "HOME=/root"], "cuda": []},
        },
        "bind_mounts": [
            {"host_path": str(data), "container_path": "data/set", "read_only": True},
            {"host_path": str(data), "container_path": "/mnt/data"},
        ],
    }
    program = """
import os, sys
print(open("data/set/rows").read(), os.environ["COLOUR"], os.environ["HOME"] != "/root", flush=True)
sys.exit(0)
"""
    assign(cluster, "4.1", program, config=config)
    agent.start("--plain-starts")
    wait_until(lambda: cluster.exit_record("4.1"))
    reason = "this agent runs trials as processes"
    assert cluster.log["4.1"].decode().splitlines() == [
        f"[detcloud] image org/image:1 is not used: {reason}",
        f"[detcloud] bind mount data/set: read_only cannot be enforced: {reason}",
        f"[detcloud] bind mount /mnt/data is not made: {reason}; use the host's path {data}, or a "
        "relative container_path",
        "[detcloud] environment variable HOME: the runtime's value is used instead",
        "1 2 3 blue True",
    ]
    # Deleting the trial's directory does not follow the link.
    cluster.change("4.1", state="forget")
    wait_until(lambda: not (agent.work / "allocations/4.1").exists())
    wait_until(lambda: not os.listdir(agent.work / "trash"))  # noqa: PTH208
    assert (data / "rows").exists()


@pytest.mark.parametrize(
    ("host", "container", "message"),
    [
        ("/no/such/folder", "data", "host_path /no/such/folder does not exist"),
        ("/tmp", "model_def.py", "'model_def.py' is taken"),
        ("/tmp", "../data", "'../data' is not inside the working directory"),
    ],
)
def test_impossible_mount_fails_the_start_with_a_reason(
    agent: AgentProcess, cluster: FakeCluster, host: str, container: str, message: str
) -> None:
    mount = {"host_path": host, "container_path": container}
    assign(cluster, "4.1", config={"bind_mounts": [mount]})
    agent.start()
    wait_until(lambda: cluster.exit_record("4.1"))
    record = cluster.exit_record("4.1")
    assert record is not None
    # The trial failed by its own fault, not by a shortage of the machine.
    assert record["reason"] == "errored"
    assert record["message"].startswith("the trial could not be started: bind mount: ")
    assert message in record["message"]


def test_startup_hook_sees_the_configured_variables(
    agent: AgentProcess, cluster: FakeCluster
) -> None:
    files = {"model_def.py": "raise SystemExit(0)", "startup-hook.sh": "echo $COLOUR\n"}
    config = {"environment": {"environment_variables": {"cpu": ["COLOUR=blue"], "cuda": []}}}
    cluster.assign_files("4.1", files, version=1, entrypoint="model_def:Trial", config=config)
    agent.start()
    wait_until(lambda: cluster.exit_record("4.1"))
    assert cluster.log["4.1"] == b"blue\n"
