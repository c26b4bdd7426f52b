import json
import os
import signal
import socket
import subprocess
import sys
import time
from pathlib import Path

import pytest

from detcloud.shared.processes import is_alive, list_descendants, read_process
from tests.patience import PROCESS_SECONDS_MAX, wait_until
from tests.unit.core.trial_files import direct, make_trial, reports

ROOT = Path(__file__).resolve().parents[3]
LAUNCHER = [sys.executable, "-m", "detcloud.launch.torch_distributed"]
LENGTH = 100_000

# Count steps together with the other ranks until the preemption. Rank 1 fails in its first run.
COUNT = """
import os, sys, time
from pathlib import Path
from detcloud import core

with core.init() as context:
    ranks = context.distributed
    places = ranks.allgather((ranks.rank, ranks.cross_rank, ranks.local_size))
    assert places == [(0, 0, 1), (1, 1, 1)], places
    if ranks.rank == 1 and not Path("failed").exists():
        Path("failed").touch()
        sys.exit(3)
    # Each node's first process measures its machine.
    report = Path(os.environ["DETCLOUD_TRIAL_DIR"], "out", f"report-{ranks.rank}.jsonl")
    context.profiler.on(0.1, 1)
    while '"memory"' not in report.read_text():
        time.sleep(0.05)
    context.profiler.off()
    steps = 0
    while not context.preempt.should_preempt():
        ranks.allgather(steps)
        steps += 1
        if steps == 10:
            print("counting", flush=True)
    context.train.report_validation_metrics(steps, {"same": len(set(ranks.allgather(steps)))})
"""
MEET = """
import os
from pathlib import Path
import torch.distributed

torch.distributed.init_process_group("gloo")
torch.distributed.barrier()
Path(f"port-{os.environ['RANK']}").write_text(os.environ["MASTER_PORT"])
torch.distributed.destroy_process_group()
"""
# Rank 0 raises InvalidHP, rank 1 a ConnectionError, and rank 2 sleeps and ignores SIGTERM.
REFUSE = """
import os, signal, time
from pathlib import Path
from detcloud import InvalidHP, core

rank = int(os.environ["RANK"])
if rank == 2:
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    Path("waits").touch()
    time.sleep(1000)
ranks = core.DistributedContext(rank=rank, size=3, local_rank=rank, local_size=3)
with core.init(distributed=ranks):
    while not Path("waits").exists():
        time.sleep(0.05)
    if rank == 0:
        raise InvalidHP("too wide")
    raise ConnectionError("reset by peer")
"""
# Rank 1 aborts, or kills its wrapper and so itself. Rank 0 ignores SIGTERM, and rank 2 stops itself
# and its wrapper by SIGSTOP.
DIE = """
import os, signal, time
from pathlib import Path
rank = os.environ["RANK"]
if rank == "1":
    while len(list(Path().glob("pid-*"))) < 2:
        time.sleep(0.05)
    Path("dies").touch()
    if Path("wrapper").exists():
        os.kill(os.getppid(), signal.SIGKILL)
        time.sleep(1000)
    os.abort()
signal.signal(signal.SIGTERM, signal.SIG_IGN)
Path(f"new-{rank}").write_text(f"{os.getpid()} {os.getppid()}")
Path(f"new-{rank}").rename(f"pid-{rank}")
while True:
    if rank == "2":
        os.killpg(0, signal.SIGSTOP)
    time.sleep(1)
"""
# Each rank starts a child, writes the process ids to a file and waits.
STAY = """
import os, subprocess, sys, time
from pathlib import Path
child = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(1000)"])
rank = os.environ["RANK"]
Path(f"new-{rank}").write_text(f"{os.getpid()} {os.getppid()} {child.pid}")
Path(f"new-{rank}").rename(f"pid-{rank}")
child.wait()
"""


def start(trial: Path, code: Path, **variables: str) -> subprocess.Popen[str]:
    with (code / "log").open("w") as log:
        return subprocess.Popen(
            [sys.executable, "-m", "detcloud.launch.trial"],
            cwd=code,
            env={
                **os.environ,
                "DETCLOUD_TRIAL_DIR": str(trial),
                "PYTHONPATH": str(ROOT / "harness"),
                **variables,
            },
            stdout=log,
            stderr=subprocess.STDOUT,
            text=True,
        )


