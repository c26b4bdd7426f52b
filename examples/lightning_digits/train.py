"""Handwritten digits, 8x8 pixels, with a small network in Lightning."""

import gzip
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import lightning.pytorch as pl
import numpy
import torch
from torch.utils.data import DataLoader, TensorDataset

from detcloud import core
from detcloud.lightning import DetLogger, TrialCallback

# Every fifth record validates: the split is the same in every trial.
VALIDATION_EVERY = 5


class Digits(pl.LightningModule):
    def __init__(self, learning_rate: float, width: int, dropout: float) -> None:
        super().__init__()
        self.learning_rate = learning_rate
        self.network = torch.nn.Sequential(
            torch.nn.Linear(64, width),
            torch.nn.ReLU(),
            torch.nn.Dropout(dropout),
            torch.nn.Linear(width, 10),
        )

    def training_step(self, batch: Any, batch_idx: int) -> torch.Tensor:
        images, labels = batch
        loss = torch.nn.functional.cross_entropy(self.network(images), labels)
        self.log("loss", loss)
        return loss

    def validation_step(self, batch: Any, batch_idx: int) -> None:
        images, labels = batch
        scores = self.network(images)
        # Each process has its share of the records.
        self.log("val_loss", torch.nn.functional.cross_entropy(scores, labels), sync_dist=True)
        self.log("val_accuracy", (scores.argmax(1) == labels).float().mean(), sync_dist=True)

    def configure_optimizers(self) -> torch.optim.Optimizer:
        return torch.optim.Adam(self.parameters(), lr=self.learning_rate)


def main() -> None:
    with core.init() as context:
        hparams = {"learning_rate": 0.001, "width": 64, "dropout": 0.2, **context.info.hparams}
        pl.seed_everything(context.info.trial_seed)
        training, validation = load_digits()
        callback = TrialCallback(context)
        ranks = context.distributed
        trainer = pl.Trainer(
            max_epochs=hparams.get("epochs", 12),
            accelerator="cpu",
            devices=ranks.local_size,
            num_nodes=ranks.cross_size,
            strategy="ddp" if ranks.size > 1 else "auto",
            callbacks=[callback],
            logger=DetLogger(context),
            log_every_n_steps=10,
            enable_checkpointing=False,
            enable_progress_bar=False,
        )
        batch_size = hparams.get("global_batch_size", 64) // ranks.size
        trainer.fit(
            Digits(hparams["learning_rate"], hparams["width"], hparams["dropout"]),
            DataLoader(training, batch_size=batch_size, shuffle=True),
            DataLoader(validation, batch_size=len(validation)),
            ckpt_path=callback.latest_checkpoint(),
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
    images, labels = table[:, :-1] / 16, table[:, -1].long()
    validates = torch.arange(len(table)) % VALIDATION_EVERY == 0
    return (
        TensorDataset(images[~validates], labels[~validates]),
        TensorDataset(images[validates], labels[validates]),
    )


if __name__ == "__main__":
    main()
