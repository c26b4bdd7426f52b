"""The context of a PyTorchTrial, with all that a trial may ask and wrap, and `init`."""

from __future__ import annotations

import atexit
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import replace
from pathlib import Path
from typing import Any, TypeVar, cast

import torch
from torch.amp.grad_scaler import GradScaler
from torch.optim.lr_scheduler import LRScheduler as TorchLRScheduler
from torch.profiler import tensorboard_trace_handler

from detcloud import core
from detcloud.core import TensorboardMode
from detcloud.pytorch.batch_data import move_to_device
from detcloud.pytorch.event_files import TRIAL_FOLDER, open_summary_writer
from detcloud.pytorch.experimental import PyTorchExperimentalContext
from detcloud.pytorch.former_environment import (
    Environment,
    first_hparams,
    read_horovod_settings,
)
from detcloud.pytorch.former_names import FORMER_NAMES
from detcloud.pytorch.gang import compress_gradients, distribute_model, join_process_group
from detcloud.pytorch.generators import seed_all
from detcloud.pytorch.mixed_precision import LEVELS, MixedPrecision
from detcloud.pytorch.optimization import ClipGrads, Optimization, StepMode
from detcloud.pytorch.reducers import MetricReducer, Reducers
from detcloud.shared.errors import DetcloudError, InvalidType, InvalidValue
from detcloud.shared.experiment_config import ExperimentConfig
from detcloud.shared.parameter_names import accept_names
from detcloud.shared.training_settings import TrainingLoop

Model = TypeVar("Model", bound=torch.nn.Module)
Optimizer = TypeVar("Optimizer", bound=torch.optim.Optimizer)
Scheduler = TypeVar("Scheduler", bound=TorchLRScheduler)
Wrapped = TypeVar("Wrapped")


@contextmanager
def init(
    *,
    hparams: dict[str, Any] | None = None,
    exp_conf: dict[str, Any] | None = None,
    checkpoint_dir: str | Path | None = None,
    distributed: core.DistributedContext | None = None,
    aggregation_frequency: int | None = None,
    enable_tensorboard_logging: bool = True,
) -> Iterator[PyTorchTrialContext]:
    """A trial's context, with the generators seeded and torch set up to be deterministic.

    `exp_conf` and `checkpoint_dir` are for runs without a cluster; on one, its specification holds
    instead, as it does where `hparams` are missing. A worker of a launcher finds the others by
    itself; any other process of several needs `distributed`. `aggregation_frequency` goes before
    that of the configuration's `optimizations`; without `enable_tensorboard_logging` reported
    numbers are not written as event files.
    """
    with core.init(
        hparams=hparams,
        config=exp_conf,
        checkpoint_dir=checkpoint_dir,
        seed=ExperimentConfig(exp_conf or {}).experiment_seed(),
        distributed=distributed,
    ) as core_context:
        join_process_group(core_context.distributed)
        if core_context.info.threads is not None:
            torch.set_num_threads(core_context.info.threads)
        torch.use_deterministic_algorithms(True, warn_only=True)
        # Filling every fresh tensor would cost small models much and changes no result.
        deterministic: Any = torch.utils.deterministic
        deterministic.fill_uninitialized_memory = False
        seed_all(core_context.info.trial_seed)
        info = core_context.info if hparams is None else replace(core_context.info, hparams=hparams)
        context = PyTorchTrialContext(replace(core_context, info=info), aggregation_frequency)
        context.set_enable_tensorboard_logging(enable_tensorboard_logging)
        try:
            yield context
        finally:
            context.close()


