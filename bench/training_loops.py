"""A training in two forms: with the Trainer, and in plain PyTorch.

In a process group both forms split each batch by rank: rank 0 has the first part, rank 1 the next.
"""

import contextlib
import io
import json
import os
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from itertools import chain, count, islice
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import torch
from torch import distributed, nn
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import BatchSampler, DataLoader, SequentialSampler, TensorDataset

from detcloud import pytorch

REPORTED_BATCHES = 100
SEED, THREADS, RATE = 17, 1, 0.01

Weights = dict[str, torch.Tensor]


@dataclass(frozen=True)
class Workload:
    """A classifier that trains on `records` records in order."""

    name: str
    network: Callable[[], nn.Module]
    shape: tuple[int, ...]
    records: int
    batch_size: int

    def data(self) -> TensorDataset:
        generator = torch.Generator().manual_seed(SEED)
        inputs = torch.rand(self.records, *self.shape, generator=generator)
        return TensorDataset(inputs, torch.arange(self.records) % 10)


def _perceptron() -> nn.Module:
    """256 * 256 + 256 * 128 + 128 * 10 weights."""
    return nn.Sequential(
        nn.Linear(256, 256), nn.ReLU(), nn.Linear(256, 128), nn.ReLU(), nn.Linear(128, 10)
    )


def _digits() -> nn.Module:
    """The network of examples/digits with 16 filters."""
    return nn.Sequential(
        nn.Conv2d(1, 16, 3, padding=1),
        nn.ReLU(),
        nn.Conv2d(16, 32, 3, padding=1),
        nn.ReLU(),
        nn.MaxPool2d(2),
        nn.Flatten(),
        nn.Dropout(0.25),
        nn.Linear(512, 10),
    )


WORKLOADS = (
    Workload("perceptron of 100,000 weights", _perceptron, (256,), 1600, 64),
    Workload("network of examples/digits", _digits, (1, 8, 8), 1437, 64),
)


def plain(workload: Workload, batches: int) -> tuple[list[float], Weights]:
    """Train with a plain loop and return the start times of batches and the weights.

    Times are thread times in seconds, because other processes may use the machine.
    """
    torch.set_num_threads(THREADS)
    torch.use_deterministic_algorithms(False)
    torch.manual_seed(SEED)
    network = workload.network()
    model = DistributedDataParallel(network) if distributed.is_initialized() else network
    optimizer = torch.optim.SGD(model.parameters(), lr=RATE, momentum=0.9)
    source, data = torch.Generator(), workload.data()
    loader: DataLoader[Any] = DataLoader(
        data, batch_sampler=_OwnBatches(len(data), workload.batch_size), generator=source
    )
    model.train()
    began: list[float] = []
    total = torch.zeros(())
    for number, (inputs, targets) in enumerate(islice(loader, batches), 1):
        began.append(time.thread_time())
        loss = nn.functional.cross_entropy(model(inputs), targets)
        loss.backward()  # type: ignore[no-untyped-call]
        optimizer.step()
        optimizer.zero_grad()
        total += loss.detach()
        if number % REPORTED_BATCHES == 0:
            if distributed.is_initialized():
                distributed.all_reduce(total)
            (total / REPORTED_BATCHES / _size()).item()
            total = torch.zeros(())
    return began, network.state_dict()


def with_trainer(
    workload: Workload, batches: int, folder: Path | None = None
) -> tuple[list[float], Weights]:
    """Train with the Trainer like on a cluster, and return the start times of batches and the
    weights.

    Files go to `folder`, which all processes of a trial share.
    """
    if folder is None:
        with TemporaryDirectory(prefix="detcloud-bench-") as name:
            return with_trainer(workload, batches, Path(name))
    with trial_directory(folder, batches):
        torch.set_num_threads(THREADS)
        with contextlib.redirect_stdout(io.StringIO()), pytorch.init() as context:
            trial = _Trial(context, workload)
            pytorch.Trainer(trial, context).fit()
    return trial.began, trial.model.state_dict()


class _AwaitDescription(pytorch.PyTorchCallback):
    """A callback that waits until the trial has described the machine, which normally happens
    during the first batches.

    Only the chief describes the machine; all other processes wait at the first exchange.
    """

    def on_training_start(self) -> None:
        if distributed.is_initialized() and distributed.get_rank():
            return
        report = Path(os.pardir) / "out" / "report-0.jsonl"
        while not report.exists() or '"environment"' not in report.read_text():
            time.sleep(0.01)


class _Trial(pytorch.PyTorchTrial):
    def __init__(self, context: pytorch.PyTorchTrialContext, workload: Workload) -> None:
        self.context, self.workload = context, workload
        self.model = context.wrap_model(workload.network())
        self.optimizer = context.wrap_optimizer(
            torch.optim.SGD(self.model.parameters(), lr=RATE, momentum=0.9)
        )
        self.began: list[float] = []

    def build_callbacks(self) -> dict[str, pytorch.PyTorchCallback]:
        return {"described": _AwaitDescription()}

    def build_training_data_loader(self) -> pytorch.DataLoader:
        return pytorch.DataLoader(self.workload.data(), batch_size=self.workload.batch_size)

    def build_validation_data_loader(self) -> pytorch.DataLoader:
        return pytorch.DataLoader(self.workload.data(), batch_size=self.workload.records)

    def train_batch(self, batch: Any, epoch_idx: int, batch_idx: int) -> torch.Tensor:
        self.began.append(time.thread_time())
        inputs, targets = batch
        loss = nn.functional.cross_entropy(self.model(inputs), targets)
        self.context.backward(loss)
        self.context.step_optimizer(self.optimizer)
        return loss

    def evaluate_batch(self, batch: Any) -> dict[str, Any]:
        return {"loss": 0.0}


@contextlib.contextmanager
def trial_directory(folder: Path, batches: int, **fields: Any) -> Iterator[None]:
    """Write a trial directory of `batches` batches like an agent, and enter the directory until the
    block ends.

    `fields` replace fields of the spec.
    """
    spec = {
        "version": 1,
        "trial_seed": SEED,
        "threads": THREADS,
        "scheduling_unit": REPORTED_BATCHES,
        "checkpoint_policy": "none",
        "metric": "loss",
        "storage": {"type": "directory", "path": str(folder / "store")},
        **fields,
    }
    (folder / "in").mkdir(parents=True)
    (folder / "in" / "spec.json").write_text(json.dumps(spec))
    directives = {"revision": 1, "length": batches, "closed": True, "answered": 0}
    (folder / "in" / "directives.json").write_text(json.dumps(directives))
    (folder / "code").mkdir()
    before, home = os.environ.get("DETCLOUD_TRIAL_DIR"), Path.cwd()
    os.environ["DETCLOUD_TRIAL_DIR"] = str(folder)
    os.chdir(folder / "code")
    try:
        yield
    finally:
        os.chdir(home)
        del os.environ["DETCLOUD_TRIAL_DIR"]
        if before is not None:
            os.environ["DETCLOUD_TRIAL_DIR"] = before


class _OwnBatches(BatchSampler):
    """The batches of this process, continued across the ends of epochs."""

    def __init__(self, records: int, batch_size: int) -> None:
        super().__init__(SequentialSampler(range(records)), batch_size, drop_last=False)

    def __iter__(self) -> Iterator[list[int]]:
        epochs = (super(_OwnBatches, self).__iter__() for _ in count())
        rank = distributed.get_rank() if distributed.is_initialized() else 0
        return islice(chain.from_iterable(epochs), rank, None, _size())


def _size() -> int:
    return distributed.get_world_size() if distributed.is_initialized() else 1
