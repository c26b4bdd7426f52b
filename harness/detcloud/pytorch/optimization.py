"""The models, optimizers and schedulers that a trial trains, and when each of them steps."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field
from enum import Enum
from typing import Any

import torch
from torch.amp.grad_scaler import GradScaler
from torch.optim.lr_scheduler import LRScheduler as TorchLRScheduler
from torch.optim.lr_scheduler import ReduceLROnPlateau

from detcloud.pytorch.distributed_model import DistributedModel
from detcloud.pytorch.plain_state import leave_out_objects, restore_types
from detcloud.shared.errors import DetcloudError, InvalidType

ClipGrads = Callable[[Iterable[torch.nn.Parameter]], Any]


class StepMode(Enum):
    """The moments at which the Trainer steps a scheduler."""

    STEP_EVERY_EPOCH = "step_every_epoch"
    STEP_EVERY_BATCH = "step_every_batch"
    STEP_EVERY_OPTIMIZER_STEP = "step_every_optimizer_step"
    MANUAL_STEP = "manual_step"


# Within the class below the name is its attribute.
_StepMode = StepMode


class LRScheduler:
    """A scheduler and when it steps, as `create_lr_scheduler` returns it; and Determined's place
    of `StepMode`.
    """

    StepMode = StepMode

    def __init__(
        self, scheduler: TorchLRScheduler, step_mode: _StepMode, frequency: int = 1
    ) -> None:
        self._scheduler, self.step_mode, self.frequency = scheduler, step_mode, frequency

    def get_scheduler(self) -> TorchLRScheduler:
        return self._scheduler

    def __getattr__(self, name: str) -> Any:
        # `step`, `get_last_lr` and the rest of torch's own.
        if name.startswith("_"):
            raise AttributeError(name)
        return getattr(self._scheduler, name)


# The names in checkpoints, which are Determined's.
MODELS = "models_state_dict"
OPTIMIZERS = "optimizers_state_dict"
SCHEDULERS = "lr_schedulers_state_dict"
SCALER = "scaler_state_dict"
_FORMER_PARTS = {
    "models": MODELS,
    "optimizers": OPTIMIZERS,
    "schedulers": SCHEDULERS,
    "scaler": SCALER,
}
# In checkpoints of code with one model of the `build_model` form.
_SINGLE_PARTS = {
    "model_state_dict": MODELS,
    "optimizer_state_dict": OPTIMIZERS,
    "lr_scheduler": SCHEDULERS,
    "lr_scheduler_state_dict": SCHEDULERS,
}


def rename_former_parts(state: dict[str, Any]) -> dict[str, Any]:
    """The state of a checkpoint with its parts under today's names."""
    named = {_FORMER_PARTS.get(name, name): part for name, part in state.items()}
    for former, name in _SINGLE_PARTS.items():
        if former in named:
            part = named.pop(former)
            named.setdefault(name, [part])
    return named


