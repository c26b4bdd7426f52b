"""Hooks into training: override what you need, return the instances from `build_callbacks`."""

from __future__ import annotations

from pathlib import Path
from typing import Any


class PyTorchCallback:
    """Every hook does nothing by itself."""

    def on_trial_startup(self, first_batch_idx: int, checkpoint_uuid: str | None) -> None:
        """Before the data loaders are built; the batch training goes on with, and from what."""

    def on_trial_shutdown(self) -> None:
        """After the last workload of this process, also when training failed."""

    def on_training_start(self) -> None:
        """After a checkpoint was loaded, before the first batch."""

    def on_training_epoch_start(self, epoch_idx: int) -> None:
        """Before an epoch's first batch."""

    def on_training_epoch_end(self, epoch_idx: int) -> None:
        """After an epoch's last batch."""

    def on_training_workload_end(self, avg_metrics: dict[str, Any]) -> None:
        """After a training workload, with its averaged metrics."""

    def on_validation_start(self) -> None:
        """Before a validation."""

    def on_validation_epoch_start(self) -> None:
        """Before the first batch that `evaluate_batch` gets in a validation."""

    def on_validation_epoch_end(self, outputs: list[dict[str, Any]]) -> None:
        """After the last one, with what `evaluate_batch` returned for each."""

    def on_validation_end(self, metrics: dict[str, Any]) -> None:
        """After a validation, with its reduced metrics."""

    def on_checkpoint_load_start(self, checkpoint: dict[str, Any]) -> None:
        """Before the state in `checkpoint` is loaded."""

    def on_checkpoint_save_start(self, checkpoint: dict[str, Any]) -> None:
        """Before `checkpoint` is written; what is added must be tensors and plain data."""

    def on_checkpoint_write_end(self, checkpoint_dir: Path) -> None:
        """After the files were written; files added to the folder become part of it."""

    def on_checkpoint_upload_end(self, uuid: str) -> None:
        """After the checkpoint was stored and reported."""

    def state_dict(self) -> dict[str, Any]:
        """What to keep in checkpoints: tensors and plain data."""
        return {}

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Takes back what `state_dict` gave."""
