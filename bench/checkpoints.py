"""Asynchronous checkpoints against blocking checkpoints, with 500 MB of state."""

import json
import subprocess
import sys
from collections.abc import Iterator
from itertools import pairwise
from pathlib import Path
from statistics import median
from tempfile import TemporaryDirectory
from typing import Any

from bench.figures import Row, Scale, at_least, at_most, progress

PAUSE_RATIO_MIN, SLOWDOWN_MAX_PERCENT, MEMORY_MAX_MIB = 10, 3.5, 64
# A checkpoint every 5 % of a training means 20 equal stretches.
SAVES, STRETCHES_WITHOUT = 5, 3
MIB = 1 << 20


def checkpoints(scale: Scale) -> Iterator[Row]:
    """Run trainings by turns in separate processes and yield medians over all checkpoints.

    A pause is the time between the batches around a checkpoint minus the median batch. A stretch is
    the time from a checkpoint to the next, or for as many batches without checkpoints. The last
    checkpoint blocks in each mode and is not counted.
    """
    runs: dict[str, list[dict[str, Any]]] = {"none": [], "behind": [], "blocking": []}
    every = scale.checkpoint_batches
    for turn in range(scale.checkpoint_runs):
        for mode in runs:
            with progress(f"checkpoints, {mode}, run {turn + 1}"):
                runs[mode].append(_train(every, scale.checkpoint_mib, mode))
    pauses = {
        mode: [pause for run in runs[mode] for pause in _pauses(run["began"], every)]
        for mode in ("behind", "blocking")
    }
    behind, blocking = (median(pauses[mode]) for mode in ("behind", "blocking"))
    beside = f"{behind * 1000:.0f} ms, in the step {blocking * 1000:,.0f} ms"
    what = f"pause for {scale.checkpoint_mib} MiB of state: in the step, times as long"
    ratio = blocking / max(behind, 1e-6)
    yield at_least(what, ratio, PAUSE_RATIO_MIN, "", beside=beside)
    seconds = {
        mode: median(stretch for run in some for stretch in _stretches(run["began"], every))
        for mode, some in runs.items()
    }
    slowdown = 100 * (seconds["behind"] / seconds["none"] - 1)
    held_up = 100 * (seconds["blocking"] / seconds["none"] - 1)
    beside = f"of {seconds['none']:.1f} s each; in the step {held_up:.0f} %"
    what = "training slowed by a checkpoint every 5 % of it"
    yield at_most(what, slowdown, SLOWDOWN_MAX_PERCENT, "%", beside=beside)
    more = max(run["storing"] - run["training"] for run in runs["behind"]) / MIB
    what = "memory while a checkpoint is stored, above the state and its copy"
    yield at_most(what, max(0.0, more), MEMORY_MAX_MIB, "MiB")


def _pauses(began: list[float], every: int) -> list[float]:
    """Return the seconds before each batch after a checkpoint, minus the median of all gaps."""
    gaps = [after - before for before, after in pairwise(began)]
    batch = median(gaps)
    return [max(0.0, gap - batch) for number, gap in enumerate(gaps, 1) if number % every == 0]


def _stretches(began: list[float], every: int) -> list[float]:
    """Return the seconds from each checkpoint to the next, without the first stretch."""
    starts = began[every::every]
    return [after - before for before, after in pairwise(starts)]


def _train(every: int, mib: int, mode: str) -> dict[str, Any]:
    with TemporaryDirectory(prefix="detcloud-bench-") as name:
        command = [sys.executable, "-m", "bench.checkpoint_worker", name]
        stretches = STRETCHES_WITHOUT if mode == "none" else SAVES
        command += [str(every * stretches), str(every), str(mib), mode]
        done = subprocess.run(
            command, check=True, stdout=subprocess.PIPE, cwd=Path(__file__).parents[1]
        )
    found: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    return found