@pytest.mark.nightly
def test_workers_of_two_nodes_restart_and_stop_together(tmp_path: Path) -> None:
    nodes = []
    for rank in range(2):
        trial = make_trial(
            tmp_path / str(rank),
            entrypoint=[*LAUNCHER, "--max-restarts", "1", "--", "count.py"],
            rank=rank,
            size=2,
            node_rank=rank,
            nodes=2,
        )
        direct(trial, revision=1, length=LENGTH)
        (trial.parent / "count.py").write_text(COUNT)
        gang = {
            "DETCLOUD_NODES": "2",
            "DETCLOUD_NODE_RANK": str(rank),
            # Torch orders nodes that may start again by address: the chief is on the second.
            "DETCLOUD_HOSTS": "127.0.0.3,127.0.0.2",
            "DETCLOUD_RENDEZVOUS_PORT": "28600",
            "DETCLOUD_SLOTS": "1",
        }
        nodes.append((trial, start(trial, trial.parent, **gang)))
    (other, other_process), (chief, chief_process) = nodes
    log = other.parent / "log"
    wait_until(lambda: "[rank=1] counting" in log.read_text() or other_process.poll() is not None)
    notice = {"deadline_ms": 1, "reason": "the machine ends"}
    direct(other, revision=1, length=LENGTH, preempt=notice)
    codes = [process.wait(PROCESS_SECONDS_MAX) for process in (other_process, chief_process)]
    assert codes == [0, 0], (chief.parent / "log").read_text() + log.read_text()
    *measured, validation = reports(chief, "metrics")
    assert "memory" in {line["group"] for line in measured}
    assert validation["metrics"] == {"same": 1}
    # The exit of the first node decides for the trial, although the chief is on the second.
    assert reports(chief, "exit")[-1]["reason"] == "preempted"
    assert [line["reason"] for line in reports(other, "exit")] == ["preempted"]
    # Rank 1 reports its failed run, and the end of its second run.
    texts = (other / "out" / "report-1.jsonl").read_text().splitlines()
    lines = [json.loads(text) for text in texts]
    assert [line["reason"] for line in lines if line["kind"] == "exit"] == ["errored", "preempted"]
    # Metrics of rank 1 have another kind than metrics of the chief.
    *measured, apart = (line for line in lines if line["kind"] != "exit")
    assert (apart["kind"], apart["metrics"]) == ("rank_metrics", {"same": 1})
    assert {line["kind"] for line in measured} == {"rank_metrics"}
    assert "memory" in {line["group"] for line in measured}


@pytest.mark.parametrize(
    ("dead", "message"),
    [
        ("worker", "rank 1 was ended by SIGABRT"),
        ("wrapper", "rank 1: the process that wraps it was killed"),
    ],
)
def test_a_dead_worker_ends_a_hanging_gang(tmp_path: Path, dead: str, message: str) -> None:
    trial = make_trial(tmp_path, entrypoint=[*LAUNCHER, "die.py"])
    (tmp_path / "die.py").write_text(DIE)
    (tmp_path / dead).touch()
    process = start(trial, tmp_path, DETCLOUD_SLOTS="3", DETCLOUD_RENDEZVOUS_PORT="28616")
    dies = wait_until((tmp_path / "dies").exists, what="the death of a worker") and time.time()
    assert process.wait(PROCESS_SECONDS_MAX) == 1
    # 5 s, and some for the end of the launcher; torch's own launcher would wait for 30 s.
    assert time.time() - dies < 28
    lines = (trial / "out" / "report-0.jsonl").read_text().splitlines()
    (end,) = map(json.loads, lines)
    assert (end["reason"], end["message"]) == ("errored", message)
    assert [pid for pid in pids(tmp_path, 0, 2) if read_process(pid)] == []


@pytest.mark.nightly
def test_single_node_gang_replaces_a_taken_port(tmp_path: Path) -> None:
    trial = make_trial(tmp_path, entrypoint=[*LAUNCHER, "meet.py"])
    (tmp_path / "meet.py").write_text(MEET)
    with socket.create_server(("127.0.0.1", 0)) as other:
        taken = other.getsockname()[1]
        process = start(trial, tmp_path, DETCLOUD_SLOTS="2", DETCLOUD_RENDEZVOUS_PORT=str(taken))
        assert process.wait(PROCESS_SECONDS_MAX) == 0
    ports = {int((tmp_path / f"port-{rank}").read_text()) for rank in range(2)}
    assert len(ports) == 1
    assert taken not in ports


