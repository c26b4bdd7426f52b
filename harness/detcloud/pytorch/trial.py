"""PyTorchTrial, the class that users define to train a model."""

from __future__ import annotations

from abc import ABC, abstractmethod
from enum import Enum
from typing import Any, ClassVar

import torch

from detcloud.pytorch.batch_data import data_length
from detcloud.pytorch.callback import PyTorchCallback
from detcloud.pytorch.context import PyTorchTrialContext
from detcloud.pytorch.data import DataLoader
from detcloud.shared.articles import with_article
from detcloud.shared.errors import DetcloudError

TorchData = Any


class Reducer(Enum):
    """The ways to reduce the values of a validation metric to one number."""

    AVG = "avg"
    """The mean over batches. Every batch has the same weight, as in Determined."""
    SUM = "sum"
    """The sum over batches."""
    MAX = "max"
    """The largest value."""
    MIN = "min"
    """The smallest value."""


class PyTorchTrial(ABC):
    """A model and the code that trains it.

    In `__init__`, wrap models, optimizers and schedulers with the context. Define the training,
    both loaders (`detcloud.pytorch.DataLoader`), and exactly one of `evaluate_batch` and
    `evaluate_full_dataset`.
    """

    framework: ClassVar[str] = "detcloud.pytorch"
    """The module that provides `init` and `Trainer` for this class."""

    @abstractmethod
    def __init__(self, context: PyTorchTrialContext) -> None:
        """Wrap models, optimizers and schedulers with `context`."""

    @abstractmethod
    def train_batch(
        self, batch: TorchData, epoch_idx: int, batch_idx: int
    ) -> torch.Tensor | dict[str, Any]:
        """Train on a batch, and return metrics by name, or a tensor as the metric `loss`.

        The metrics are averaged over the training workload. A metric that is None is left out.

        Args:
            batch: a batch of the training loader, on the trial's device.
            epoch_idx: the number of the epoch, from 0.
            batch_idx: the number of the batch since the trial's start, from 0.
        """

    @abstractmethod
    def build_training_data_loader(self) -> DataLoader:
        """Return the loader of the training data, of all processes together.

        Called once in each process. The Trainer gives each process a share of the batches.
        """

    @abstractmethod
    def build_validation_data_loader(self) -> DataLoader:
        """Return the loader of the validation data, of all processes together.

        Called once in each process. For `evaluate_batch`, each process gets a share of the batches.
        """

    def evaluate_batch(self, batch: TorchData) -> dict[str, Any]:
        """Return the metrics of a validation batch; `evaluation_reducer` combines all batches.

        Every batch must return the same names. If the method has a second parameter `batch_idx`, it
        receives the number of the batch: from 0 in each validation, counted in each process.

        Args:
            batch: a batch of the validation loader, on the trial's device.

        Raises:
            DetcloudError: the trial does not define the method.
        """
        raise DetcloudError(f"{type(self).__name__} does not define evaluate_batch")

    def evaluate_full_dataset(self, data_loader: DataLoader) -> dict[str, Any]:
        """Return the metrics of the whole validation set, computed on the chief.

        Move the batches with `context.to_device`.

        Args:
            data_loader: the loader that `build_validation_data_loader` returned; in test mode with
                only the first batch.

        Raises:
            DetcloudError: the trial does not define the method.
        """
        raise DetcloudError(f"{type(self).__name__} does not define evaluate_full_dataset")

    def evaluation_reducer(self) -> Reducer | dict[str, Reducer]:
        """Return the reducer for all metrics of `evaluate_batch`, or a reducer for each name.

        By default Reducer.AVG.
        """
        return Reducer.AVG

    def build_callbacks(self) -> dict[str, PyTorchCallback]:
        """Return the callbacks by name, by default an empty dict.

        The hooks are called in this order. Checkpoints store each callback's state under the name.
        """
        return {}

    def get_batch_length(self, batch: TorchData) -> int:
        """Return the number of records in a batch. Override this for your own types of batches.

        Args:
            batch: a batch of a loader.

        Raises:
            DetcloudError: the number is unknown.
        """
        try:
            return data_length(batch)
        except DetcloudError:
            raise DetcloudError(
                f"{type(self).__name__}: the number of records in "
                f"{with_article(type(batch).__name__)} is unknown: override get_batch_length"
            ) from None
