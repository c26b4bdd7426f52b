import json
import os
import subprocess
import sys
from pathlib import Path

from tests.patience import PROCESS_SECONDS_MAX, wait_until
from tests.unit.core.trial_files import direct, make_trial, reports

ROOT = Path(__file__).resolve().parents[3]
LAUNCHER = [sys.executable, "-m", "detcloud.launch.torch_distributed"]
LENGTH = 100_000

# Counts steps together with the others, and stops where all stop.
COUNT = """
from detcloud import core

with core.init() as context:
    ranks = context.distributed
    places = ranks.allgather((ranks.rank, ranks.cross_rank, ranks.local_size))
    assert places == [(0, 0, 1), (1, 1, 1)], places
    steps = 0
    while not context.preempt.should_preempt():
        ranks.allgather(steps)
        steps += 1
        if steps == 10:
            print("counting", flush=True)
    context.train.report_validation_metrics(steps, {"same": len(set(ranks.allgather(steps)))})
"""
# Rank 1 dies, and rank 0 takes no notice of being asked to end.
DIE = """
import os, signal, sys, time
from pathlib import Path
if os.environ["RANK"] == "1":
    while not Path("pid").exists():
        time.sleep(0.05)
    sys.exit(3)
signal.signal(signal.SIGTERM, signal.SIG_IGN)
Path("pid.new").write_text(str(os.getpid()))
Path("pid.new").rename("pid")
while True:
    time.sleep(1)
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


def test_workers_of_two_nodes_stop_together_where_one_of_them_hears_of_it(tmp_path: Path) -> None:
    nodes = []
    for rank in range(2):
        trial = make_trial(
            tmp_path / str(rank),
            entrypoint=[*LAUNCHER, "count.py"],
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
            "DETCLOUD_HOSTS": "127.0.0.1,127.0.0.2",
            "DETCLOUD_RENDEZVOUS_PORT": "28600",
            "DETCLOUD_SLOTS": "1",
        }
        nodes.append((trial, start(trial, trial.parent, **gang)))
    (chief, first), (other, second) = nodes
    log = other.parent / "log"
    wait_until(lambda: "[rank=1] counting" in log.read_text() or second.poll() is not None)
    notice = {"deadline_ms": 1, "reason": "the machine ends"}
    direct(other, revision=1, length=LENGTH, preempt=notice)
    codes = [one.wait(PROCESS_SECONDS_MAX) for one in (first, second)]
    assert codes == [0, 0], (chief.parent / "log").read_text() + log.read_text()
    (validation,) = reports(chief, "metrics")
    assert validation["metrics"] == {"same": 1}
    assert [line["reason"] for line in reports(chief, "exit")] == ["preempted"]
    # The node's own process says that it ended well; its worker reports nothing.
    names = [path.name for path in (other / "out").glob("report-*")]
    assert names == ["report-1.jsonl"]
    assert "metrics" not in (other / "out" / "report-1.jsonl").read_text()


def test_one_dead_worker_ends_the_gang_though_another_one_hangs(tmp_path: Path) -> None:
    trial = make_trial(tmp_path, entrypoint=[*LAUNCHER, "die.py"])
    (tmp_path / "die.py").write_text(DIE)
    process = start(trial, tmp_path, DETCLOUD_SLOTS="2", DETCLOUD_RENDEZVOUS_PORT="28616")
    assert process.wait(PROCESS_SECONDS_MAX) == 1
    lines = (trial / "out" / "report-0.jsonl").read_text().splitlines()
    (end,) = map(json.loads, lines)
    assert (end["reason"], end["message"]) == ("errored", "rank 1 ended with exit code 3")
    assert not Path(f"/proc/{(tmp_path / 'pid').read_text()}").exists()