class PyTorchTrialContext:
    """One trial's hyperparameters, wrapped objects and position in its training."""

    def __init__(
        self, core_context: core.Context, aggregation_frequency: int | None = None
    ) -> None:
        self.core = core_context
        core_context.loop.kind = TrainingLoop.TRAINER
        self.distributed = core_context.distributed
        local = self.distributed.local_rank
        self.device = torch.device(f"cuda:{local}" if torch.cuda.is_available() else "cpu")
        options = core_context.info.config.get("optimizations") or {}
        self.optimization = Optimization(
            aggregation_frequency or options.get("aggregation_frequency", 1),
            options.get("average_aggregated_gradients", True),
        )
        self.reducers = Reducers()
        self.precision = MixedPrecision(self.device)
        self.experimental = PyTorchExperimentalContext(self)
        self._bucket_mib: int | None = options.get("tensor_fusion_threshold") or None
        self._compresses_gradients = bool(options.get("gradient_compression"))
        self._profiler: Any = None
        self._tensorboard_writer: Any = None
        TRIAL_FOLDER.set(self.get_tensorboard_path)
        self._initial_batch = 0
        self._batch_idx = 0
        # Trials written for Determined read it by this name.
        self._epoch_len = 1
        self._has_stepped = False
        self._stop_requested = self._is_told_of_batch_size = False
        level = options.get("mixed_precision", LEVELS[0])
        if level != LEVELS[0]:
            self.use_amp(f"optimizations.mixed_precision {level}")

    @classmethod
    def from_config(cls, config: dict[str, Any]) -> PyTorchTrialContext:
        """A context without a cluster, to try a trial's methods in a script or a notebook.

        Of a hyperparameter's range it has the first value.
        """
        hparams = first_hparams(config.get("hyperparameters") or {})
        block = init(hparams=hparams, exp_conf=config)
        context = block.__enter__()
        atexit.register(block.__exit__, None, None, None)
        return context if cls is PyTorchTrialContext else cls(context.core)

    def __getattr__(self, name: str) -> Any:
        """A method under its former name, and what Determined's contexts had besides."""
        if name in ("env", "hvd_config"):
            info = self.core.info
            made = Environment(info) if name == "env" else read_horovod_settings(info.config)
            # The same at every look, since code may change it.
            setattr(self, name, made)
            return made
        if name not in FORMER_NAMES:
            raise AttributeError(f"{type(self).__name__!r} object has no attribute {name!r}")
        return getattr(self, FORMER_NAMES[name])

    # Facts about the trial.

    def get_hparams(self) -> dict[str, Any]:
        return self.core.info.hparams

    def get_hparam(self, name: str) -> Any:
        """Raises InvalidValue for a name the configuration does not have."""
        hparams = self.core.info.hparams
        if name not in hparams:
            known = ", ".join(sorted(hparams)) or "none"
            raise InvalidValue(
                f"hyperparameter {name!r} does not exist; there are: {known}. Add it below "
                "hyperparameters in the experiment's configuration"
            )
        return hparams[name]

    def get_global_batch_size(self) -> int:
        """Records in one batch: that hyperparameter, rounded down to a multiple of the slots."""
        return self.get_per_slot_batch_size() * self.distributed.size

    def get_per_slot_batch_size(self) -> int:
        """Records in one slot's share of a batch, rounded down."""
        size, slots = self.get_hparam("global_batch_size"), self.distributed.size
        if isinstance(size, bool) or not isinstance(size, int) or size < slots:
            raise InvalidValue(
                f"hyperparameter global_batch_size is {size!r}: an integer of at least the number "
                f"of slots, {slots}, was expected"
            )
        if size % slots and self.core.is_chief and not self._is_told_of_batch_size:
            self._is_told_of_batch_size = True
            print(
                f"[detcloud] global_batch_size {size} is rounded down to {size // slots * slots}, "
                f"a multiple of the {slots} slots",
                flush=True,
            )
        return size // slots

    def get_experiment_config(self) -> dict[str, Any]:
        return self.core.info.config

    def get_data_config(self) -> dict[str, Any]:
        return self.core.info.config.get("data") or {}

    def get_experiment_id(self) -> int:
        return self.core.info.experiment_id

    def get_trial_id(self) -> int:
        return self.core.info.trial_id

    def get_trial_seed(self) -> int:
        return self.core.info.trial_seed

    def get_tensorboard_path(self) -> Path:
        """The folder of the trial's event files, which has every reported number already.

        Of a process that is not the chief a folder of its own, of which nothing is kept.
        """
        return self.core.train.get_tensorboard_path()

    def get_tensorboard_writer(self) -> Any:
        """torch's SummaryWriter for that folder, the same one at every call."""
        if self._tensorboard_writer is None:
            self._tensorboard_writer = open_summary_writer(self.get_tensorboard_path())
        return self._tensorboard_writer

    @accept_names(enable_tensorboard_logging="enable")
    def set_enable_tensorboard_logging(self, enable: bool) -> None:
        """Write reported numbers as event files, or do not."""
        mode = TensorboardMode.AUTO if enable else TensorboardMode.MANUAL
        self.core.train.tensorboard_mode = mode

    def get_enable_tensorboard_logging(self) -> bool:
        return self.core.train.tensorboard_mode is TensorboardMode.AUTO

    # Objects that the trial wraps, and what the context does with them.

    def wrap_model(self, model: Model) -> Model:
        """Move the model to the device; its weights become part of every checkpoint.

        Of several processes each gets a model whose gradients are averaged over all of them, and
        that otherwise is the one given.
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
        """Keep the optimizer's state in checkpoints.

        `fp16_compression` has the gradients of its models exchanged in half precision, and
        `average_aggregated_gradients` goes before the setting of that name. As many backward passes
        as you like may come before a step: `backward_passes_per_step` changes nothing.
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
            parameters = [one for group in optimizer.param_groups for one in group["params"]]
            compress_gradients(self.optimization.wrapped_models, parameters)
        return optimizer

    def wrap_lr_scheduler(
        self, lr_scheduler: Scheduler, step_mode: StepMode, frequency: int = 1
    ) -> Scheduler:
        """Register a scheduler, which the Trainer steps at every `frequency`th `step_mode`."""
        optimizer = getattr(lr_scheduler, "optimizer", None)
        if optimizer is not None and not self.optimization.is_wrapped(optimizer):
            raise DetcloudError(
                f"{type(lr_scheduler).__name__} was made for an optimizer that is not wrapped: "
                "give it what context.wrap_optimizer returned"
            )
        self.optimization.add_scheduler(lr_scheduler, step_mode, frequency)
        return lr_scheduler

    def wrap_scaler(self, scaler: GradScaler) -> GradScaler:
        """Keep the scale of mixed-precision gradients in checkpoints; a trial has one scaler.

        Give it to `step_optimizer`, after its `unscale_` where gradients are clipped, and call its
        `update` after that.
        """
        if self.optimization.scaler is not None:
            raise DetcloudError("wrap_scaler was called twice: a trial has one scaler")
        self.optimization.scaler = scaler
        return scaler

    def to_device(self, data: Any) -> Any:
        """The data with all that has a method `to` in its structures on the trial's device."""
        return move_to_device(data, self.device)

    def batch_mover(self) -> Callable[[Any], Any]:
        """The function that makes of a loader's batch the trial's: moved, unless it moves its own
        batches.
        """
        if not self.experimental.moves_batches:
            return lambda batch: batch
        return self._moved_from_cpu if self.device.type == "cpu" else self.to_device

    def _moved_from_cpu(self, batch: Any) -> Any:
        """The batch where it is the usual list of tensors on the CPU, else what it is moved to."""
        if type(batch) is list:
            for value in batch:
                if type(value) is not torch.Tensor or not value.is_cpu:
                    break
            else:
                return batch
        return move_to_device(batch, self.device)

    def wrap_reducer(
        self,
        reducer: MetricReducer | type[MetricReducer] | Callable[[list[Any]], Any],
        name: str | None = None,
        for_training: bool = True,
        for_validation: bool = True,
    ) -> MetricReducer:
        """Make a metric that the trial collects itself part of what is reported.

        Of a function, which gets the list of all values of all processes, a reducer is made whose
        `update(value)` takes one. Without a `name` it gives a dictionary of metrics.
        """
        return self.reducers.wrap(reducer, name, for_training, for_validation)

    def use_amp(self, reason: str) -> None:
        """Run batches in autocast and scale their gradients; `reason` is who asked for it."""
        if not self.precision.is_automatic:
            self.precision.make_automatic(reason)
            on_gpu = self.device.type == "cuda"
            self.wrap_scaler(GradScaler(self.device.type, enabled=on_gpu))

    @accept_names(to_wrap="model")
    def autocast_forward_pass(self, model: Model) -> Model:
        """The model, whose forward pass runs in autocast from now on, on a GPU."""
        self.precision.wrap_forward(model)
        return model

    def configure_apex_amp(
        self,
        models: Any,
        optimizers: Any,
        enabled: bool = True,
        opt_level: str = "O1",
        **options: Any,
    ) -> Any:
        """Set up apex's mixed precision, where it is installed: `apex.amp.initialize`.

        Takes and returns one model and one optimizer, or lists of them, all of them wrapped.
        """
        if self.precision.is_automatic:
            raise DetcloudError(
                "configure_apex_amp and use_amp exclude each other: call only one of them"
            )
        return self.precision.configure_apex(
            models, optimizers, enabled, opt_level=opt_level, **options
        )

    def set_profiler(self, *arguments: Any, **options: Any) -> None:
        """Profile training with torch.profiler.profile, to which the arguments go.

        Traces are written to the folder of the event files, unless `on_trace_ready` is given.
        """
        folder = str(self.get_tensorboard_path())
        options.setdefault("on_trace_ready", tensorboard_trace_handler(folder))
        self._profiler = torch.profiler.profile(*arguments, **options)

    def profile_training(self) -> AbstractContextManager[Any]:
        """The block in which batches are profiled, where the trial has asked for it."""
        return self._profiler if self._profiler is not None else nullcontext()

    def backward(
        self,
        loss: torch.Tensor,
        gradient: torch.Tensor | None = None,
        retain_graph: bool = False,
        create_graph: bool = False,
    ) -> None:
        """Compute gradients, of the scaled loss where mixed precision is automatic."""
        if self.precision.is_automatic and self.optimization.scaler is not None:
            loss = self.optimization.scaler.scale(loss)
        if not self.precision.uses_apex:
            torch.autograd.backward(loss, gradient, retain_graph, create_graph)
            return
        self.precision.compute_scaled_gradients(
            loss,
            self.optimization.is_step(self._batch_idx),
            grad_tensors=gradient,
            retain_graph=retain_graph,
            create_graph=create_graph,
        )

    def step_optimizer(
        self,
        optimizer: torch.optim.Optimizer,
        clip_grads: ClipGrads | None = None,
        auto_zero_grads: bool = True,
        scaler: GradScaler | None = None,
    ) -> None:
        """Step the optimizer once for every `optimizations.aggregation_frequency` batches."""
        precision, optimization = self.precision, self.optimization
        if scaler is None and precision.is_automatic:
            scaler = optimization.scaler
        self._has_stepped = optimization.step(
            optimizer,
            self._batch_idx,
            clip_grads,
            auto_zero_grads,
            scaler,
            precision.step_parameters(optimizer) if precision.uses_apex else None,
            unscales=precision.is_automatic,
        )

    # The wrapped objects, and the former names of the first of each.

    @property
    def models(self) -> list[torch.nn.Module]:
        return self.optimization.wrapped_models

    @property
    def optimizers(self) -> list[torch.optim.Optimizer]:
        return self.optimization.optimizers

    @property
    def lr_schedulers(self) -> list[TorchLRScheduler]:
        return [scheduler for scheduler, _, _ in self.optimization.schedulers]

    def get_model(self) -> torch.nn.Module:
        """The first model that was wrapped, or that `build_model` gave."""
        return _first_object(self.models, "model")

    def get_optimizer(self) -> torch.optim.Optimizer:
        return _first_object(self.optimizers, "optimizer")

    def get_lr_scheduler(self) -> TorchLRScheduler | None:
        return next(iter(self.lr_schedulers), None)

    def set_stop_requested(self, stop_requested: bool) -> None:
        """End the trial after the current workload, with a checkpoint, if True."""
        if not isinstance(stop_requested, bool):
            raise InvalidType(f"stop_requested is {stop_requested!r}: expected True or False")
        self._stop_requested = stop_requested

    def get_stop_requested(self) -> bool:
        return self._stop_requested

    # The position in training.

    def set_position(self, batch_idx: int, epoch_length: int) -> None:
        """Set the batch in training; the Trainer calls it before each."""
        self._batch_idx, self._epoch_len = batch_idx, epoch_length

    def set_initial_batch(self, batch_idx: int) -> None:
        """Set the first batch to train; the Trainer calls it before it asks for the loaders."""
        self._initial_batch = batch_idx

    def finish_batch(self) -> None:
        """Do what follows a batch; the Trainer calls it."""
        if self._has_stepped and self.precision.is_automatic:
            scaler = self.optimization.scaler
            if scaler is not None:
                scaler.update()
        self._has_stepped = False
        if self._profiler is not None:
            self._profiler.step()

    def close(self) -> None:
        """Close the writer of event files, if the trial has asked for it."""
        if self._tensorboard_writer is not None:
            self._tensorboard_writer.close()

    def get_initial_batch(self) -> int:
        """The number of batches that were trained when this process began."""
        return self._initial_batch

    def current_train_batch(self) -> int:
        """The number of the batch in training, counted from the trial's start."""
        return self._batch_idx

    def current_train_epoch(self) -> int:
        return self._batch_idx // self._epoch_len

    def is_epoch_start(self) -> bool:
        """Whether the batch in training is its epoch's first."""
        return self._batch_idx % self._epoch_len == 0

    def is_epoch_end(self) -> bool:
        """Whether the batch in training is its epoch's last."""
        return (self._batch_idx + 1) % self._epoch_len == 0


def _first_object(wrapped: list[Wrapped], kind: str) -> Wrapped:
    if not wrapped:
        raise DetcloudError(f"the trial has no {kind} yet: wrap one, or define build_model")
    return wrapped[0]
