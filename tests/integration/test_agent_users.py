"""Trials as users of the machine: in containers, and under an agent of root or of a user."""

from __future__ import annotations

import contextlib
import os
import shutil
import signal
import stat
import subprocess
from collections.abc import Iterator
from pathlib import Path
from tempfile import mkdtemp
from typing import Any

import pytest

from detcloud.agent.docker.container import ContainerRules
from detcloud.shared.files import delete_tree
from tests.conformance.container_runtime import run
from tests.emulators.docker_engine import IMAGE, root_folder
from tests.emulators.podman_engine import CONFIGURATION
from tests.emulators.server import missing
from tests.integration.agent_cluster import FakeCluster
from tests.integration.agent_process import LEAVE, PRELUDE, AgentProcess
from tests.integration.docker_node import container_spec, docker_runtime
from tests.integration.trial_node import TrialNode, exit_record, log_text, report_lines
from tests.patience import wait_until

pytestmark = [pytest.mark.end_to_end, pytest.mark.nightly]

PYTHON = Path("/usr/bin/python3")
UID, GID = 70_001, 70_002
AGENT_USER = {"uid": UID, "gid": GID, "user": "", "group": ""}
STORE = """
import pathlib
store = pathlib.Path(SPEC["storage"]["path"], "1", "1")
store.mkdir(parents=True, exist_ok=True)
(store / "weights").write_text("w")
"""
SEEN = 'report("seen", ids=[os.getuid(), os.getgid(), os.getgroups()], home=os.environ["HOME"])\n'


def is_usable(python: Path) -> bool:
    """Return whether other users can run this Python, and whether it is new enough."""
    code = "import sys; sys.exit(sys.version_info < (3, 11))"
    return python.exists() and subprocess.run([python, "-c", code], check=False).returncode == 0


@pytest.fixture
def work() -> Iterator[Path]:
    """Return a folder that all users can enter, unlike pytest's folders."""
    if os.getuid() != 0:
        missing("users", "only root can start processes of other users")
    folder = Path(mkdtemp(dir="/tmp", prefix="du"))
    folder.chmod(0o711)
    yield folder
    delete_tree(folder)


@pytest.fixture
def agent(work: Path, cluster: FakeCluster) -> Iterator[AgentProcess]:
    """Return an agent whose Python all users can run."""
    if not is_usable(PYTHON):
        missing("users", f"{PYTHON} is no Python 3.11")
    started = AgentProcess(work / "work", cluster.url)
    started.python = str(PYTHON)
    yield started
    started.end()


@pytest.mark.parametrize("kind", ["engine", "podman"])
def test_container_runs_as_the_agent_user(
    kind: str, request: pytest.FixtureRequest, tmp_path: Path
) -> None:
    engine, is_podman = request.getfixturevalue(kind), kind == "podman"
    rules: dict[str, Any] = {"is_podman": is_podman, "runtime": kind if is_podman else "docker"}
    assert ContainerRules(tmp_path, "node", 1, 1).runtime == "docker"
    runtime = docker_runtime(engine, tmp_path, **rules)
    node = TrialNode(tmp_path, runtime=runtime, spec=container_spec())
    program = 'SPEC = json.load(open(f"{home}/in/spec.json"))\n' + SEEN + STORE + LEAVE
    trial = run(node, program, agent_user=AGENT_USER)
    assert exit_record(trial)["reason"] == "completed", log_text(trial)
    assert report_lines(trial)[0]["ids"] == [UID, GID, [GID]]
    weights = (tmp_path / "store/4.1/1/1/weights").stat()
    assert (weights.st_uid, weights.st_gid) == (UID, GID)
    assert trial.directory.out.stat().st_uid == UID


def test_agent_of_root_runs_a_trial_as_a_user(
    agent: AgentProcess, cluster: FakeCluster, work: Path
) -> None:
    store = work / "store"
    program = 'SPEC = json.load(open(f"{home}/in/spec.json"))\n' + SEEN + STORE + LEAVE
    storage: dict[str, Any] = {"type": "directory", "path": str(store)}
    about: dict[str, Any] = {
        "agent_user": AGENT_USER,
        "storage": storage,
        "experiment_id": 1,
        "trial_id": 1,
    }
    cluster.assign("4.1", PRELUDE + program, **about)
    agent.start()
    wait_until(lambda: cluster.exit_record("4.1"))
    record = cluster.exit_record("4.1") or {}
    assert record["reason"] == "completed", record
    seen = cluster.lines("4.1")[0]
    assert seen["ids"] == [UID, GID, [GID]]
    assert seen["home"] == f"{agent.work}/allocations/4.1/home"
    assert (store / "1/1/weights").stat().st_uid == UID
    assert stat.S_IMODE(agent.work.stat().st_mode) == 0o711


def test_folder_without_access_fails_the_start_with_its_name(
    agent: AgentProcess, cluster: FakeCluster, work: Path
) -> None:
    (work / "closed").mkdir(mode=0o700)
    storage: dict[str, Any] = {"type": "directory", "path": str(work / "closed/store")}
    about: dict[str, Any] = {
        "agent_user": AGENT_USER,
        "storage": storage,
        "experiment_id": 1,
        "trial_id": 1,
    }
    cluster.assign("4.1", PRELUDE + LEAVE, **about)
    agent.start()
    wait_until(lambda: cluster.exit_record("4.1"))
    record = cluster.exit_record("4.1") or {}
    assert record["reason"] == "start_failed"
    assert f"cannot write to {work}/closed/store" in record["message"]


