"""The objects that a trial wraps: models, optimizers, schedulers, a scaler and reducers."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, TypeVar, cast

import torch
from torch.amp.grad_scaler import GradScaler
from torch.optim.lr_scheduler import LRScheduler as TorchLRScheduler

from detcloud.pytorch.gang import compress_gradients, distribute_model
from detcloud.pytorch.optimization import Optimization, StepMode
from detcloud.pytorch.reducers import MetricReducer, Reducers
from detcloud.shared.errors import DetcloudError

Model = TypeVar("Model", bound=torch.nn.Module)
Optimizer = TypeVar("Optimizer", bound=torch.optim.Optimizer)
Scheduler = TypeVar("Scheduler", bound=TorchLRScheduler)
Wrapped = TypeVar("Wrapped")


class WrappedObjects:
    """The objects that a trial wraps, for checkpoints and steps. A base of PyTorchTrialContext."""

    def __init__(
        self,
        device: torch.device,
        options: Mapping[str, Any],
        aggregation_frequency: int | None = None,
    ) -> None:
        """Create the objects' collection for models on `device`.

        `options` is the section `optimizations`. `aggregation_frequency` replaces the configured
        number of batches per optimizer step. Raises DetcloudError unless the number is an integer
        of at least 1.
        """
        self.device = device
        self.optimization = Optimization(
            aggregation_frequency or options.get("aggregation_frequency", 1),
            options.get("average_aggregated_gradients", True),
        )
        self.reducers = Reducers()
        self._bucket_mib: int | None = options.get("tensor_fusion_threshold") or None
        self._compresses_gradients = bool(options.get("gradient_compression"))

    def wrap_model(self, model: Model) -> Model:
        """Move the model to the device, add the model to checkpoints, and return the model to
        train.

        With several processes, the returned model averages gradients over all processes, and every
        process must wrap the model. The processes wait for each other. In a single process, or
        without trainable parameters, the moved model itself is returned.

        Args:
            model: the model.

        Raises:
            RuntimeError: the models of the processes differ.
        """
        moved = model.to(self.device)
        wrapped: Any = distribute_model(moved, self.device, self._bucket_mib)
        if self._compresses_gradients:
            compress_gradients([wrapped])
        self.optimization.models.append(moved)
        self.optimization.wrapped_models.append(wrapped)
        return cast("Model", wrapped)

    def wrap_optimizer(
        self,
        optimizer: Optimizer,
        backward_passes_per_step: int = 1,
        fp16_compression: bool | None = None,
        average_aggregated_gradients: bool | None = None,
    ) -> Optimizer:
        """Add the optimizer's state to checkpoints, and return the optimizer.

        Args:
            optimizer: the optimizer of wrapped models.
            backward_passes_per_step: without effect.
            fp16_compression: whether models with these parameters exchange gradients in half
                precision. None for `optimizations.gradient_compression` of the configuration.
            average_aggregated_gradients: whether gradients of several batches are averaged instead
                of added up. None for the configuration's value.

        Raises:
            DetcloudError: `backward_passes_per_step` is below 1.
        """
        if isinstance(backward_passes_per_step, bool) or backward_passes_per_step < 1:
            raise DetcloudError(
                f"backward_passes_per_step is {backward_passes_per_step!r}: expected an integer of "
                "at least 1"
            )
        self.optimization.optimizers.append(optimizer)
        if average_aggregated_gradients is not None:
            self.optimization.averages[id(optimizer)] = average_aggregated_gradients
        if fp16_compression:
            parameters = [each for group in optimizer.param_groups for each in group["params"]]
            compress_gradients(self.optimization.wrapped_models, parameters)
        return optimizer

    def wrap_lr_scheduler(
        self, lr_scheduler: Scheduler, step_mode: StepMode, frequency: int = 1
    ) -> Scheduler:
        """Step the scheduler during training, and return the scheduler. Checkpoints contain its
        state.

        Args:
            lr_scheduler: a scheduler of a wrapped optimizer.
            step_mode: the events at which the Trainer steps the scheduler: batches, steps of the
                optimizer or epochs. With MANUAL_STEP, only the trial's code steps the scheduler.
            frequency: the number of events per step.

        Raises:
            InvalidType: `step_mode` is no StepMode.
            DetcloudError: the optimizer is not wrapped, the frequency is below 1, or a
                ReduceLROnPlateau has another mode than MANUAL_STEP.
        """
        optimizer = getattr(lr_scheduler, "optimizer", None)
        if optimizer is not None and not self.optimization.is_wrapped(optimizer):
            raise DetcloudError(
                f"{type(lr_scheduler).__name__} was made for an optimizer that is not wrapped: "
                "give it what context.wrap_optimizer returned"
            )
        self.optimization.add_scheduler(lr_scheduler, step_mode, frequency)
        return lr_scheduler

    def wrap_scaler(self, scaler: GradScaler) -> GradScaler:
        """Add the scaler of mixed precision to checkpoints, and return the scaler.

        Pass the scaler to `step_optimizer`, then call its `update`. To clip gradients, call its
        `unscale_` before.

        Args:
            scaler: the scaler of all optimizers.

        Raises:
            DetcloudError: a scaler is wrapped already, or `use_amp` was called.
        """
        if self.optimization.scaler is not None:
            raise DetcloudError("wrap_scaler was called twice: a trial has one scaler")
        self.optimization.scaler = scaler
        return scaler

    def wrap_reducer(
        self,
        reducer: MetricReducer | type[MetricReducer] | Callable[[list[Any]], Any],
        name: str | None = None,
        for_training: bool = True,
        for_validation: bool = True,
    ) -> MetricReducer:
        """Report a metric that the trial collects over batches and processes, and return the
        reducer.

        Of equal names, the reducer that was wrapped later counts.

        Args:
            reducer: a MetricReducer, a subclass of MetricReducer, or a function of the list of all
                values. For a function, add values with `update(value)` of the returned reducer.
            name: the metric's name. With None, the reducer returns a dict of metrics.
            for_training: whether the metric is reported with training workloads.
            for_validation: whether the metric is reported with validations.

        Raises:
            InvalidType: `reducer` is of another kind.
            InvalidValue: the reducer is wrapped already.
        """
        return self.reducers.wrap(reducer, name, for_training, for_validation)

    @property
    def models(self) -> list[torch.nn.Module]:
        """The wrapped models to train, in the order of the calls."""
        return self.optimization.wrapped_models

    @property
    def optimizers(self) -> list[torch.optim.Optimizer]:
        """The wrapped optimizers, in the order of the calls."""
        return self.optimization.optimizers

    @property
    def lr_schedulers(self) -> list[TorchLRScheduler]:
        """The wrapped schedulers, in the order of the calls."""
        return [scheduler for scheduler, _, _ in self.optimization.schedulers]

    def get_model(self) -> torch.nn.Module:
        """Return the first wrapped model.

        Raises:
            DetcloudError: no model is wrapped.
        """
        return _first_object(self.models, "model")

    def get_optimizer(self) -> torch.optim.Optimizer:
        """Return the first wrapped optimizer.

        Raises:
            DetcloudError: no optimizer is wrapped.
        """
        return _first_object(self.optimizers, "optimizer")

    def get_lr_scheduler(self) -> TorchLRScheduler | None:
        """Return the first wrapped scheduler. Return None without a scheduler."""
        return next(iter(self.lr_schedulers), None)


def _first_object(wrapped: list[Wrapped], kind: str) -> Wrapped:
    """Return the first of the wrapped objects. Raises DetcloudError, naming `kind`, without any."""
    if not wrapped:
        raise DetcloudError(f"the trial has no {kind} yet: wrap one, or define build_model")
    return wrapped[0]
