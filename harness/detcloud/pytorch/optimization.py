"""The models, optimizers and schedulers of a trial, and the moments at which they step."""

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
from detcloud.pytorch.restricted_pickle import without_unreadable
from detcloud.shared.articles import with_article
from detcloud.shared.errors import DetcloudError, InvalidType

ClipGrads = Callable[[Iterable[torch.nn.Parameter]], Any]


class StepMode(Enum):
    """The moments at which the Trainer steps a scheduler."""

    STEP_EVERY_EPOCH = "step_every_epoch"
    """After every epoch."""
    STEP_EVERY_BATCH = "step_every_batch"
    """After every batch."""
    STEP_EVERY_OPTIMIZER_STEP = "step_every_optimizer_step"
    """After every step of the optimizer."""
    MANUAL_STEP = "manual_step"
    """Never: the trial's code steps the scheduler."""


# In the class below, `StepMode` is an attribute.
_StepMode = StepMode


class LRScheduler:
    """A scheduler and a step mode, as `create_lr_scheduler` returns.

    Trials written for early versions of Determined use this class. In other trials, call
    `context.wrap_lr_scheduler`. Attributes that this class lacks are read from the scheduler.
    """

    StepMode = StepMode

    def __init__(
        self, scheduler: TorchLRScheduler, step_mode: _StepMode, frequency: int = 1
    ) -> None:
        """Pair a scheduler with a step mode.

        Args:
            scheduler: torch's scheduler.
            step_mode: the events at which the Trainer steps the scheduler.
            frequency: the number of events per step.
        """
        self._scheduler, self.step_mode, self.frequency = scheduler, step_mode, frequency

    def get_scheduler(self) -> TorchLRScheduler:
        """Return torch's scheduler."""
        return self._scheduler

    def __getattr__(self, name: str) -> Any:
        """Return a public attribute of torch's scheduler, for example `step` or `get_last_lr`.

        Raises AttributeError for unknown and private names.
        """
        # `step`, `get_last_lr` and other attributes of torch's scheduler.
        if name.startswith("_"):
            raise AttributeError(name)
        return getattr(self._scheduler, name)


# The names of parts in checkpoints, as in Determined.
MODELS = "models_state_dict"
OPTIMIZERS = "optimizers_state_dict"
SCHEDULERS = "lr_schedulers_state_dict"
SCALER = "scaler_state_dict"
_DDP_PREFIX = "module."
_FORMER_PARTS = {
    "models": MODELS,
    "optimizers": OPTIMIZERS,
    "schedulers": SCHEDULERS,
    "scaler": SCALER,
}
# The names in checkpoints of trials that define `build_model`.
_SINGLE_PARTS = {
    "model_state_dict": MODELS,
    "optimizer_state_dict": OPTIMIZERS,
    "lr_scheduler": SCHEDULERS,
    "lr_scheduler_state_dict": SCHEDULERS,
}


def rename_former_parts(state: dict[str, Any]) -> dict[str, Any]:
    """Return a checkpoint's state with the present names of parts. Parts without a former name
    stay.
    """
    named = {_FORMER_PARTS.get(name, name): part for name, part in state.items()}
    for former, name in _SINGLE_PARTS.items():
        if former in named:
            part = named.pop(former)
            named.setdefault(name, [part])
    return named


