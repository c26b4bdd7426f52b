"""The overhead of the Trainer: a training with the Trainer and in plain PyTorch, by turns."""

from collections.abc import Iterator
from itertools import pairwise
from statistics import median
from typing import Any

from bench.figures import Row, Scale, at_most, progress

OVERHEAD_MAX_PERCENT = 2
REPORTED = 100


def training(scale: Scale) -> Iterator[Row]:
    """Yield the time of a batch with the Trainer relative to plain PyTorch.

    Each batch includes its share of the report every 100 batches. Both trainings must end with the
    same weights, bit by bit.
    """
    # torch is imported only for this figure.
    from bench.training_loops import WORKLOADS, plain, with_trainer

    for workload in WORKLOADS:
        seconds: dict[Any, list[float]] = {plain: [], with_trainer: []}
        with progress(f"{workload.name}, {scale.training_runs} runs"):
            for turn in range(scale.training_runs):
                weights = []
                for train in (plain, with_trainer) if turn % 2 else (with_trainer, plain):
                    began, trained = train(workload, scale.training_batches)
                    seconds[train] += [end - start for start, end in pairwise(began)]
                    weights.append(trained)
                _check_equal(*weights)
        ours_ms, plain_ms = (
            batch_ms(seconds[with_trainer], scale),
            batch_ms(seconds[plain], scale),
        )
        beside = f"{ours_ms:.3f} ms a batch, plain PyTorch {plain_ms:.3f} ms"
        what = f"the Trainer's overhead, {workload.name}"
        percent = 100 * (ours_ms / plain_ms - 1)
        yield at_most(what, percent, OVERHEAD_MAX_PERCENT, "%", beside=beside)


def batch_ms(seconds: list[float], scale: Scale) -> float:
    """Return the milliseconds of the median batch, plus a batch's share of the report."""
    run = scale.training_batches - 1
    reporting = [
        one for number, one in enumerate(seconds) if number % run % REPORTED == REPORTED - 1
    ]
    batch = median(seconds)
    report = max(0.0, median(reporting) - batch) if reporting else 0.0
    return 1000 * (batch + report / REPORTED)


def _check_equal(one: dict[str, Any], other: dict[str, Any]) -> None:
    if not all(one[name].equal(other[name]) for name in one):
        raise AssertionError("the two trainings ended with different weights")
