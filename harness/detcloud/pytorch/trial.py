"""PyTorchTrial, the class that users define."""

from __future__ import annotations

from abc import ABC, abstractmethod
from enum import Enum
from typing import Any, ClassVar

import torch

from detcloud.pytorch.batch_data import data_length
from detcloud.pytorch.callback import PyTorchCallback
from detcloud.pytorch.context import PyTorchTrialContext
from detcloud.pytorch.data import DataLoader
from detcloud.shared.errors import DetcloudError

TorchData = Any


class Reducer(Enum):
    """The ways to reduce validation metrics to one value; AVG weighs by the batches' lengths."""

    AVG = "avg"
    SUM = "sum"
    MAX = "max"
    MIN = "min"


class PyTorchTrial(ABC):
    """A model and how to train it.

    Wrap models, optimizers and schedulers with the context in `__init__`; train, build the loaders
    (`detcloud.pytorch.DataLoader`) and define exactly one of `evaluate_batch` and
    `evaluate_full_dataset`.
    """

    framework: ClassVar[str] = "detcloud.pytorch"
    """The module whose `init` and `Trainer` train the class."""

    @abstractmethod
    def __init__(self, context: PyTorchTrialContext) -> None: ...

    @abstractmethod
    def train_batch(
        self, batch: TorchData, epoch_idx: int, batch_idx: int
    ) -> torch.Tensor | dict[str, Any]:
        """Train on one batch; `batch_idx` counts from the trial's start.

        Returns numbers to average over the workload; a lone tensor is the `loss`.
        """

    @abstractmethod
    def build_training_data_loader(self) -> DataLoader: ...

    @abstractmethod
    def build_validation_data_loader(self) -> DataLoader: ...

    def evaluate_batch(self, batch: TorchData) -> dict[str, Any]:
        """Metrics of one validation batch, reduced with `evaluation_reducer`.

        A second parameter named `batch_idx`, where defined, gets the batch's number.
        """
        raise DetcloudError(f"{type(self).__name__} does not define evaluate_batch")

    def evaluate_full_dataset(self, data_loader: DataLoader) -> dict[str, Any]:
        """Metrics of the whole validation set; iterate over `data_loader` for its batches."""
        raise DetcloudError(f"{type(self).__name__} does not define evaluate_full_dataset")

    def evaluation_reducer(self) -> Reducer | dict[str, Reducer]:
        """The reducer for all metrics, or one for each by its name."""
        return Reducer.AVG

    def build_callbacks(self) -> dict[str, PyTorchCallback]:
        """Callbacks by a name of their own, under which checkpoints keep their state."""
        return {}

    def get_batch_length(self, batch: TorchData) -> int:
        """The number of records in a batch; override for batches of a type of your own."""
        try:
            return data_length(batch)
        except DetcloudError:
            raise DetcloudError(
                f"{type(self).__name__}: the number of records in a {type(batch).__name__} is "
                "unknown: override get_batch_length"
            ) from None
