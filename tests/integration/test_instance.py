"""The reach of user code on an instance: the boot script's own units, on real networks."""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.conformance.container_runtime import begin
from tests.emulators.docker_engine import IMAGE, DockerEngine, docker_engine, machine_mounts
from tests.emulators.instance import (
    AGENT_UID,
    FETCH,
    INSTANCE_ID,
    METADATA,
    TRIAL_UID,
    Instance,
    directives,
    instance,
)
from tests.integration.agent_cluster import FakeCluster
from tests.integration.agent_process import LEAVE, PRELUDE, AgentProcess
from tests.integration.docker_node import container_spec, docker_runtime
from tests.integration.trial_node import TrialNode, log_text
from tests.patience import wait_until

pytestmark = pytest.mark.end_to_end


@pytest.fixture(scope="module")
def machine(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Instance]:
    with instance(tmp_path_factory.mktemp("instance")) as made:
        # Without the firewall all addresses are reachable; otherwise the tests below would prove
        # nothing.
        reached = [made.fetch(url, TRIAL_UID) for url in METADATA]
        reached += [made.fetch(url, place="guest") for url in METADATA]
        assert reached == [INSTANCE_ID] * 4
        made.start("detcloud-firewall")
        yield made


@pytest.fixture(scope="module")
def bridged_engine(machine: Instance) -> Iterator[DockerEngine]:
    """Yield an engine with other firewall rules, started after the boot script's firewall."""
    with docker_engine(machine.command_inside(), flags=()) as started:
        yield started


@pytest.mark.parametrize("url", METADATA)
def test_only_the_agent_reaches_the_metadata_of_aws(machine: Instance, url: str) -> None:
    assert machine.fetch(url, AGENT_UID) == INSTANCE_ID
    assert machine.fetch(url, TRIAL_UID) == "nothing"
    assert machine.fetch(url, 0) == "nothing"


@pytest.mark.parametrize("url", METADATA)
def test_forwarded_packets_do_not_reach_the_metadata(machine: Instance, url: str) -> None:
    assert machine.fetch(url, place="guest") == "nothing"


def test_trial_does_not_reach_the_metadata(
    machine: Instance, bridged_engine: DockerEngine, tmp_path: Path
) -> None:
    user, group = map(int, option("--container-user").split(":"))
    runtime = docker_runtime(bridged_engine, tmp_path, user=user, group=group)
    node = TrialNode(tmp_path, runtime=runtime, spec=container_spec())
    program = f"print(os.getuid(), flush=True)\nfetch = {FETCH!r}\nfor url in {METADATA}:\n"
    program += '    subprocess.run([sys.executable, "-c", fetch, url])\n'
    trial = begin(node, program + LEAVE)
    node.watch(trial)
    assert log_text(trial).splitlines()[1:] == [str(TRIAL_UID), "nothing", "nothing"]


def test_container_on_a_bridge_does_not_reach_the_metadata(
    machine: Instance, bridged_engine: DockerEngine
) -> None:
    mounts = [
        f"--volume={machine_mount['host_path']}:{machine_mount['host_path']}:ro"
        for machine_mount in machine_mounts()
    ]
    fetch = [IMAGE, sys.executable, "-I", "-S", "-c", FETCH]
    cloud = "http://10.97.0.1/instance-id"
    found = [
        bridged_engine.docker("run", "--rm", *mounts, *fetch, url) for url in (cloud, METADATA[0])
    ]
    assert found == [f"{INSTANCE_ID}\n", "nothing\n"]


TAKES = """
import urllib.error, urllib.request
def below(path):
    return sorted(os.listdir(path)) if os.path.isdir(path) else None
def answer(address, token):
    asked = urllib.request.Request(address, headers={"Authorization": token})
    try:
        return json.load(urllib.request.urlopen(asked)).get("Token")
    except urllib.error.HTTPError as error:
        return error.code
os.mkdir("sticky")
os.chmod("sticky", 0o1700)
open("sticky/file", "w").close()
work = os.path.dirname(os.path.dirname(home))
uri = os.environ["AWS_CONTAINER_CREDENTIALS_FULL_URI"]
token = os.environ["AWS_CONTAINER_AUTHORIZATION_TOKEN"]
report("seen", uid=os.getuid(), work=below(work), allocations=below(f"{work}/allocations"),
       keys=[answer(uri, token), answer(uri, ""), answer(uri.replace("/4.1", "/5.1"), token)])
"""


def test_trial_gets_own_keys_and_no_files_of_the_agent_or_neighbours(
    agent: AgentProcess,
    cluster: FakeCluster,
    engine: DockerEngine,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("DOCKER_HOST", f"unix://{engine.socket}")
    docker = ["--container-runtime", "docker", "--container-user", option("--container-user")]
    agent.start(*docker, inside=as_its_unit_says(engine))
    spec = container_spec() | {"storage": {"type": "s3", "credentials": "given"}}
    cluster.assign("5.1", PRELUDE + 'report("ready")\ntime.sleep(600)\n', **spec)
    wait_until(lambda: cluster.lines("5.1"))
    cluster.assign("4.1", PRELUDE + TAKES + LEAVE, **spec)
    wait_until(lambda: cluster.exit_record("4.1"))
    cluster.change("5.1", state="kill", grace_ms=0)
    wait_until(lambda: cluster.exit_record("5.1"))
    assert (cluster.exit_record("4.1") or {})["reason"] == "completed", cluster.log
    seen = cluster.lines("4.1")[0]
    assert seen["uid"] == TRIAL_UID
    # The trial's own folder, and the packages and kernels of its owner and its experiment.
    assert (seen["work"], seen["allocations"]) == (["allocations", "environments"], ["4.1"])
    assert seen["keys"] == ["4.1", 403, 403]
    # Only root and the agent may bind a port below 1024.
    assert json.loads((agent.work / "credentials.json").read_text())["port"] < 1024
    # The files exist, and belong to a user other than the trial's.
    records = [agent.work / "credentials.json", agent.work / "allocations/5.1"]
    assert [(record.stat().st_uid, record.stat().st_mode & 0o077) for record in records] == [
        (AGENT_UID, 0)
    ] * 2
    # The agent gets the trial's files back and deletes them.
    for name in ("4.1", "5.1"):
        cluster.change(name, state="forget")
    wait_until(
        lambda: not list(agent.work.glob("allocations/*")) + list(agent.work.glob("trash/*"))
    )


def option(name: str) -> str:
    """Return the value of an option that the boot script passes to the agent."""
    (command,) = directives("detcloud-agent", "ExecStart")
    words = command.split()
    assert name in words, f"the unit gives no {name}"
    return words[words.index(name) + 1]


def as_its_unit_says(engine: DockerEngine) -> list[str]:
    """Return a command that runs the agent as in the boot script's unit, with access to Docker."""
    assert directives("detcloud-agent", "User") == ["detcloud"]
    (named,) = directives("detcloud-agent", "AmbientCapabilities")
    given = ",".join(f"+{name.removeprefix('CAP_').lower()}" for name in named.split())
    user = [f"--reuid={AGENT_UID}", f"--regid={AGENT_UID}"]
    group = f"--groups={engine.socket.stat().st_gid}"
    return ["setpriv", *user, group, f"--inh-caps={given}", f"--ambient-caps={given}"]
