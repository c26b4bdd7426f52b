"""Trials in containers of a real engine: the container's view of the machine, and failures of the
engine.

Tests for all runtimes are in tests/conformance.
"""

from __future__ import annotations

import json
import os
import signal
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from detcloud.agent.docker.container import LABEL
from detcloud.agent.docker.engine import EngineClient
from detcloud.agent.docker.launch import container_name
from tests.conformance.container_runtime import begin, run, states, trial_files
from tests.conftest import require
from tests.emulators.docker_engine import IMAGE, DockerEngine, machine_mounts, root_folder
from tests.integration.agent_process import LEAVE, OBEY, PRELUDE
from tests.integration.docker_node import USER, container_spec, docker_runtime
from tests.integration.trial_node import TrialNode, exit_record, log_text, report_lines
from tests.patience import wait_until

pytestmark = pytest.mark.end_to_end

READY = 'report("ready")\ntime.sleep(600)\n'
# By hand, since the optimizers of torch take longer to import than all the rest.
LINE = """
import torch
from detcloud import core

x = torch.linspace(0, 1, 32)
slope = torch.zeros(1, requires_grad=True)
with core.init() as context:
    steps = 0
    for operation in context.searcher.operations():
        while steps < operation.length:
            loss = ((slope * x - 2 * x) ** 2).mean()
            slope.grad = None
            loss.backward()
            with torch.no_grad():
                slope -= slope.grad
            steps += 1
            context.train.report_training_metrics(steps, {"loss": loss.item()})
        with context.checkpoint.store_path({"steps_completed": steps}) as (folder, uuid):
            torch.save(slope, folder / "slope.pt")
        context.train.report_validation_metrics(steps, {"loss": loss.item()})
        operation.complete(loss.item())
"""


@pytest.fixture
def node(tmp_path: Path, engine: DockerEngine) -> TrialNode:
    return TrialNode(tmp_path, runtime=docker_runtime(engine, tmp_path), spec=container_spec())


def environments(trial: Any) -> list[dict[str, Any]]:
    reports = [line.fields for line in trial.lines("agent", 0, 1 << 20)]
    return [line for line in reports if line["kind"] == "environment"]


def test_container_is_unprivileged_and_sees_little(node: TrialNode, engine: DockerEngine) -> None:
    program = """
import resource
def may_write(path):
    try:
        open(path, "w").close()
    except OSError:
        return False
    return True
status = dict(line.split(":", 1) for line in open("/proc/self/status").read().splitlines())
report("seen", uid=os.getuid(), capabilities=int(status["CapEff"], 16),
       raises=status["NoNewPrivs"].strip(), inputs=may_write(f"{home}/in/spec.json"),
       new=may_write(f"{home}/in/new"), agent=sorted(os.listdir(f"{home}/agent")),
       package=may_write("/run/detcloud/detcloud/new"), code=may_write("new"),
       shm=os.statvfs("/dev/shm").f_blocks * os.statvfs("/dev/shm").f_frsize,
       stack=resource.getrlimit(resource.RLIMIT_STACK)[0],
       network=sorted(os.listdir("/sys/class/net")))
"""
    trial = begin(
        node, program + READY, config=container_spec(resources={"shm_size": 5 << 20})["config"]
    )
    node.watch(trial, lambda: report_lines(trial))
    seen = report_lines(trial)[0]
    container = engine.api.inspect_container(container_name(trial.directory.agent)) or {}
    trial.kill(0)
    node.watch(trial)
    assert (seen["uid"], seen["capabilities"], seen["raises"]) == (USER, 0, "1")
    assert (seen["inputs"], seen["new"], seen["package"], seen["code"]) == (0, 0, 0, 1)
    assert seen["agent"] == ["container", "trial.log"]
    assert seen["shm"] == 5 << 20
    assert seen["stack"] == 64 << 20
    assert seen["network"] == sorted(os.listdir("/sys/class/net"))  # noqa: PTH208
    labels = container["Config"]["Labels"]
    assert labels[f"{LABEL}allocation"] == "4.1"
    assert labels[f"{LABEL}agent"] == "node"
    # Files that the container wrote belong to the same unprivileged user.
    assert trial.directory.out.stat().st_uid == USER


