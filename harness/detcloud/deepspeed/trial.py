"""DeepSpeedTrial, the base class of users' trials with DeepSpeed."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from detcloud import pytorch
from detcloud.deepspeed.context import DeepSpeedTrialContext
from detcloud.shared.errors import DetcloudError

Batches = Iterator[Any] | None
"""The batches of a process; None if the process's part of the model needs no data."""


class DeepSpeedTrial(pytorch.PyTorchTrial):
    """A trial whose models are DeepSpeed engines.

    Pass each engine to `context.wrap_model_engine` in `__init__`. The loaders yield micro-batches.
    The engines replace the optimizers and schedulers that a PyTorchTrial wraps with its context.
    """

    framework = "detcloud.deepspeed"

    @abstractmethod
    def train_batch(self, dataloader_iter: Batches, epoch_idx: int, batch_idx: int) -> Any:
        """Train on the next micro-batch and return the metrics.

        With a pipeline, or without automatic gradient accumulation, train on all micro-batches of a
        batch.

        Args:
            dataloader_iter: the iterator over micro-batches; None in a process without data.
            epoch_idx: the number of the epoch, from 0.
            batch_idx: the number of the batch since the trial's start, from 0.
        """

    @abstractmethod
    def evaluate_batch(  # type: ignore[override]
        self, dataloader_iter: Batches, batch_idx: int
    ) -> dict[str, Any]:
        """Return the metrics of the next micro-batch; with a pipeline, of all micro-batches of a
        batch.

        Args:
            dataloader_iter: the iterator over micro-batches; None in a process without data.
            batch_idx: the number of the batch in this validation, from 0.
        """

    def get_batch_length(self, batch: Any) -> int:
        """Return 1; the loaders define the number of records in a micro-batch."""
        return 1

    def save(self, context: DeepSpeedTrialContext, path: Path) -> None:
        """Write this process's part of every engine. Override this together with `load`.

        Args:
            context: the trial's context.
            path: the folder of the checkpoint.
        """
        for number, engine in enumerate(context.models):
            engine.save_checkpoint(str(path), tag=f"model{number}")

    def load(self, context: DeepSpeedTrialContext, load_path: Path) -> None:
        """Load this process's part of every engine from the folder that `save` wrote.

        After a warm start, load only the weights.

        Args:
            context: the trial's context.
            load_path: the folder of the checkpoint.

        Raises:
            DetcloudError: an engine is missing.
        """
        for number, engine in enumerate(context.models):
            found, _ = engine.load_checkpoint(
                str(load_path), tag=f"model{number}", load_module_only=context.is_warm_start
            )
            if found is None:
                raise DetcloudError(f"the checkpoint has no engine model{number} that fits here")
