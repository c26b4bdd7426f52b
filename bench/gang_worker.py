"""A process of two that run the same training in two forms: `python -m bench.gang_worker FOLDER
RUNS BATCHES`, with the variables of torch's launcher.

Rank 0 writes FOLDER/times.json: the seconds of each batch by workload, form and run.
"""

import json
import sys
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from itertools import pairwise
from pathlib import Path

from torch import distributed

from bench.training_loops import WORKLOADS, Weights, plain, with_trainer


def main() -> None:
    """Run both forms by turns. Raise AssertionError if the final weights differ in a bit."""
    folder, runs, batches = Path(sys.argv[1]), int(sys.argv[2]), int(sys.argv[3])
    distributed.init_process_group("gloo")
    own = folder / str(distributed.get_rank())
    times: dict[str, dict[str, list[list[float]]]] = {}
    for workload in WORKLOADS:
        taken = times.setdefault(workload.name, {"plain": [], "trainer": []})
        # Each of the two processes has half of a batch.
        shared = replace(workload, batch_size=workload.batch_size // 2)
        for turn in range(runs):
            forms: dict[str, Callable[[], tuple[list[float], Weights]]] = {
                "trainer": partial(with_trainer, shared, batches, own / f"{shared.records}-{turn}"),
                "plain": partial(plain, shared, batches),
            }
            weights = {}
            for form in sorted(forms, reverse=turn % 2 == 0):
                began, weights[form] = forms[form]()
                taken[form].append([end - start for start, end in pairwise(began)])
            ours, theirs = weights["trainer"], weights["plain"]
            if not all(ours[name].equal(theirs[name]) for name in ours):
                raise AssertionError("the two trainings ended with different weights")
    if distributed.get_rank() == 0:
        (folder / "times.json").write_text(json.dumps(times))


if __name__ == "__main__":
    main()
