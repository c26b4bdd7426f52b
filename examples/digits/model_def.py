"""Handwritten digits, 8x8 pixels, with a small convolutional network."""

import gzip
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import numpy
import torch
from torch import nn
from torch.utils.data import TensorDataset

from detcloud import pytorch

CLASSES = 10
# Every fifth record validates: the split is the same in every trial.
VALIDATION_EVERY = 5


class DigitsTrial(pytorch.PyTorchTrial):
    def __init__(self, context: pytorch.PyTorchTrialContext) -> None:
        self.context = context
        self.training, self.validation = load_digits()
        self.model = context.wrap_model(
            network(context.get_hparam("n_filters"), context.get_hparam("dropout"))
        )
        self.optimizer = context.wrap_optimizer(
            torch.optim.SGD(
                self.model.parameters(),
                lr=context.get_hparam("learning_rate"),
                momentum=0.9,
                weight_decay=context.get_hparam("weight_decay"),
            )
        )
        context.wrap_lr_scheduler(
            torch.optim.lr_scheduler.ExponentialLR(self.optimizer, gamma=0.95),
            pytorch.StepMode.STEP_EVERY_EPOCH,
        )

    def build_training_data_loader(self) -> pytorch.DataLoader:
        return pytorch.DataLoader(
            self.training, batch_size=self.context.get_per_slot_batch_size(), shuffle=True
        )

    def build_validation_data_loader(self) -> pytorch.DataLoader:
        return pytorch.DataLoader(self.validation, batch_size=len(self.validation))

    def train_batch(self, batch: Any, epoch_idx: int, batch_idx: int) -> dict[str, Any]:
        images, labels = batch
        loss = nn.functional.cross_entropy(self.model(images), labels)
        self.context.backward(loss)
        self.context.step_optimizer(self.optimizer)
        return {"loss": loss}

    def evaluate_batch(self, batch: Any) -> dict[str, Any]:
        images, labels = batch
        scores = self.model(images)
        return {
            "validation_loss": nn.functional.cross_entropy(scores, labels),
            "validation_accuracy": (scores.argmax(1) == labels).double().mean(),
        }


def network(n_filters: int, dropout: float) -> nn.Module:
    """Images of shape (records, 1, 8, 8) in, ten scores out."""
    return nn.Sequential(
        nn.Conv2d(1, n_filters, 3, padding=1),
        nn.ReLU(),
        nn.Conv2d(n_filters, 2 * n_filters, 3, padding=1),
        nn.ReLU(),
        nn.MaxPool2d(2),
        nn.Flatten(),
        nn.Dropout(dropout),
        nn.Linear(2 * n_filters * 4 * 4, CLASSES),
    )


def load_digits() -> tuple[TensorDataset, TensorDataset]:
    """1437 training and 360 validation records: images in [0, 1] and labels 0 to 9.

    Reads the file behind sklearn.datasets.load_digits, whose import alone takes seconds.
    """
    package = find_spec("sklearn")
    if package is None or package.origin is None:
        raise ModuleNotFoundError("the digits ship with scikit-learn: pip install scikit-learn")
    path = Path(package.origin).parent / "datasets" / "data" / "digits.csv.gz"
    with gzip.open(path, "rt") as text:
        table = torch.from_numpy(numpy.loadtxt(text, delimiter=",", dtype=numpy.float32))
    images = table[:, :-1].reshape(-1, 1, 8, 8) / 16
    labels = table[:, -1].long()
    validates = torch.arange(len(table)) % VALIDATION_EVERY == 0
    return (
        TensorDataset(images[~validates], labels[~validates]),
        TensorDataset(images[validates], labels[validates]),
    )
