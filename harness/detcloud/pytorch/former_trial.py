"""Trials in the form of Determined 0.12, in which the Trainer owns the model.

Such a trial defines `build_model()`, `optimizer(model)` and optionally
`create_lr_scheduler(optimizer)`, which returns an LRScheduler.

The Trainer computes gradients of the `loss` that `train_batch(batch, model, epoch_idx, batch_idx)`
returns. `evaluate_batch(batch, model)` and `evaluate_full_dataset(data_loader, model)` get the
model, too. Trials that wrap their models themselves may also have methods with these arguments.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

from detcloud.pytorch.callback import PyTorchCallback
from detcloud.pytorch.context import PyTorchTrialContext
from detcloud.pytorch.data import DataLoader
from detcloud.pytorch.hooks import argument_count, bind_names
from detcloud.pytorch.optimization import LRScheduler
from detcloud.pytorch.trial import PyTorchTrial, Reducer
from detcloud.shared.articles import with_article
from detcloud.shared.errors import DetcloudError


def to_current_form(trial: PyTorchTrial, context: PyTorchTrialContext) -> PyTorchTrial:
    """Return the trial, or an adapter if `train_batch` takes the model.

    `build_model` alone does not decide: it may be a helper of a trial in the present form. An
    adapter of a trial with `build_model` wraps the model with the context. Raises DetcloudError if
    the trial then defines no optimizer or an invalid scheduler, and errors of the trial's code.
    """
    count = argument_count(trial.train_batch)
    if hasattr(trial, "build_model") and count in (None, 4):
        return FormerTrial(context, trial)
    return ModelTakingTrial(context, trial) if count == 4 else trial


class FormerTrial(PyTorchTrial):
    """The adapter of a trial in the former form.

    The constructor builds and wraps the trial's model, optimizer and scheduler. Raises
    DetcloudError if the trial defines no optimizer or an invalid scheduler.
    """

    def __init__(self, context: PyTorchTrialContext, trial: Any) -> None:
        """Build and wrap the trial's objects, unless a model is wrapped already.

        Raises DetcloudError if the trial defines no optimizer or an invalid scheduler, and errors
        of the trial's code.
        """
        if not hasattr(trial, "optimizer"):
            raise DetcloudError(
                f"{type(trial).__name__} defines build_model and no optimizer: define "
                "optimizer(model), or wrap the model with the context in __init__"
            )
        self.trial = trial
        self._context, self._train = context, _train_function(trial)
        # For a second Trainer of the same trial, the model is wrapped already.
        if not context.models:
            context.wrap_model(trial.build_model())
            context.wrap_optimizer(trial.optimizer(context.get_model()))
            self._wrap_scheduler()

    def _wrap_scheduler(self) -> None:
        """Create and wrap the trial's scheduler, if any.

        Raises DetcloudError if `create_lr_scheduler` returns anything but an LRScheduler or None.
        Also for an optimizer that is not wrapped, a frequency below 1, and a ReduceLROnPlateau
        without MANUAL_STEP. Raises errors of the trial's code.
        """
        create = getattr(self.trial, "create_lr_scheduler", None)
        scheduler = create(self._context.get_optimizer()) if create is not None else None
        if scheduler is None:
            return
        if not isinstance(scheduler, LRScheduler):
            raise DetcloudError(
                f"create_lr_scheduler returned {with_article(type(scheduler).__name__)}: an "
                "LRScheduler(scheduler, step_mode=...) or None was expected"
            )
        self._context.wrap_lr_scheduler(
            scheduler.get_scheduler(), scheduler.step_mode, scheduler.frequency
        )

    def train_batch(self, batch: Any, epoch_idx: int, batch_idx: int) -> dict[str, Any]:
        """Train the model on a batch, step the optimizer if due, and return the metrics.

        A tensor becomes the metric `loss`. Raises DetcloudError if the trial returns no loss, and
        errors of the trial's method.
        """
        context = self._context
        metrics = self._train(batch, context.get_model(), epoch_idx, batch_idx)
        named = {"loss": metrics} if isinstance(metrics, torch.Tensor) else metrics
        if not isinstance(named, dict) or "loss" not in named:
            raise DetcloudError(
                f"{type(self.trial).__name__}.train_batch returned no loss: expected a tensor or a "
                "dict with `loss`"
            )
        context.backward(named["loss"])
        context.step_optimizer(context.get_optimizer())
        return named

    def evaluate_batch(self, batch: Any) -> dict[str, Any]:
        """Return the trial's metrics of a validation batch."""
        metrics: dict[str, Any] = self._evaluate("batch", self.trial.evaluate_batch, batch)
        return metrics

    def evaluate_full_dataset(self, data_loader: DataLoader) -> dict[str, Any]:
        """Return the trial's metrics of the whole validation set."""
        evaluate = self.trial.evaluate_full_dataset
        metrics: dict[str, Any] = self._evaluate("data_loader", evaluate, data_loader)
        return metrics

    def _evaluate(self, name: str, method: Callable[..., Any], data: Any) -> Any:
        """Call a method of evaluation, with the model if the method accepts a second argument.

        `name` is the name of the method's first parameter. Raises errors of the method.
        """
        if argument_count(method) == 1:
            return method(data)
        return bind_names(method, name, "model")(data, self._context.get_model())

    def build_training_data_loader(self) -> DataLoader:
        """Return the result of the trial's `build_training_data_loader`."""
        loader: DataLoader = self.trial.build_training_data_loader()
        return loader

    def build_validation_data_loader(self) -> DataLoader:
        """Return the result of the trial's `build_validation_data_loader`."""
        loader: DataLoader = self.trial.build_validation_data_loader()
        return loader

    def evaluation_reducer(self) -> Reducer | dict[str, Reducer]:
        """Return the result of the trial's `evaluation_reducer`."""
        reducer: Reducer | dict[str, Reducer] = self.trial.evaluation_reducer()
        return reducer

    def build_callbacks(self) -> dict[str, PyTorchCallback]:
        """Return the result of the trial's `build_callbacks`."""
        callbacks: dict[str, PyTorchCallback] = self.trial.build_callbacks()
        return callbacks

    def get_batch_length(self, batch: Any) -> int:
        """Return the result of the trial's `get_batch_length`."""
        length: int = self.trial.get_batch_length(batch)
        return length


class ModelTakingTrial(FormerTrial):
    """The adapter of a trial with methods that take the model, and with its own steps.

    The trial wraps models and steps optimizers itself. Trials had this form in the releases of 0.12
    in which the context got its methods.
    """

    def __init__(self, context: PyTorchTrialContext, trial: Any) -> None:
        """Create the adapter. Wrap nothing: the trial has wrapped its model."""
        self.trial = trial
        self._context, self._train = context, _train_function(trial)

    def train_batch(self, batch: Any, epoch_idx: int, batch_idx: int) -> dict[str, Any]:
        """Return the result of the trial's `train_batch`. The trial itself steps the optimizer.

        Raises DetcloudError if the trial has wrapped no model, and errors of the trial's method.
        """
        model = self._context.get_model()
        metrics: dict[str, Any] = self._train(batch, model, epoch_idx, batch_idx)
        return metrics


def _train_function(trial: Any) -> Callable[..., Any]:
    """Return the trial's `train_batch`, which takes batch, model, epoch and number of the batch."""
    return bind_names(trial.train_batch, "batch", "model", "epoch_idx", "batch_idx")
