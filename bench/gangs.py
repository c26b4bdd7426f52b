"""Trials of two processes: starts, losses, steps, stops, and the cost of calls of the Core API."""

import contextlib
import io
import json
import os
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from statistics import median
from tempfile import TemporaryDirectory
from typing import Any

from bench.figures import Row, Scale, at_most, progress
from bench.notices import notices
from bench.training import OVERHEAD_MAX_PERCENT, batch_ms

START_OVER_PERCENT = 10
PREEMPT_US, REPORT_US = 5, 50
LOSS_DIFFERENCE_MAX = 1e-5
WORKER_SECONDS_MAX = 900.0
# A user's script up to the end of the first step. Rank 0 records the time.
FIRST_STEP = """
import os, sys, time
import torch
from torch import distributed
distributed.init_process_group("gloo")
model = torch.nn.parallel.DistributedDataParallel(torch.nn.Linear(16, 1))
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
model(torch.ones(4, 16)).sum().backward()
optimizer.step()
if distributed.get_rank() == 0:
    with open(sys.argv[1], "w") as mark:
        print(repr(time.time()), file=mark)
# The interpreter's own end may be an abort, of gloo's threads: 2 of 16 were.
distributed.barrier()
os._exit(0)
"""


def gangs(scale: Scale) -> Iterator[Row]:
    """Starts, calls, stops, losses and steps, in this order."""
    with TemporaryDirectory(prefix="detcloud-bench-") as folder:
        yield _start(Path(folder), scale)
    yield from _calls(scale)
    yield from notices(scale)
    with TemporaryDirectory(prefix="detcloud-bench-") as folder:
        yield from _two_processes(Path(folder), scale)


def _start(folder: Path, scale: Scale) -> Row:
    """Compare detcloud's launcher with torch's on the same script, by turns. The first turn is not
    counted.
    """
    script, mark = folder / "train.py", folder / "first_step"
    script.write_text(FIRST_STEP)
    ours = [sys.executable, "-m", "detcloud.launch.torch_distributed"]
    theirs = [sys.executable, "-m", "torch.distributed.run", "--nproc_per_node", "2"]
    launchers = {"ours": [*ours, str(script)], "torchrun": [*theirs, str(script)]}
    seconds: dict[str, list[float]] = {name: [] for name in launchers}
    with progress(f"starts of two processes, {scale.gang_starts} runs"):
        for _ in range(scale.gang_starts + 1):
            for name, command in launchers.items():
                began = time.time()
                _run([*command, str(mark)], DETCLOUD_SLOTS="2")
                seconds[name].append(float(mark.read_text()) - began)
    own, plain = (median(taken[1:]) for taken in seconds.values())
    beside = f"{own:.2f} s, torchrun alone {plain:.2f} s"
    what = "start to the first step of two processes, beyond torchrun's"
    return at_most(what, 100 * (own / plain - 1), START_OVER_PERCENT, "%", beside=beside)


def _calls(scale: Scale) -> Iterator[Row]:
    """Yield the median thread time of Core API calls, in trials of a single process and of two."""
    from bench.training_loops import trial_directory
    from detcloud import core
    from detcloud.core.preempt import PreemptContext

    log = io.StringIO()
    with (
        TemporaryDirectory(prefix="detcloud-bench-") as name,
        trial_directory(Path(name), 1 << 40),
        contextlib.redirect_stdout(log),
        core.init() as context,
    ):
        alone = _median_us(lambda _: context.preempt.should_preempt(), scale.calls)

        def report(step: int) -> None:
            context.train.report_training_metrics(step, {"loss": step / 3, "accuracy": 0.5})

        reported = _median_us(report, scale.calls)
        with _two_channels() as channel:
            shared = PreemptContext(context.read_directives, channel)
            agreed = _median_us(lambda _: shared.should_preempt(), scale.calls)
            shared.close()
    beside = f"in a trial of one process {alone:.2f} us"
    yield at_most("should_preempt(), per call", agreed, PREEMPT_US, "us", beside=beside)
    what = "report_training_metrics() of two metrics, per call"
    yield at_most(what, reported, REPORT_US, "us")


def _median_us(call: Callable[[int], object], calls: int) -> float:
    taken = []
    for step in range(calls):
        began = time.thread_time_ns()
        call(step)
        taken.append(time.thread_time_ns() - began)
    return median(taken) / 1000


