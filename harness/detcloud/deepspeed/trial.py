"""DeepSpeedTrial, the class that users define."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from detcloud import pytorch
from detcloud.deepspeed.context import DeepSpeedTrialContext
from detcloud.shared.errors import DetcloudError

Batches = Iterator[Any] | None
"""A process's batches, None where its part of the model takes none."""


class DeepSpeedTrial(pytorch.PyTorchTrial):
    """Models in DeepSpeed's engines, which `__init__` gives to `context.wrap_model_engine`.

    Loaders give micro-batches; an engine does what else a PyTorchTrial does with its context.
    """

    framework = "detcloud.deepspeed"

    @abstractmethod
    def train_batch(self, dataloader_iter: Batches, epoch_idx: int, batch_idx: int) -> Any:
        """Train on the next micro-batch, or in a pipeline on as many as make a batch."""

    @abstractmethod
    def evaluate_batch(  # type: ignore[override]
        self, dataloader_iter: Batches, batch_idx: int
    ) -> dict[str, Any]:
        """Metrics of the next micro-batch, or in a pipeline of as many as make a batch."""

    def get_batch_length(self, batch: Any) -> int:
        """1: their loader keeps how long batches are."""
        return 1

    def save(self, context: DeepSpeedTrialContext, path: Path) -> None:
        """Write this process's part of the engines; override it with `load` for others."""
        for number, engine in enumerate(context.models):
            engine.save_checkpoint(str(path), tag=f"model{number}")

    def load(self, context: DeepSpeedTrialContext, load_path: Path) -> None:
        """Read what `save` wrote, after a warm start the weights alone."""
        for number, engine in enumerate(context.models):
            found, _ = engine.load_checkpoint(
                str(load_path), tag=f"model{number}", load_module_only=context.is_warm_start
            )
            if found is None:
                raise DetcloudError(f"the checkpoint has no engine model{number} that fits here")