def test_runs_of_an_experiment_share_the_downloads_of_the_hook(node: TrialNode) -> None:
    hook = """
echo "has $(cat "$PIP_CACHE_DIR/wheel" 2> /dev/null || echo nothing)"
mkdir -p "$PIP_CACHE_DIR" "$UV_CACHE_DIR"
echo a wheel > "$PIP_CACHE_DIR/wheel"
"""
    files = trial_files(PRELUDE + LEAVE, hook)
    found = []
    for name, experiment in (("4.1", 3), ("4.2", 3), ("5.1", 4)):
        trial = node.begin(name, files, experiment_id=experiment)
        node.watch(trial)
        assert exit_record(trial)["reason"] == "completed", log_text(trial)
        found += [line for line in log_text(trial).splitlines() if line.startswith("has ")]
    assert found == ["has nothing", "has a wheel", "has nothing"]


def test_image_and_digest_are_recorded(node: TrialNode, engine: DockerEngine) -> None:
    trial = run(node, LEAVE)
    known = engine.api.find_image(IMAGE) or {}
    (record,) = environments(trial)
    assert (record["image"], record["image_digest"]) == (IMAGE, known["Id"])
    assert log_text(trial) == f"[detcloud] image {IMAGE}, {known['Id']}\n"


def test_mounts_appear_at_their_container_paths(node: TrialNode, tmp_path: Path) -> None:
    data = tmp_path / "data"
    data.mkdir()
    data.chmod(0o777)
    (data / "rows").write_text("1 2 3")
    mounts = [
        {"host_path": str(data), "container_path": "data/set", "read_only": True},
        {"host_path": str(data), "container_path": "/mnt/data"},
    ]
    program = """
print(open("data/set/rows").read())
open("/mnt/data/found", "w").close()
try:
    open("data/set/more", "w")
except OSError as error:
    print(error.strerror)
"""
    program += 'open(os.environ["DETCLOUD_DATA_LAYER_PATH"] + "/cached", "w").close()\n'
    layer = {"host_storage_path": str(tmp_path / "sets"), "container_storage_path": "/sets"}
    spec = container_spec(bind_mounts=mounts, data_layer=layer)
    trial = run(node, "import os\n" + program + LEAVE, config=spec["config"])
    assert log_text(trial).splitlines()[-2:] == ["1 2 3", "Read-only file system"]
    assert sorted(one.name for one in data.iterdir()) == ["found", "rows"]
    assert [one.name for one in (tmp_path / "sets").iterdir()] == ["cached"]


@pytest.mark.parametrize(
    ("mount", "message"),
    [
        ({"host_path": "/tmp/no", "container_path": "d"}, "host_path /tmp/no does not exist"),
        ({"host_path": "/tmp", "container_path": "../d"}, "not inside the working directory"),
        ({"host_path": "/tmp", "container_path": "/usr"}, "container_path /usr is taken"),
        ({"host_path": "/var", "container_path": "d"}, "host_path /var is not allowed on this"),
    ],
)
def test_impossible_mount_is_a_failure_of_the_trial(
    tmp_path: Path, engine: DockerEngine, mount: dict[str, Any], message: str
) -> None:
    machine = (Path(one["host_path"]) for one in machine_mounts())
    runtime = docker_runtime(engine, tmp_path, mounts_allowed=(Path("/tmp"), *machine))
    node = TrialNode(tmp_path, runtime=runtime, spec=container_spec(bind_mounts=[mount]))
    ended = exit_record(run(node, LEAVE))
    assert ended["reason"] == "errored"
    assert message in ended["message"]


def test_a_real_training_in_a_container(node: TrialNode, tmp_path: Path) -> None:
    torch = require("torch")
    spec = {"entrypoint": ["python3", "train.py"], "metric": "loss", "smaller_is_better": True}
    trial = node.run("5.1", {"train.py": LINE}, **spec)
    assert exit_record(trial)["reason"] == "completed", log_text(trial)
    losses = [line["metrics"]["loss"] for line in report_lines(trial) if line["kind"] == "metrics"]
    # Four batches and the validation.
    assert len(losses) == 5
    assert losses[3] < losses[0] / 10
    lines = {line["kind"]: line for line in report_lines(trial)}
    assert lines["completed"]["length"] == 4
    assert lines["environment"]["torch"] == torch.__version__
    # The trial wrote the checkpoint into a folder that the agent had created.
    folder = tmp_path / "store/5.1" / lines["checkpoint"]["path"]
    assert folder.stat().st_uid == USER
    assert "[detcloud] metrics could not be written" not in log_text(trial)
    assert 0 < torch.load(folder / "slope.pt").item() < 2