@dataclass
class Optimization:
    """The objects that a trial wrapped, in the order of the calls.

    Raises DetcloudError if `aggregation_frequency` is no integer of at least 1.
    """

    aggregation_frequency: int = 1
    """The number of batches per optimizer step."""
    average_aggregated_gradients: bool = True
    models: list[torch.nn.Module] = field(default_factory=list)
    # The models to train, which average gradients in a trial of several processes.
    wrapped_models: list[torch.nn.Module] = field(default_factory=list)
    optimizers: list[torch.optim.Optimizer] = field(default_factory=list)
    # The value of `average_aggregated_gradients` for optimizers (by `id`) that have their own.
    averages: dict[int, bool] = field(default_factory=dict)
    # Called with an optimizer's parameters before it steps.
    before_step: list[Callable[[list[torch.nn.Parameter]], None]] = field(default_factory=list)
    schedulers: list[tuple[TorchLRScheduler, StepMode, int]] = field(default_factory=list)
    scaler: GradScaler | None = None
    # Attributes of schedulers for which a notice was printed: checkpoints leave them out.
    _told: set[str] = field(default_factory=set)

    def __post_init__(self) -> None:
        """Raise DetcloudError unless `aggregation_frequency` is an integer of at least 1."""
        frequency = self.aggregation_frequency
        if isinstance(frequency, bool) or not isinstance(frequency, int) or frequency < 1:
            raise DetcloudError(
                f"optimizations.aggregation_frequency is {frequency!r}: an integer of at least 1 "
                "was expected"
            )

    def add_scheduler(self, scheduler: TorchLRScheduler, mode: StepMode, frequency: int) -> None:
        """Add a scheduler that steps at every `frequency`th event of `mode`.

        Raises InvalidType unless `mode` is a StepMode. Raises DetcloudError for a frequency below
        1, and for a ReduceLROnPlateau without MANUAL_STEP, because its step needs a metric.
        """
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
        """Return whether the trial has wrapped this optimizer."""
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
        """Step the optimizer if `batch_idx` ends an aggregation. Return whether the step was due.

        Before the step, gradients are averaged over processes and batches, and changed by
        `before_step` and `clip_grads`.

        Args:
            auto_zero_grads: set the gradients to None after the step.
            scaler: makes the step, and skips it if gradients are infinite or NaN.
            apex_parameters: the parameters that apex keeps in place of the model's.
            unscales: unscale gradients before they are changed. Otherwise the caller has done so,
                because torch allows it once per step.

        Raises DetcloudError if `auto_zero_grads` is False and several batches make a step, and if
        the ranks use different parameters of a model.
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
        """Average the optimizer's gradients over the processes where the backward pass did not.

        Every rank calls this before a step. If a backward pass missed gradients, rank 0 prints a
        notice, and the model's gradients are averaged here from then on. Do nothing for a single
        process.

        Raises DetcloudError if the ranks do not agree on the gradients in time.
        """
        models = [model for model in self._distributed_models() if not model.is_settled]
        if not models:
            return
        # Finding the models' parameters takes longer than computing small layers.
        stepped = {id(parameter) for parameter in _parameters(optimizer)}
        for model in models:
            parameters = [each for each in model.parameters() if id(each) in stepped]
            if parameters:
                model.settle(parameters)

    def _distributed_models(self) -> Iterator[DistributedModel]:
        """Yield the models that average gradients over processes."""
        return (model for model in self.wrapped_models if isinstance(model, DistributedModel))

    def _change_gradients(
        self,
        optimizer: torch.optim.Optimizer,
        parameters: list[torch.nn.Parameter],
        is_averaged: bool,
        clip_grads: ClipGrads | None,
        scaler: GradScaler | None,
    ) -> None:
        """Divide the gradients by `aggregation_frequency` if `is_averaged`, then call the hooks.

        The hooks are the functions of `before_step`, then `clip_grads`. Each gets the parameters
        and may change their gradients in place. If a hook exists and `scaler` is given, the
        gradients are unscaled before the hooks.
        """
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
        """Step every scheduler that is due after batch `batch_idx`.

        As in Determined, learning rates only change at an optimizer step. Schedulers then make the
        steps of all batches since the last optimizer step. This includes the step of an epoch that
        ends before the next optimizer step.
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
        """Return the counts of a mode's events before and after the optimizer step at a batch.

        The events are batches, epochs or optimizer steps. Both counts are 0 for MANUAL_STEP.
        """
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
        """Set the training or evaluation mode of all models."""
        for model in self.wrapped_models or self.models:
            model.train(training)

    def prepare_batch(self, batch_idx: int) -> None:
        """Let models average gradients over processes only if an optimizer step follows."""
        for model in self._distributed_models():
            model.begin_batch(is_step=self.is_step(batch_idx))

    def gradients(self) -> list[dict[str, torch.Tensor]]:
        """Return the gradients that wait for a step, for each model by parameter name."""
        return [
            {name: x.grad for name, x in model.named_parameters() if x.grad is not None}
            for model in self.models
        ]

    def load_gradients(self, saved: list[dict[str, torch.Tensor]]) -> None:
        """Set the gradients of all models to a result of `gradients`. Missing gradients become
        None.

        Raises ValueError if the number of models differs.
        """
        for model, gradients in zip(self.models, saved, strict=True):
            for name, parameter in model.named_parameters():
                grad = gradients.get(name)
                parameter.grad = None if grad is None else grad.to(parameter.device)

    def state_dict(self) -> dict[str, Any]:
        """Return the state of all objects, with gradients that wait for a step.

        Attributes of schedulers that are not plain data are left out; each is printed once.
        """
        return {
            MODELS: [model.state_dict() for model in self.models],
            OPTIMIZERS: [optimizer.state_dict() for optimizer in self.optimizers],
            SCHEDULERS: [self._scheduler_state(scheduler) for scheduler, _, _ in self.schedulers],
            "gradients": self.gradients(),
            SCALER: self.scaler.state_dict() if self.scaler is not None else {},
        }

    def load_models(self, state: dict[str, Any]) -> None:
        """Load only the weights. Raises DetcloudError if the models do not match the state.

        The state must have as many models, with equal names and shapes of parameters. The prefix
        `module.` of Determined's states is removed.
        """
        _check_counts("models", state[MODELS], self.models)
        for model, model_state in zip(self.models, state[MODELS], strict=True):
            try:
                model.load_state_dict(_without_prefix(model_state, model))
            except RuntimeError as error:
                reason = " ".join(str(error).split())
                raise DetcloudError(
                    f"the checkpoint does not fit the trial's {type(model).__name__}: {reason}"
                ) from error

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Load models, optimizers, schedulers, the scaler and gradients from a result of
        `state_dict`.

        Parts of schedulers that cannot be read without running code are left out and printed.
        Raises DetcloudError if the numbers of objects or the weights do not match. Raises KeyError
        for a missing part, and errors of torch for states of optimizers, schedulers and the scaler.
        """
        self.load_models(state)
        _check_counts("optimizers", state[OPTIMIZERS], self.optimizers)
        _check_counts("schedulers", state[SCHEDULERS], self.schedulers)
        for optimizer, saved_state in zip(self.optimizers, state[OPTIMIZERS], strict=True):
            optimizer.load_state_dict(saved_state)
        for (scheduler, _, _), saved_state in zip(self.schedulers, state[SCHEDULERS], strict=True):
            readable = without_unreadable(saved_state, type(scheduler).__name__)
            scheduler.load_state_dict(restore_types(scheduler.state_dict(), readable))
        if self.scaler is not None and state.get(SCALER):
            self.scaler.load_state_dict(state[SCALER])
        self.load_gradients(state["gradients"])

    def _scheduler_state(self, scheduler: TorchLRScheduler) -> dict[str, Any]:
        """Return a scheduler's state as plain data, without attributes that have no plain form.

        Plain data are numbers, texts, tensors, and dicts, lists, tuples and sets of these. NumPy
        values become tensors, enums their values. Print the name of each omitted attribute, such as
        a function, once in a run.
        """

        def tell(name: str, value: Any) -> None:
            place = f"{type(scheduler).__name__}.{name}"
            if place not in self._told:
                self._told.add(place)
                print(
                    f"[detcloud] checkpoints leave out {place},"
                    f" {with_article(type(value).__name__)}: a run that goes on from one has what"
                    " the code makes then",
                    flush=True,
                )

        state: dict[str, Any] = leave_out_objects(scheduler.state_dict(), tell)
        return state

    def _averages(self, optimizer: torch.optim.Optimizer) -> bool:
        """Return whether gradients of several batches are averaged for this optimizer."""
        return self.averages.get(id(optimizer), self.average_aggregated_gradients)

    def is_step(self, batch_idx: int) -> bool:
        """Return whether an optimizer step follows batch `batch_idx`."""
        return (batch_idx + 1) % self.aggregation_frequency == 0


def _without_prefix(state: dict[str, Any], model: torch.nn.Module) -> dict[str, Any]:
    """Return a model's state without the prefix `module.` of DistributedDataParallel.

    Determined stored the prefix in trials with several slots. A state is returned unchanged unless
    all names have the prefix and the model has none of these names.
    """
    names = set(model.state_dict())
    if not state or not all(name.startswith(_DDP_PREFIX) for name in state) or names & set(state):
        return state
    return {name.removeprefix(_DDP_PREFIX): value for name, value in state.items()}


def _parameters(optimizer: torch.optim.Optimizer) -> list[torch.nn.Parameter]:
    """Return the parameters of all groups of an optimizer."""
    return [parameter for group in optimizer.param_groups for parameter in group["params"]]


def _check_counts(name: str, stored: list[Any], wrapped: list[Any]) -> None:
    """Raise DetcloudError if a checkpoint has more or fewer objects than the trial has wrapped.

    `name` is the kind of objects in the message.
    """
    if len(stored) != len(wrapped):
        raise DetcloudError(
            f"the checkpoint holds {len(stored)} {name}, the trial wrapped {len(wrapped)}: the "
            "code has changed since it was written"
        )