@contextlib.contextmanager
def _two_channels() -> Iterator[Any]:
    """Yield the chief's context of a group of two. The second member only listens."""
    import threading

    from detcloud.core.distributed_context import DistributedContext

    found: list[DistributedContext] = []
    os.environ["MASTER_PORT"] = str(os.getpid())

    def join(rank: int) -> None:
        found.append(DistributedContext(rank, 2, rank, 2, chief_ip="127.0.0.1"))

    threads = [threading.Thread(target=join, args=(rank,)) for rank in range(2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    try:
        yield next(one for one in found if one.rank == 0)
    finally:
        for one in found:
            one.close()


def _two_processes(folder: Path, scale: Scale) -> Iterator[Row]:
    from bench.training_loops import WORKLOADS, with_trainer

    runs, batches = scale.gang_training_runs, scale.training_batches
    with progress(f"training in two processes, {runs} runs"):
        words = [str(folder), str(runs), str(batches)]
        _run_ranks([sys.executable, "-m", "bench.gang_worker", *words])
    perceptron = WORKLOADS[0]
    with progress("the same in one process"):
        with_trainer(perceptron, batches, folder / "alone")
    one = _losses(folder / "alone")
    two = _losses(folder / "0" / f"{perceptron.records}-0")
    differences = [abs(a - b) / abs(a) for a, b in zip(one, two, strict=True)]
    yield at_most(
        "losses of two processes and of one, relative difference",
        max(differences, default=0.0),
        LOSS_DIFFERENCE_MAX,
        "of the loss",
        beside=f"the last {two[-1]:.7g} and {one[-1]:.7g}, a global batch of 64 each"
        if two
        else "nothing was reported",
    )
    for name, times in json.loads((folder / "times.json").read_text()).items():
        ours, plain = (
            [batch_ms(one, scale) for one in times[form]] for form in ("trainer", "plain")
        )
        # Ratios of adjacent runs, because the load of the machine changes.
        ratios = sorted(one / other for one, other in zip(ours, plain, strict=True))
        middle = [100 * (ratios[len(ratios) * part // 4] - 1) for part in (1, 3)]
        beside = f"{median(ours):.3f} ms a batch, plain PyTorch {median(plain):.3f} ms; "
        beside += "half of the runs between {:.1f} and {:.1f} %".format(*middle)
        what = f"the Trainer's overhead in two processes, {name}"
        percent = 100 * (median(ratios) - 1)
        yield at_most(what, percent, OVERHEAD_MAX_PERCENT, "%", beside=beside)


def _losses(folder: Path) -> list[float]:
    lines = (folder / "out" / "report-0.jsonl").read_text().splitlines()
    reported = [line for line in map(json.loads, lines) if line["kind"] == "metrics"]
    return [
        line["metrics"]["loss"]
        for line in reported
        if line["group"] == "training" and "loss" in line["metrics"]
    ]


def _run_ranks(command: list[str]) -> None:
    """Run the command as two processes with the variables of torch's launcher. Raise RuntimeError
    if a process fails.
    """
    variables = {
        "TORCHELASTIC_RUN_ID": "bench",
        "MASTER_ADDR": "127.0.0.1",
        "MASTER_PORT": str(_free_port()),
        "WORLD_SIZE": "2",
        "LOCAL_WORLD_SIZE": "2",
        "OMP_NUM_THREADS": "1",
        "GLOO_SOCKET_IFNAME": "lo" if sys.platform == "linux" else "lo0",
    }
    processes = [
        subprocess.Popen(
            command,
            env={**os.environ, **variables, "RANK": str(rank), "LOCAL_RANK": str(rank)},
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
        )
        for rank in range(2)
    ]
    try:
        codes = [process.wait(WORKER_SECONDS_MAX) for process in processes]
    finally:
        for process in processes:
            process.kill()
    if codes != [0, 0]:
        raise RuntimeError(f"the two processes ended with {codes}")


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
        return port


def _run(command: list[str], **variables: str) -> None:
    subprocess.run(
        command,
        env={**os.environ, "OMP_NUM_THREADS": "1", **variables},
        stdin=subprocess.DEVNULL,
        stdout=subprocess.DEVNULL,
        check=True,
        timeout=WORKER_SECONDS_MAX,
    )