def test_trial_out_of_memory_gets_a_message(tmp_path: Path, engine: DockerEngine) -> None:
    runtime = docker_runtime(engine, tmp_path, memory_bytes=64 << 20)
    node = TrialNode(tmp_path, runtime=runtime, spec=container_spec())
    trial = run(node, 'print("filling", flush=True)\nfilled = b"x" * (512 << 20)\n')
    ended = exit_record(trial)
    assert (ended["reason"], ended["signal"]) == ("errored", signal.SIGKILL)
    assert "out of memory" in ended["message"]
    assert "limit of 64 MiB" in ended["message"]
    assert "filling" in ended["message"]


def test_image_without_python_fails_with_a_reason(node: TrialNode, engine: DockerEngine) -> None:
    engine.docker("import", "-", "localhost/empty:1", content=root_folder())
    trial = run(node, LEAVE, image={"cpu": "localhost/empty:1"}, config={})
    ended = exit_record(trial)
    assert ended["reason"] == "errored"
    assert 'exec: "python3": executable file not found' in ended["message"]
    assert ended["message"] in log_text(trial)
    assert states(trial) == ["PULLING", "STARTING"]


def test_output_of_a_failing_python_in_an_image_is_quoted(
    node: TrialNode, engine: DockerEngine
) -> None:
    program = b"#!/bin/sh\necho 'python3: too old' >&2\nexit 2\n"
    change = ("--change", "ENV PATH=/opt:/bin")
    archive = root_folder({"opt/python3": program})
    engine.docker("import", *change, "-", "localhost/old:1", content=archive)
    trial = run(node, LEAVE, image={"cpu": "localhost/old:1"})
    ended = exit_record(trial)
    assert (ended["reason"], ended["code"]) == ("errored", 2)
    assert "before the trial began, and said: python3: too old" in ended["message"]


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGKILL])
def test_container_stopped_from_outside_is_lost(
    node: TrialNode, engine: DockerEngine, number: signal.Signals
) -> None:
    program = """
def leave(*_):
    time.sleep(0.3)
    report("saved")
    sys.exit(1)
signal.signal(signal.SIGTERM, leave)
"""
    trial = begin(node, program + READY)
    node.watch(trial, lambda: report_lines(trial))
    engine.api.signal_container(container_name(trial.directory.agent), number)
    node.watch(trial)
    assert exit_record(trial)["reason"] == "lost"
    # SIGTERM, also sent by a stopping engine, leaves time to save.
    saved = ["saved"] if number == signal.SIGTERM else []
    assert [line["kind"] for line in report_lines(trial)] == ["ready", *saved]


def test_container_removed_by_hand_is_lost(node: TrialNode, engine: DockerEngine) -> None:
    trial = begin(node, READY)
    node.watch(trial, lambda: report_lines(trial))
    engine.api.remove_container(container_name(trial.directory.agent))
    node.watch(trial)
    assert exit_record(trial)["reason"] == "lost"


def test_ended_and_unwanted_containers_are_removed(tmp_path: Path, engine: DockerEngine) -> None:
    def make(name: str, work: Path) -> None:
        labels = {f"{LABEL}work": str(work), f"{LABEL}directory": str(work / "gone")}
        engine.api.create_container(
            name, {"Image": IMAGE, "Cmd": ["sleep", "600"], "Labels": labels}
        )

    make("left", tmp_path)
    make("another", tmp_path / "another")
    node = TrialNode(tmp_path, runtime=docker_runtime(engine, tmp_path), spec=container_spec())
    wait_until(lambda: engine.api.inspect_container("left") is None)
    trial = run(node, LEAVE)
    wait_until(lambda: engine.api.inspect_container(container_name(trial.directory.agent)) is None)
    assert engine.api.inspect_container("another") is not None
    engine.api.remove_container("another")