def without_root(work: Path, *words: str) -> list[str]:
    """Return a command that runs `words` as the user UID, who has an entry on the machine.

    The entries of the user are in copies of the machine's files, which only the command sees.
    """
    files = work / "etc"
    files.mkdir()
    lines = {
        "passwd": f"lab:x:{UID}:{UID}::{work}/home:/bin/sh",
        "group": f"lab:x:{UID}:",
        "subuid": "lab:200000:65536",
        "subgid": "lab:200000:65536",
    }
    mounts = []
    for name, line in lines.items():
        own = Path("/etc", name)
        own.touch()
        (files / name).write_text(f"{own.read_text()}{line}\n")
        mounts.append(f"mount --bind {files / name} {own}")
    drop = f"setpriv --reuid {UID} --regid {UID} --clear-groups"
    script = " && ".join([*mounts, f'exec {drop} sh -c "$@"'])
    return ["unshare", "-m", "--propagation", "private", "sh", "-c", script, "sh", *words]


def end_processes(folder: Path) -> None:
    """Kill the processes that have the folder in their variables: Podman's service and its pause.

    Podman without root leaves a process that keeps its user namespace.
    """
    for process in Path("/proc").glob("[0-9]*"):
        with contextlib.suppress(OSError):
            if os.fsencode(folder) + b"/" in (process / "environ").read_bytes():
                os.kill(int(process.name), signal.SIGKILL)


@pytest.fixture
def user_work(work: Path) -> Iterator[Path]:
    """Return a folder with a home and a runtime folder of the user UID."""
    for name in ("home", "run", "data"):
        (work / name).mkdir(mode=0o700)
        os.chown(work / name, UID, UID)
    yield work
    end_processes(work)


def test_agent_without_root_refuses_another_user(
    agent: AgentProcess, cluster: FakeCluster, user_work: Path
) -> None:
    agent.work = user_work / "data/work"
    agent.token_file.chmod(0o644)
    about: dict[str, Any] = {"agent_user": AGENT_USER, "experiment_id": 1, "trial_id": 1}
    cluster.assign("4.1", PRELUDE + LEAVE, **about)
    agent.start(inside=without_root(user_work, 'exec "$0" "$@"'))
    wait_until(lambda: cluster.exit_record("4.1"))
    record = cluster.exit_record("4.1") or {}
    assert record["reason"] == "start_failed"
    assert "run the agent as root" in record["message"]


def test_podman_without_root_runs_trials_of_the_agents_user(
    agent: AgentProcess, cluster: FakeCluster, user_work: Path
) -> None:
    for program in ("podman", "runc", "newuidmap"):
        if shutil.which(program, path=f"{os.environ['PATH']}:/usr/sbin") is None:
            missing("podman", f"{program} is not installed")
    configuration, image = user_work / "containers.conf", user_work / "image.tar"
    configuration.write_text(CONFIGURATION)
    image.write_bytes(root_folder())
    for file in (configuration, image, agent.token_file):
        file.chmod(0o644)
    agent.work = user_work / "data/work"
    own = {"uid": UID, "gid": UID, "user": "", "group": ""}
    mounts = {"bind_mounts": [{"host_path": "/usr", "container_path": "/usr", "read_only": True}]}
    about: dict[str, Any] = {"agent_user": own, "config": mounts, "image": {"cpu": IMAGE}}
    storage: dict[str, Any] = {"type": "directory", "path": str(user_work / "data/store")}
    cluster.assign(
        "4.1",
        PRELUDE + SEEN + 'print(open("/proc/self/uid_map").read())\n' + LEAVE,
        **about,
        storage=storage,
        experiment_id=1,
        trial_id=1,
    )
    socket = user_work / "run/p.sock"
    podman = "podman --runtime runc"
    script = (
        f"export HOME={user_work}/home XDG_RUNTIME_DIR={user_work}/run USER=lab "
        f"CONTAINERS_CONF={configuration} PATH=/usr/bin:/bin:/usr/sbin; cd /; "
        f"{podman} import --change 'ENV PATH=/usr/bin:/bin' {image} {IMAGE} && "
        f"{{ {podman} system service -t 20 unix://{socket} & }} && "
        f"while ! [ -S {socket} ]; do sleep 0.1; done; "
        f'exec env CONTAINER_HOST=unix://{socket} "$0" "$@"'
    )
    agent.start("--container-runtime", "podman", inside=without_root(user_work, script))
    wait_until(lambda: cluster.exit_record("4.1"))
    record = cluster.exit_record("4.1") or {}
    assert record["reason"] == "completed", (record, agent.errors.read_text())
    assert cluster.lines("4.1")[0]["ids"][:2] == [UID, UID]
    assert "without root" in agent.errors.read_text()
    # The container is in a user namespace, so that its user's other numbers are none of root's.
    assert "4294967295" not in cluster.log["4.1"].decode().split()