@dataclass
class Optimization:
    """The objects that a trial wrapped, in the order of the calls.

    `aggregation_frequency` batches make one optimizer step.
    """

    aggregation_frequency: int = 1
    average_aggregated_gradients: bool = True
    models: list[torch.nn.Module] = field(default_factory=list)
    # The same with gradients that are averaged over the processes, where there are several.
    wrapped_models: list[torch.nn.Module] = field(default_factory=list)
    optimizers: list[torch.optim.Optimizer] = field(default_factory=list)
    # Of the optimizers (by `id`) that have their own choice of `average_aggregated_gradients`.
    averages: dict[int, bool] = field(default_factory=dict)
    # Called with an optimizer's parameters before it steps.
    before_step: list[Callable[[list[torch.nn.Parameter]], None]] = field(default_factory=list)
    schedulers: list[tuple[TorchLRScheduler, StepMode, int]] = field(default_factory=list)
    scaler: GradScaler | None = None
    # The attributes of schedulers that the log says are left out of checkpoints.
    _told: set[str] = field(default_factory=set)

    def __post_init__(self) -> None:
        frequency = self.aggregation_frequency
        if isinstance(frequency, bool) or not isinstance(frequency, int) or frequency < 1:
            raise DetcloudError(
                f"optimizations.aggregation_frequency is {frequency!r}: an integer of at least 1 "
                "was expected"
            )

    def add_scheduler(self, scheduler: TorchLRScheduler, mode: StepMode, frequency: int) -> None:
        if not isinstance(mode, StepMode):
            raise InvalidType(f"step_mode is {mode!r}: a detcloud.pytorch.StepMode was expected")
        if frequency < 1:
            raise DetcloudError(f"frequency is {frequency}: expected at least 1")
        if isinstance(scheduler, ReduceLROnPlateau) and mode is not StepMode.MANUAL_STEP:
            raise DetcloudError(
                f"ReduceLROnPlateau was wrapped with {mode}: its step needs a metric, so use "
                "StepMode.MANUAL_STEP and call its step in the trial"
            )
        self.schedulers.append((scheduler, mode, frequency))

    def is_wrapped(self, optimizer: object) -> bool:
        return any(optimizer is wrapped for wrapped in self.optimizers)

    def step(
        self,
        optimizer: torch.optim.Optimizer,
        batch_idx: int,
        clip_grads: ClipGrads | None,
        auto_zero_grads: bool,
        scaler: GradScaler | None = None,
        apex_parameters: list[torch.nn.Parameter] | None = None,
        *,
        unscales: bool = False,
    ) -> bool:
        """Step the optimizer if `batch_idx` is the last batch of an aggregation; whether it is.

        With `unscales`, gradients that `scaler` scaled are clipped as they are without it; else the
        code unscales what it clips, and torch allows that once. `apex_parameters` are those that
        apex keeps in the place of the model's.

        Raises DetcloudError for `auto_zero_grads` off while several batches make one step.
        """
        is_aggregated = self.aggregation_frequency > 1
        if is_aggregated and not auto_zero_grads:
            raise DetcloudError(
                "step_optimizer was called with auto_zero_grads=False, but optimizations."
                f"aggregation_frequency is {self.aggregation_frequency}: gradients must be kept "
                "until their step and zeroed after it, so leave auto_zero_grads on"
            )
        if is_aggregated and not self.is_step(batch_idx):
            return False
        self._settle_gradients(optimizer)
        is_averaged = is_aggregated and self._averages(optimizer)
        if is_averaged or self.before_step or clip_grads is not None:
            parameters = _parameters(optimizer) if apex_parameters is None else apex_parameters
            unscaled = scaler if unscales else None
            self._change_gradients(optimizer, parameters, is_averaged, clip_grads, unscaled)
        if scaler is not None:
            scaler.step(optimizer)
        else:
            optimizer.step()
        if auto_zero_grads:
            optimizer.zero_grad(set_to_none=True)
        return True

    def _settle_gradients(self, optimizer: torch.optim.Optimizer) -> None:
        """Average the optimizer's gradients over the processes as far as that was not done."""
        models = [model for model in self._distributed_models() if not model.is_settled]
        if not models:
            return
        # To look for the model's parameters takes longer than many a layer.
        stepped = {id(parameter) for parameter in _parameters(optimizer)}
        for model in models:
            parameters = [one for one in model.parameters() if id(one) in stepped]
            if parameters:
                model.settle(parameters)

    def _distributed_models(self) -> Iterator[DistributedModel]:
        return (model for model in self.wrapped_models if isinstance(model, DistributedModel))

    def _change_gradients(
        self,
        optimizer: torch.optim.Optimizer,
        parameters: list[torch.nn.Parameter],
        is_averaged: bool,
        clip_grads: ClipGrads | None,
        scaler: GradScaler | None,
    ) -> None:
        """Average the gradients over an aggregation, if asked for, and have them changed."""
        if is_averaged:
            for parameter in parameters:
                if parameter.grad is not None:
                    parameter.grad.div_(self.aggregation_frequency)
        changes = [*self.before_step, *([clip_grads] if clip_grads is not None else [])]
        if changes and scaler is not None:
            scaler.unscale_(optimizer)
        for change in changes:
            change(parameters)

    def step_schedulers(self, batch_idx: int, epoch_length: int) -> None:
        """Step every scheduler that is due after the batch with this number.

        As in Determined, the rate changes with an optimizer's step alone: then the schedulers make
        the steps of all batches since the last one, and that of an epoch which ends before the
        optimizer's next step.
        """
        if not self.schedulers or not self.is_step(batch_idx):
            return
        for scheduler, mode, frequency in self.schedulers:
            before, after = self._counts_around_step(mode, batch_idx, epoch_length)
            for _ in range(after // frequency - before // frequency):
                scheduler.step()

    def _counts_around_step(
        self, mode: StepMode, batch_idx: int, epoch_length: int
    ) -> tuple[int, int]:
        """The count of a scheduler's mode before the optimizer step of a batch, and after it."""
        aggregated = self.aggregation_frequency
        match mode:
            case StepMode.STEP_EVERY_BATCH:
                return batch_idx + 1 - aggregated, batch_idx + 1
            case StepMode.STEP_EVERY_EPOCH:
                return batch_idx // epoch_length, (batch_idx + aggregated) // epoch_length
            case StepMode.STEP_EVERY_OPTIMIZER_STEP:
                return batch_idx // aggregated, (batch_idx + 1) // aggregated
            case StepMode.MANUAL_STEP:
                return 0, 0

    def set_training(self, training: bool) -> None:
        for model in self.wrapped_models or self.models:
            model.train(training)

    def prepare_batch(self, batch_idx: int) -> None:
        """Average the gradients of all processes only for a batch that is followed by a step."""
        for model in self._distributed_models():
            model.begin_batch(is_step=self.is_step(batch_idx))

    def gradients(self) -> list[dict[str, torch.Tensor]]:
        """The gradients that wait for their step, by the names of their parameters."""
        return [
            {name: x.grad for name, x in model.named_parameters() if x.grad is not None}
            for model in self.models
        ]

    def load_gradients(self, saved: list[dict[str, torch.Tensor]]) -> None:
        for model, gradients in zip(self.models, saved, strict=True):
            for name, parameter in model.named_parameters():
                grad = gradients.get(name)
                parameter.grad = None if grad is None else grad.to(parameter.device)

    def state_dict(self) -> dict[str, Any]:
        """The state that later batches depend on, with gradients that wait for their step."""
        return {
            MODELS: [model.state_dict() for model in self.models],
            OPTIMIZERS: [optimizer.state_dict() for optimizer in self.optimizers],
            SCHEDULERS: [self._scheduler_state(scheduler) for scheduler, _, _ in self.schedulers],
            "gradients": self.gradients(),
            SCALER: self.scaler.state_dict() if self.scaler is not None else {},
        }

    def load_models(self, state: dict[str, Any]) -> None:
        """Load the weights alone. Raises DetcloudError where the models do not match."""
        _check_counts("models", state[MODELS], self.models)
        for model, model_state in zip(self.models, state[MODELS], strict=True):
            try:
                model.load_state_dict(model_state)
            except RuntimeError as error:
                reason = " ".join(str(error).split())
                raise DetcloudError(
                    f"the checkpoint does not fit the trial's {type(model).__name__}: {reason}"
                ) from error

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.load_models(state)
        _check_counts("optimizers", state[OPTIMIZERS], self.optimizers)
        _check_counts("schedulers", state[SCHEDULERS], self.schedulers)
        for optimizer, saved_state in zip(self.optimizers, state[OPTIMIZERS], strict=True):
            optimizer.load_state_dict(saved_state)
        for (scheduler, _, _), saved_state in zip(self.schedulers, state[SCHEDULERS], strict=True):
            scheduler.load_state_dict(restore_types(scheduler.state_dict(), saved_state))
        if self.scaler is not None and state.get(SCALER):
            self.scaler.load_state_dict(state[SCALER])
        self.load_gradients(state["gradients"])

    def _scheduler_state(self, scheduler: TorchLRScheduler) -> dict[str, Any]:
        def tell(name: str, value: Any) -> None:
            place = f"{type(scheduler).__name__}.{name}"
            if place not in self._told:
                self._told.add(place)
                print(
                    f"[detcloud] checkpoints leave out {place}, a {type(value).__name__}: a run"
                    " that goes on from one has what the code makes then",
                    flush=True,
                )

        state: dict[str, Any] = leave_out_objects(scheduler.state_dict(), tell)
        return state

    def _averages(self, optimizer: torch.optim.Optimizer) -> bool:
        return self.averages.get(id(optimizer), self.average_aggregated_gradients)

    def is_step(self, batch_idx: int) -> bool:
        return (batch_idx + 1) % self.aggregation_frequency == 0


def _parameters(optimizer: torch.optim.Optimizer) -> list[torch.nn.Parameter]:
    return [parameter for group in optimizer.param_groups for parameter in group["params"]]


def _check_counts(name: str, stored: list[Any], wrapped: list[Any]) -> None:
    if len(stored) != len(wrapped):
        raise DetcloudError(
            f"the checkpoint holds {len(stored)} {name}, the trial wrapped {len(wrapped)}: the "
            "code has changed since it was written"
        )