def test_container_of_an_older_launch_is_replaced(
    node: TrialNode, tmp_path: Path, engine: DockerEngine
) -> None:
    name = container_name(tmp_path / "allocations/4.1/agent")
    engine.api.create_container(name, {"Image": IMAGE, "Cmd": ["sleep", "600"], "Labels": {}})
    assert exit_record(run(node, LEAVE))["reason"] == "completed"


def test_crash_right_after_the_record_starts_the_container_once(
    node: TrialNode, tmp_path: Path, engine: DockerEngine
) -> None:
    # A crash before the request to the engine leaves the record without a container.
    trial = begin(node, 'report("ready")\n' + OBEY)
    node.watch(trial, lambda: report_lines(trial))
    records = trial.directory.agent / "container"
    node.abandon()
    engine.api.remove_container(container_name(trial.directory.agent))
    for name in ("begun", "process.json"):
        (records / name).unlink()
    again = TrialNode(tmp_path, runtime=docker_runtime(engine, tmp_path), spec=container_spec())
    (adopted,) = again.node.allocations()
    again.watch(adopted, lambda: len(report_lines(adopted)) == 2)
    assert len(engine.api.list_containers(f"{LABEL}work={tmp_path}")) == 1


@pytest.fixture
def engine_socket(tmp_path: Path, engine: DockerEngine) -> Iterator[Path]:
    """Yield a link to the engine's socket, which a test may remove."""
    place = tmp_path / "d.sock"
    place.symlink_to(engine.socket)
    yield place
    place.unlink(missing_ok=True)
    place.symlink_to(engine.socket)


def test_unreachable_engine_changes_no_trial(
    tmp_path: Path, engine: DockerEngine, engine_socket: Path
) -> None:
    messages: list[str] = []
    runtime = docker_runtime(EngineClient(str(engine_socket)), tmp_path, messages)
    node = TrialNode(tmp_path, runtime=runtime, spec=container_spec())
    trial = begin(node, 'report("ready")\n' + OBEY)
    node.watch(trial, lambda: report_lines(trial))
    engine_socket.unlink()
    node.watch(trial, lambda: messages)
    assert "could not be monitored, trying again: the container engine at" in messages[0]
    trial.apply_directives({"revision": 2, "length": 4, "closed": True, "preempt": {"reason": "x"}})
    wait_until(lambda: (trial.directory.agent / "container/exit.json").exists())
    node.watch(trial, lambda: True)
    assert trial.is_active
    engine_socket.symlink_to(engine.socket)
    node.watch(trial)
    assert exit_record(trial)["reason"] == "preempted"


def test_start_waits_for_an_unreachable_engine(
    tmp_path: Path, engine: DockerEngine, engine_socket: Path
) -> None:
    engine_socket.unlink()
    runtime = docker_runtime(EngineClient(str(engine_socket)), tmp_path)
    node = TrialNode(tmp_path, runtime=runtime, spec=container_spec())
    trial = begin(node, LEAVE)
    threading.Timer(0.5, lambda: engine_socket.symlink_to(engine.socket)).start()
    node.watch(trial)
    assert exit_record(trial)["reason"] == "completed"
    assert "trying again" in log_text(trial)


def test_forged_records_of_a_trial_do_not_end_the_trial(node: TrialNode) -> None:
    forged = json.dumps({"stage": "trial", "code": 0, "signal": None, "killed": False})
    program = f"""
records = home + "/agent/container"
os.unlink(records + "/launch.json")
with open(records + "/exit.json", "w") as file:
    file.write({forged!r})
os.symlink("/etc/shadow", records + "/.kill.json.new")
os.mkdir(records + "/kill.json")
open(records + "/kill.json/full", "w").close()
"""
    trial = begin(node, program + READY)
    node.watch(trial, lambda: report_lines(trial))
    time.sleep(0.2)
    node.watch(trial, lambda: True)
    assert trial.is_active
    trial.kill(3_600_000)
    # The supervisor cannot read a grace period from the forged record, and grants none.
    node.watch(trial)
    assert exit_record(trial)["reason"] in ("killed", "errored")
