"""A model directory with random numbers in the training, and a point at which tests hold a trial.

The last rank of the first run waits before a fixed batch while a file exists, so that a test can
disturb the trial at a known place. A request to stop also ends the wait, after all ranks have
agreed.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

LENGTH = 60
HELD_AT = 25
# A checkpoint after batches 10, 20 and so on: a trial killed at 25 resumes at 20.
PERIOD, WORKLOAD = 10, 5
# The batches of an epoch, for trials that count in epochs.
EPOCH = 10
# The units of a configuration, and a trial with a data stream.
FORMS = ("batches", "steps", "epochs", "stream")
TRIAL = """
import time
from pathlib import Path

import torch
from torch.utils.data import DataLoader, IterableDataset, TensorDataset

from detcloud import pytorch


class NoisyTrial(pytorch.PyTorchTrial):
    def __init__(self, context):
        self.context = context
        layers = [torch.nn.Linear(4, 16), torch.nn.Tanh(), torch.nn.Dropout(0.2)]
        self.model = context.wrap_model(torch.nn.Sequential(*layers, torch.nn.Linear(16, 1)))
        self.optimizer = context.wrap_optimizer(
            torch.optim.SGD(self.model.parameters(), lr=0.05, momentum=0.9)
        )
        ranks = context.distributed
        print(f"rank {ranks.rank} of {ranks.size} on node {ranks.cross_rank}", flush=True)

    def build_training_data_loader(self):
        return pytorch.DataLoader(
            _points(self.context.get_hparam("points")),
            batch_size=self.context.get_per_slot_batch_size(),
            shuffle=True,
        )

    def build_validation_data_loader(self):
        return pytorch.DataLoader(_points(16), batch_size=4)

    def train_batch(self, batch, epoch_idx, batch_idx):
        if batch_idx == self.context.get_hparam("held_at"):
            self._hold()
        loss = torch.nn.functional.mse_loss(self.model(batch[0]), batch[1])
        self.context.backward(loss)
        self.context.step_optimizer(self.optimizer)
        return {"loss": loss}

    def evaluate_batch(self, batch):
        return {"loss": torch.nn.functional.mse_loss(self.model(batch[0]), batch[1])}

    def _hold(self):
        ranks, info = self.context.distributed, self.context.core.info
        hold = Path(self.context.get_hparam("hold"))
        if ranks.rank < ranks.size - 1 or info.epoch > 1 or not hold.exists():
            return
        print(f"rank {ranks.rank} holds", flush=True)
        preempt = self.context.core.preempt
        while hold.exists() and not self._is_stop_known(preempt):
            time.sleep(0.02)

    def _is_stop_known(self, preempt):
        # The few batches that are left take less time than to agree on where to stop.
        agreement = preempt._agreement
        return preempt.is_requested() if agreement is None else agreement.request is not None


class StreamTrial(NoisyTrial):
    def __init__(self, context):
        super().__init__(context)
        context.experimental.disable_dataset_reproducibility_checks()

    def build_training_data_loader(self):
        size = self.context.get_per_slot_batch_size()
        return DataLoader(Stream(self.context, size), batch_size=size)


class Stream(IterableDataset):
    def __init__(self, context, size):
        self.ranks, self.first, self.size = context.distributed, context.get_initial_batch(), size

    def __iter__(self):
        points, rank, batch = _points(96), self.ranks.rank, self.first
        while True:
            drawn = torch.Generator().manual_seed(batch)
            numbers = torch.randint(96, (self.ranks.size, self.size), generator=drawn)
            yield from (points[number] for number in numbers[rank].tolist())
            batch += 1


def _points(count):
    x = torch.linspace(-1, 1, 4 * count).reshape(count, 4)
    return TensorDataset(x, (x * x).sum(1, keepdim=True))
"""


def write_noisy_model(folder: Path, slots: int, form: str = "batches") -> tuple[Path, Path]:
    """Write CONFIG and MODEL_DIR of a trial on `slots` slots in a form of FORMS.

    The file `folder/hold` makes the trial wait.
    """
    unit, batches = ("epochs", EPOCH) if form == "epochs" else ("batches", 1)
    lengths: dict[str, Any] = {
        "searcher": {"name": "single", "metric": "loss", "max_length": {unit: LENGTH // batches}},
        "min_checkpoint_period": {unit: PERIOD // batches},
        "min_validation_period": {unit: PERIOD // batches},
        "scheduling_unit": WORKLOAD,
    }
    if form == "steps":
        lengths = {
            "searcher": {"name": "single", "metric": "loss", "max_steps": LENGTH // WORKLOAD},
            "min_checkpoint_period": PERIOD // WORKLOAD,
            "min_validation_period": PERIOD // WORKLOAD,
            "batches_per_step": WORKLOAD,
        }
    model = folder / "model"
    model.mkdir(parents=True)
    (model / "model_def.py").write_text(TRIAL)
    config: dict[str, Any] = {
        "name": "noisy",
        "entrypoint": f"model_def:{'StreamTrial' if form == 'stream' else 'NoisyTrial'}",
        "resources": {"slots_per_trial": slots},
        "hyperparameters": {
            "global_batch_size": 8,
            "held_at": HELD_AT,
            "hold": str(folder / "hold"),
            # Epochs of 10 batches, or of 12, which end within workloads.
            "points": 8 * EPOCH if form == "epochs" else 96,
        },
        **lengths,
        # As larger states are stored.
        "optimizations": {"asynchronous_checkpoints": True},
        "checkpoint_policy": "none",
        "reproducibility": {"experiment_seed": 11},
        "max_restarts": 1,
    }
    path = folder / "config.yaml"
    path.write_text(json.dumps(config, indent=1))
    return path, model
