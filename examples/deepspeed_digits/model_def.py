"""Handwritten digits, 8x8 pixels, with a small network in an engine of DeepSpeed's."""

import gzip
from collections.abc import Iterator
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import deepspeed
import numpy
import torch
from torch import nn
from torch.utils.data import TensorDataset

from detcloud.deepspeed import DeepSpeedTrial, DeepSpeedTrialContext, overwrite_deepspeed_config
from detcloud.pytorch import DataLoader

# Every fifth record validates: the split is the same in every trial.
VALIDATION_EVERY = 5


class DigitsTrial(DeepSpeedTrial):
    def __init__(self, context: DeepSpeedTrialContext) -> None:
        self.context = context
        self.training, self.validation = load_digits()
        width = context.get_hparam("width")
        network = nn.Sequential(
            nn.Linear(64, width),
            nn.ReLU(),
            nn.Dropout(context.get_hparam("dropout")),
            nn.Linear(width, 10),
        )
        config = overwrite_deepspeed_config(
            context.get_hparam("deepspeed_config"),
            context.get_hparams().get("overwrite_deepspeed_args", {}),
        )
        engine, _, _, _ = deepspeed.initialize(
            model=network, model_parameters=network.parameters(), config=config
        )
        self.engine = context.wrap_model_engine(engine)

    def build_training_data_loader(self) -> DataLoader:
        return DataLoader(
            self.training, batch_size=self.context.train_micro_batch_size_per_gpu, shuffle=True
        )

    def build_validation_data_loader(self) -> DataLoader:
        return DataLoader(self.validation, batch_size=90)

    def train_batch(
        self, dataloader_iter: Iterator[Any] | None, epoch_idx: int, batch_idx: int
    ) -> dict[str, Any]:
        loss, _ = self.loss_and_accuracy(dataloader_iter)
        self.engine.backward(loss)
        self.engine.step()
        return {"loss": loss}

    def evaluate_batch(
        self, dataloader_iter: Iterator[Any] | None, batch_idx: int
    ) -> dict[str, Any]:
        loss, accuracy = self.loss_and_accuracy(dataloader_iter)
        return {"validation_loss": loss, "validation_accuracy": accuracy}

    def loss_and_accuracy(self, batches: Iterator[Any] | None) -> tuple[torch.Tensor, torch.Tensor]:
        assert batches is not None
        images, labels = self.context.to_device(next(batches))
        scores = self.engine(images)
        accuracy = (scores.argmax(1) == labels).double().mean()
        return nn.functional.cross_entropy(scores, labels), accuracy


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
    images, labels = table[:, :-1] / 16, table[:, -1].long()
    validates = torch.arange(len(table)) % VALIDATION_EVERY == 0
    return (
        TensorDataset(images[~validates], labels[~validates]),
        TensorDataset(images[validates], labels[validates]),
    )
