"""A training with a large state in a separate process: `checkpoint_worker.py FOLDER BATCHES EVERY
MIB behind|blocking|none`.

Prints the start times of batches and the memory in use as JSON.
"""

import contextlib
import io
import json
import os
import sys
import threading
import time
from pathlib import Path
from typing import Any

import torch
from torch.utils.data import TensorDataset

from bench.training_loops import THREADS, trial_directory
from detcloud import core, pytorch

WIDTH, BATCH_SIZE, SAMPLE_SECONDS = 4096, 8, 0.005


class LargeTrial(pytorch.PyTorchTrial):
    """A trial with a single layer. Weights and momenta have `mib` / 2 MiB each."""

    def __init__(self, context: pytorch.PyTorchTrialContext, mib: int) -> None:
        self.context = context
        outputs = (mib << 20) // 2 // (4 * WIDTH)
        self.model = context.wrap_model(torch.nn.Linear(WIDTH, outputs, bias=False))
        self.optimizer = context.wrap_optimizer(
            torch.optim.SGD(self.model.parameters(), lr=0.01, momentum=0.9)
        )
        self.began: list[float] = []

    def build_training_data_loader(self) -> pytorch.DataLoader:
        return pytorch.DataLoader(TensorDataset(torch.rand(256, WIDTH)), batch_size=BATCH_SIZE)

    def build_validation_data_loader(self) -> pytorch.DataLoader:
        return pytorch.DataLoader(TensorDataset(torch.rand(1, WIDTH)), batch_size=1)

    def train_batch(self, batch: Any, epoch_idx: int, batch_idx: int) -> torch.Tensor:
        self.began.append(time.monotonic())
        loss: torch.Tensor = self.model(batch[0]).square().mean()
        self.context.backward(loss)
        self.context.step_optimizer(self.optimizer)
        return loss

    def evaluate_batch(self, batch: Any) -> dict[str, Any]:
        return {"loss": 0.0}


class MemoryWatch:
    """A thread that records the peak memory during and outside the storing of checkpoints, after
    the first.
    """

    def __init__(self, context: core.Context) -> None:
        self._saves = context.checkpoint.saves
        self.peaks = {True: 0, False: 0}
        self._is_over = threading.Event()
        self._thread = threading.Thread(target=self._watch, daemon=True)
        self._thread.start()

    def close(self) -> None:
        self._is_over.set()
        self._thread.join()

    def _watch(self) -> None:
        page = os.sysconf("SC_PAGE_SIZE")
        while not self._is_over.wait(SAMPLE_SECONDS):
            is_storing = self._saves.running is not None
            used = int(Path("/proc/self/statm").read_text().split()[1]) * page
            if is_storing or self._saves.latest is not None:
                self.peaks[is_storing] = max(self.peaks[is_storing], used)


def train(folder: Path, batches: int, every: int, mib: int, mode: str) -> dict[str, Any]:
    """Train `batches` batches with a checkpoint each `every` batches. Return batch times and memory
    peaks.
    """
    spec = {
        "min_checkpoint_batches": 0 if mode == "none" else every,
        "config": {"optimizations": {"asynchronous_checkpoints": mode == "behind"}},
    }
    with trial_directory(folder, batches, **spec):
        torch.set_num_threads(THREADS)
        with contextlib.redirect_stdout(io.StringIO()), pytorch.init() as context:
            trial = LargeTrial(context, mib)
            watch = MemoryWatch(context.core)
            pytorch.Trainer(trial, context).fit()
            watch.close()
    return {"began": trial.began, "storing": watch.peaks[True], "training": watch.peaks[False]}


if __name__ == "__main__":
    place, count, period, size, kind = sys.argv[1:]
    print(json.dumps(train(Path(place), int(count), int(period), int(size), kind)))
