"""Callbacks of training: override hooks, and return instances from `build_callbacks`."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch


class PyTorchCallback:
    """The hooks of training. By default they do nothing.

    An overriding method may leave out its last parameters. Hooks run in every process of the trial;
    hooks of storing a checkpoint run only on the chief, except `on_checkpoint_upload_end`. An
    exception of a hook ends the training.
    """

    def on_trial_startup(self, first_batch_idx: int, checkpoint_uuid: str | None) -> None:
        """Called before the data loaders are built.

        Args:
            first_batch_idx: the number of trained batches; 0 if only weights are loaded.
            checkpoint_uuid: the checkpoint to load, or None.
        """

    def on_trial_shutdown(self) -> None:
        """Called at the end of `fit`, even after an error, unless `on_trial_startup` failed."""

    def on_training_start(self) -> None:
        """Called before the first batch or validation, after the checkpoint, if any, was loaded."""

    def on_training_epoch_start(self, epoch_idx: int) -> None:
        """Called before the first batch of an epoch. Epochs count from 0.

        Not called for an epoch within which the training resumes.
        """

    def on_training_epoch_end(self, epoch_idx: int) -> None:
        """Called after the last batch of an epoch."""

    def on_training_workload_end(
        self, avg_metrics: dict[str, Any], batch_metrics: list[dict[str, Any]]
    ) -> None:
        """Called after a training workload was reported.

        Args:
            avg_metrics: the reported metrics.
            batch_metrics: the metrics of each batch that this process has trained in the workload,
                with NumPy arrays instead of tensors.
        """

    def on_before_optimizer_step(self, parameters: list[torch.nn.Parameter]) -> None:
        """Called in `step_optimizer` before a step, with the optimizer's parameters.

        Gradients are already averaged and, with `use_amp`, unscaled. The hook may change them.
        """

    def on_validation_start(self) -> None:
        """Called before a validation, when the models are already in evaluation mode.

        After a request with a deadline stops the validation, the resumed trial calls this again.
        """

    def on_validation_epoch_start(self) -> None:
        """Called before the first call of `evaluate_batch` in a validation.

        Not called for a trial with `evaluate_full_dataset`.
        """

    def on_validation_epoch_end(self, outputs: list[dict[str, Any]]) -> None:
        """Called after the last call of `evaluate_batch` in a validation.

        Not called for a trial with `evaluate_full_dataset`, and after a request that stops the
        validation. `outputs` has the metrics of each batch of this process, with NumPy arrays
        instead of tensors.
        """

    def on_validation_end(self, metrics: dict[str, Any]) -> None:
        """Called after a validation and before the report, with the reduced metrics.

        The hook may change `metrics` in place. The chief's `metrics` are reported, and the searcher
        uses them.
        """

    def on_checkpoint_load_start(self, checkpoint: dict[str, Any]) -> None:
        """Called in every process with the state of a checkpoint before loading.

        The hook may change the state in place. `checkpoint` is the content of the checkpoint's
        file: `models_state_dict`, `optimizers_state_dict`, `lr_schedulers_state_dict` (a list of
        states each), `scaler_state_dict`, `callbacks` (a state by name), the training's own
        entries, and entries that `on_checkpoint_save_start` added. A warm start loads only
        `models_state_dict`; other entries may be missing then.
        """

    def on_checkpoint_save_start(self, checkpoint: dict[str, Any]) -> None:
        """Called on the chief with the state before a checkpoint is written.

        The hook may change the state in place, and add tensors and plain data by new names.
        `on_checkpoint_load_start` gets the result and describes the entries.
        """

    def on_checkpoint_write_end(self, checkpoint_dir: Path) -> None:
        """Called on the chief after the state was written, and before the checkpoint is stored.

        Files that the hook adds to the folder are stored too.
        """

    def on_checkpoint_upload_end(self, uuid: str) -> None:
        """Called after the checkpoint was stored and reported, in every process."""

    # Names of hooks in Determined 0.12. If a callback defines both names, both are called.

    def on_validation_step_start(self) -> None:
        """Former name of `on_validation_start`, which is called after this method."""

    def on_validation_step_end(self, metrics: dict[str, Any]) -> None:
        """Former name of `on_validation_end`, which is called after this method."""

    def on_checkpoint_end(self, checkpoint_dir: Path) -> None:
        """Former name of `on_checkpoint_write_end`, which is called after this method."""

    def state_dict(self) -> dict[str, Any]:
        """Return the callback's state for checkpoints: tensors and plain data. By default empty."""
        return {}

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Restore a state that `state_dict` returned. By default, do nothing.

        Not called if the checkpoint has no state of this callback, and if only weights are loaded.
        """


class FormerCallback(PyTorchCallback):
    """A callback of Determined's API, with folders as text instead of paths."""


class ClipGradsL2Norm(PyTorchCallback):
    """Clips the gradients of each optimizer step to the total norm `clip_value`."""

    def __init__(self, clip_value: float) -> None:
        self._clip_value = clip_value

    def on_before_optimizer_step(self, parameters: list[torch.nn.Parameter]) -> None:
        """Clip the total norm of the parameters' gradients, in place."""
        torch.nn.utils.clip_grad_norm_(parameters, self._clip_value)


class ClipGradsL2Value(PyTorchCallback):
    """Clips each element of the gradients of each step to -`clip_value` to `clip_value`."""

    def __init__(self, clip_value: float) -> None:
        self._clip_value = clip_value

    def on_before_optimizer_step(self, parameters: list[torch.nn.Parameter]) -> None:
        """Clip each element of the parameters' gradients, in place."""
        torch.nn.utils.clip_grad_value_(parameters, self._clip_value)