def test_taken_port_of_a_multi_node_gang_is_an_error(tmp_path: Path) -> None:
    trial = make_trial(tmp_path, entrypoint=[*LAUNCHER, "stay.py"], size=4, nodes=2)
    (tmp_path / "stay.py").write_text(STAY)
    with socket.create_server(("127.0.0.1", 0)) as other:
        port = str(other.getsockname()[1])
        gang = {
            "DETCLOUD_NODES": "2",
            "DETCLOUD_NODE_RANK": "0",
            "DETCLOUD_HOSTS": "127.0.0.1,127.0.0.2",
            "DETCLOUD_RENDEZVOUS_PORT": port,
            "DETCLOUD_SLOTS": "2",
        }
        assert start(trial, tmp_path, **gang).wait(PROCESS_SECONDS_MAX) == 1
    [end] = reports(trial, "exit")
    assert end["message"].startswith("the workers could not meet: ")
    assert f"port: {port}," in end["message"]
    assert "the next run of the trial gets another one" in end["message"].lower()
    log = (tmp_path / "log").read_text()
    assert end["message"] in log
    assert "Traceback" not in log


def test_options_that_torch_refuses_are_an_error_without_a_traceback(tmp_path: Path) -> None:
    trial = make_trial(tmp_path, entrypoint=[*LAUNCHER, "--nnodes", "2:1", "--", "stay.py"])
    assert start(trial, tmp_path).wait(PROCESS_SECONDS_MAX) == 1
    [end] = reports(trial, "exit")
    assert end["message"].startswith("torch.distributed.run refused its options: min_nodes must be")
    assert "Traceback" not in (tmp_path / "log").read_text()


@pytest.mark.nightly
def test_invalid_hp_of_a_worker_ends_the_gang_as_invalid_hp(tmp_path: Path) -> None:
    trial = make_trial(tmp_path, entrypoint=[*LAUNCHER, "refuse.py"])
    (tmp_path / "refuse.py").write_text(REFUSE)
    process = start(trial, tmp_path, DETCLOUD_SLOTS="3", DETCLOUD_RENDEZVOUS_PORT="28632")
    # Rank 2 would wait for longer than the test.
    assert process.wait(PROCESS_SECONDS_MAX) == 1
    early, *_, last = reports(trial)
    assert (early["kind"], early["reason"]) == ("early_exit", "INVALID_HP")
    # The launcher's line comes last, whichever of the workers ended first.
    assert (last["kind"], last["reason"]) == ("exit", "invalid_hp")
    assert last["message"] == "InvalidHP: too wide"


def test_workers_do_not_outlive_their_launchers(tmp_path: Path) -> None:
    trial = make_trial(tmp_path, entrypoint=f"true && {' '.join(LAUNCHER)} stay.py")
    (tmp_path / "stay.py").write_text(STAY)
    process = start(trial, tmp_path, DETCLOUD_SLOTS="2", DETCLOUD_RENDEZVOUS_PORT="28624")
    wait_until(lambda: len(list(tmp_path.glob("pid-*"))) == 2)
    started = list_descendants(process.pid)
    # The processes: a shell, the launcher and, for each rank, a wrapper, a worker and a child.
    assert len(started) == 2 + 2 * 3
    assert {*pids(tmp_path, 0), *pids(tmp_path, 1)} <= {info.pid for info in started}
    # Each process is ended only by its parent.
    process.kill()
    process.wait(PROCESS_SECONDS_MAX)
    children = [info for info in started if "sleep(1000)" in info.command]
    workers = [info for info in started if info not in children]
    try:
        wait_until(lambda: not any(map(is_alive, workers)))
    finally:
        # On a cluster the supervisor ends the children of workers.
        for child in filter(is_alive, children):
            os.kill(child.pid, signal.SIGKILL)


def pids(folder: Path, *ranks: int) -> list[int]:
    """Return the process ids in the files of the ranks."""
    return [int(pid) for rank in ranks for pid in (folder / f"pid-{rank}").read_text().split()]
