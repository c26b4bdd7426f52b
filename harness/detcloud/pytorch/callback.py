"""Hooks into training: override what you need, return instances from `build_callbacks`."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch


class PyTorchCallback:
    """Hooks into training, which do nothing by default.

    A hook may omit its last arguments.
    """

    def on_trial_startup(self, first_batch_idx: int, checkpoint_uuid: str | None) -> None:
        """Called before the data loaders are built, with the first batch and the checkpoint."""

    def on_trial_shutdown(self) -> None:
        """Called after the last workload of this process, also when training failed."""

    def on_training_start(self) -> None:
        """Called after a checkpoint was loaded, before the first batch."""

    def on_training_epoch_start(self, epoch_idx: int) -> None:
        """Called before an epoch's first batch."""

    def on_training_epoch_end(self, epoch_idx: int) -> None:
        """Called after an epoch's last batch."""

    def on_training_workload_end(
        self, avg_metrics: dict[str, Any], batch_metrics: list[dict[str, Any]]
    ) -> None:
        """Called after a training workload, with its averages and what each batch returned, in
        which tensors are NumPy arrays.
        """

    def on_before_optimizer_step(self, parameters: list[torch.nn.Parameter]) -> None:
        """Called in `step_optimizer` before a step, with the parameters of its optimizer."""

    def on_validation_start(self) -> None:
        """Called before a validation."""

    def on_validation_epoch_start(self) -> None:
        """Called before the first batch that `evaluate_batch` gets in a validation."""

    def on_validation_epoch_end(self, outputs: list[dict[str, Any]]) -> None:
        """Called after a validation's last batch, with what `evaluate_batch` returned for each, in
        which tensors are NumPy arrays.
        """

    def on_validation_end(self, metrics: dict[str, Any]) -> None:
        """Called after a validation with its reduced metrics, before they are reported: what the
        chief's callbacks change or add is reported, and may be the searcher's metric.
        """

    def on_checkpoint_load_start(self, checkpoint: dict[str, Any]) -> None:
        """Called before the state in `checkpoint` is loaded."""

    def on_checkpoint_save_start(self, checkpoint: dict[str, Any]) -> None:
        """Called before `checkpoint` is written; what is added must be tensors and plain data."""

    def on_checkpoint_write_end(self, checkpoint_dir: Path) -> None:
        """Called after the files were written; files added to the folder become part of it."""

    def on_checkpoint_upload_end(self, uuid: str) -> None:
        """Called after the checkpoint was stored and reported."""

    # The names that some hooks had in Determined 0.12; both are called.

    def on_validation_step_start(self) -> None:
        """Called before `on_validation_start`."""

    def on_validation_step_end(self, metrics: dict[str, Any]) -> None:
        """Called before `on_validation_end`."""

    def on_checkpoint_end(self, checkpoint_dir: Path) -> None:
        """Called before `on_checkpoint_write_end`."""

    def state_dict(self) -> dict[str, Any]:
        """The state to keep in checkpoints: tensors and plain data."""
        return {}

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Restore the state that `state_dict` gave."""


class FormerCallback(PyTorchCallback):
    """A callback of Determined's, whose hooks get the names of folders instead of paths."""


class ClipGradsL2Norm(PyTorchCallback):
    """Clips the gradients of every step to a norm."""

    def __init__(self, clip_value: float) -> None:
        self._clip_value = clip_value

    def on_before_optimizer_step(self, parameters: list[torch.nn.Parameter]) -> None:
        torch.nn.utils.clip_grad_norm_(parameters, self._clip_value)


class ClipGradsL2Value(PyTorchCallback):
    """Clips each number of the gradients of every step to a range around 0."""

    def __init__(self, clip_value: float) -> None:
        self._clip_value = clip_value

    def on_before_optimizer_step(self, parameters: list[torch.nn.Parameter]) -> None:
        torch.nn.utils.clip_grad_value_(parameters, self._clip_value)
