"""A small trial in which every batch depends on all state that a checkpoint must contain."""

import random
import signal
from typing import Any

import numpy
import torch
from torch.utils.data import TensorDataset

from detcloud import pytorch

# 28 records in batches of 4: an epoch has 7 batches.
RECORDS = 28
EPOCH = 7


class Plateau(pytorch.PyTorchCallback):
    """Callback that raises the weight decay after every second validation; counts validations."""

    def __init__(self, optimizer: torch.optim.Optimizer) -> None:
        self.optimizer = optimizer
        self.validations = 0

    def on_validation_end(self, metrics: dict[str, Any]) -> None:
        self.validations += 1
        if self.validations % 2 == 0:
            for group in self.optimizer.param_groups:
                group["weight_decay"] += 0.01

    def state_dict(self) -> dict[str, Any]:
        return {"validations": self.validations}

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        self.validations = state_dict["validations"]


class NoisyTrial(pytorch.PyTorchTrial):
    """Trial with dropout, momentum, a schedule, batch norm, shuffling and all three generators.

    The hyperparameter `stop_after` lists the batches after which the process gets SIGTERM.
    """

    def __init__(self, context: pytorch.PyTorchTrialContext) -> None:
        self.context = context
        self.model = context.wrap_model(
            torch.nn.Sequential(
                torch.nn.Linear(3, 8),
                torch.nn.BatchNorm1d(8),
                torch.nn.Dropout(0.3),
                torch.nn.Linear(8, 1),
            )
        )
        self.optimizer = context.wrap_optimizer(
            torch.optim.SGD(self.model.parameters(), lr=0.05, momentum=0.9)
        )
        mode = pytorch.StepMode(context.get_hparams().get("step_mode", "step_every_epoch"))
        context.wrap_lr_scheduler(
            torch.optim.lr_scheduler.StepLR(self.optimizer, step_size=2, gamma=0.8), mode
        )
        self.stop_after = context.get_hparams().get("stop_after", [])

    def build_callbacks(self) -> dict[str, pytorch.PyTorchCallback]:
        return {"plateau": Plateau(self.optimizer)}

    def build_training_data_loader(self) -> pytorch.DataLoader:
        return pytorch.DataLoader(_records(), batch_size=4, shuffle=True)

    def build_validation_data_loader(self) -> pytorch.DataLoader:
        return pytorch.DataLoader(_records(), batch_size=8)

    def train_batch(self, batch: Any, epoch_idx: int, batch_idx: int) -> dict[str, Any]:
        inputs, targets = batch
        noise = random.random() + float(numpy.random.random())
        loss = ((self.model(inputs) - targets) ** 2).mean() * (1 + noise)
        self.context.backward(loss)
        self.context.step_optimizer(
            self.optimizer, lambda params: torch.nn.utils.clip_grad_norm_(params, 5.0)
        )
        if batch_idx + 1 in self.stop_after:
            signal.raise_signal(signal.SIGTERM)
        return {"loss": loss, "noise": noise}

    def evaluate_batch(self, batch: Any) -> dict[str, Any]:
        inputs, targets = batch
        # The validation draws from the generators, which must not disturb training.
        return {"loss": ((self.model(inputs) - targets) ** 2).mean() + 0 * torch.rand(1).sum()}


def _records() -> TensorDataset:
    inputs = torch.arange(RECORDS * 3, dtype=torch.float32).reshape(RECORDS, 3).sin()
    return TensorDataset(inputs, inputs.sum(1, keepdim=True))
