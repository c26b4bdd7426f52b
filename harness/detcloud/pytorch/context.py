"""The context of a PyTorchTrial: precision, steps and events of training, and `init`."""

from __future__ import annotations

import atexit
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch
from torch.amp.grad_scaler import GradScaler
from torch.profiler import tensorboard_trace_handler

from detcloud import core
from detcloud.core import TensorboardMode
from detcloud.pytorch.batch_data import move_to_device
from detcloud.pytorch.devices import process_device
from detcloud.pytorch.event_files import TRIAL_FOLDER, open_summary_writer
from detcloud.pytorch.experimental import PyTorchExperimentalContext
from detcloud.pytorch.former_environment import (
    Environment,
    first_hparams,
    read_horovod_settings,
)
from detcloud.pytorch.former_names import FORMER_NAMES
from detcloud.pytorch.gang import join_process_group
from detcloud.pytorch.generators import seed_all
from detcloud.pytorch.mixed_precision import LEVELS, MixedPrecision
from detcloud.pytorch.optimization import ClipGrads
from detcloud.pytorch.training_position import TrainingPosition
from detcloud.pytorch.trial_facts import TrialFacts
from detcloud.pytorch.wrapped_objects import Model, WrappedObjects
from detcloud.shared.errors import DetcloudError, InvalidType
from detcloud.shared.experiment_config import ExperimentConfig
from detcloud.shared.parameter_names import accept_names
from detcloud.shared.training_settings import TrainingLoop


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
    """Yield the context of a trial for a `Trainer` in your own script.

    The generators are seeded, and torch uses deterministic algorithms. The processes of a launcher
    join torch's process group, and the trial's number of threads is set in torch.

    The end of the block closes the context, waits for a background checkpoint and raises its error.
    On a cluster, the end of the block reports the exit. An InvalidHP becomes SystemExit(0): the
    trial ends without a restart. Other exceptions leave the block unchanged and count as failures,
    except a SystemExit with code 0 or None.

    Args:
        hparams: the hyperparameters, which replace those of the trial, also on a cluster. None for
            the trial's.
        exp_conf: the configuration of a run without a cluster.
        checkpoint_dir: the folder of checkpoints without a cluster, by default a folder of the
            user's data.
        distributed: the trial's processes, if no launcher of detcloud started them.
        aggregation_frequency: the number of batches per optimizer step. None for
            `optimizations.aggregation_frequency` of the configuration.
        enable_tensorboard_logging: whether reported metrics are written as event files.

    Raises:
        DetcloudError: another process has this rank, `aggregation_frequency` is invalid, or the
            specification, the checkpoint store or a launcher's variables are invalid.
        RuntimeError: a process does not join torch's process group in time.
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
        # Filling new tensors would slow small models down and changes no result.
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


class PyTorchTrialContext(TrialFacts, WrappedObjects, TrainingPosition):
    """A trial's hyperparameters, wrapped objects and position in training.

    The trial's `__init__` receives the context. `core` is the context of the Core API,
    `distributed` the trial's processes, `device` the device of this process, and `experimental` a
    PyTorchExperimentalContext.
    """

    def __init__(
        self, core_context: core.Context, aggregation_frequency: int | None = None
    ) -> None:
        """Create a context with the settings of the section `optimizations`.

        `aggregation_frequency` replaces the configured number of batches per optimizer step. Raises
        DetcloudError unless the number is an integer of at least 1.
        """
        TrialFacts.__init__(self, core_context)
        TrainingPosition.__init__(self)
        core_context.loop.kind = TrainingLoop.TRAINER
        local = self.distributed.local_rank
        device = process_device(local)
        options = core_context.info.config.get("optimizations") or {}
        WrappedObjects.__init__(self, device, options, aggregation_frequency)
        self.precision = MixedPrecision(self.device)
        self.experimental = PyTorchExperimentalContext(self)
        self._profiler: Any = None
        self._tensorboard_writer: Any = None
        TRIAL_FOLDER.set(self.get_tensorboard_path)
        self._has_stepped = False
        self._stop_requested = False
        level = options.get("mixed_precision", LEVELS[0])
        if level != LEVELS[0]:
            self.use_amp(f"optimizations.mixed_precision {level}")

    @classmethod
    def from_config(cls, config: dict[str, Any]) -> PyTorchTrialContext:
        """Return a context without a cluster, to try a trial's methods in a script or notebook.

        A range of a hyperparameter becomes the first value. The generators are seeded, and torch
        uses deterministic algorithms. The context is closed when the process exits.

        Args:
            config: the experiment's configuration, for example `hyperparameters` and `data`.

        Raises:
            DetcloudError: `optimizations.aggregation_frequency`, the checkpoint store or a
                launcher's variable is invalid.
        """
        hparams = first_hparams(config.get("hyperparameters") or {})
        block = init(hparams=hparams, exp_conf=config)
        context = block.__enter__()
        atexit.register(block.__exit__, None, None, None)
        return context if cls is PyTorchTrialContext else cls(context.core)

    def __getattr__(self, name: str) -> Any:
        """Return a method by a former name, or Determined's `env` or `hvd_config`.

        Raises AttributeError for any other name.
        """
        if name in ("env", "hvd_config"):
            info = self.core.info
            made = Environment(info) if name == "env" else read_horovod_settings(info.config)
            # Kept, since code may change the object.
            setattr(self, name, made)
            return made
        if name not in FORMER_NAMES:
            raise AttributeError(f"{type(self).__name__!r} object has no attribute {name!r}")
        return getattr(self, FORMER_NAMES[name])

    def get_tensorboard_path(self) -> Path:
        """Return the folder of event files, and create a missing folder.

        Only the chief's folder is stored with the trial.

        Raises:
            OSError: the folder cannot be created.
        """
        return self.core.train.get_tensorboard_path()

    def get_tensorboard_writer(self) -> Any:
        """Return torch's SummaryWriter for the folder of event files. Every call returns the same
        object.

        Raises:
            DetcloudError: the package tensorboard is not installed.
            OSError: the folder cannot be created.
        """
        if self._tensorboard_writer is None:
            self._tensorboard_writer = open_summary_writer(self.get_tensorboard_path())
        return self._tensorboard_writer

    @accept_names(enable_tensorboard_logging="enable")
    def set_enable_tensorboard_logging(self, enable: bool) -> None:
        """Set whether reported metrics are written as event files."""
        mode = TensorboardMode.AUTO if enable else TensorboardMode.MANUAL
        self.core.train.tensorboard_mode = mode

    def get_enable_tensorboard_logging(self) -> bool:
        """Return whether reported metrics are written as event files."""
        return self.core.train.tensorboard_mode is TensorboardMode.AUTO

    def to_device(self, data: Any) -> Any:
        """Return nested data with all tensors and arrays of numbers on the trial's device.

        Batches are moved automatically, unless `experimental.disable_auto_to_device` was called.

        Args:
            data: tensors, arrays and objects with a method `to`, also in lists, tuples and dicts.
                Arrays become tensors. Other values stay.
        """
        return move_to_device(data, self.device)

    def batch_mover(self) -> Callable[[Any], Any]:
        """Return the function that moves a batch to the device, or the identity if disabled."""
        if not self.experimental.moves_batches:
            return lambda batch: batch
        return self._moved_from_cpu if self.device.type == "cpu" else self.to_device

    def _moved_from_cpu(self, batch: Any) -> Any:
        """Return a list of CPU tensors unchanged, and move any other batch to the device."""
        if type(batch) is list:
            for value in batch:
                if type(value) is not torch.Tensor or not value.is_cpu:
                    break
            else:
                return batch
        return move_to_device(batch, self.device)

    def use_amp(self, reason: str) -> None:
        """Run batches in autocast on a GPU and scale gradients. `reason` names the setting for the
        log.

        Do nothing if this is set already. Without a GPU, print that batches run in full precision.
        Raises DetcloudError after `wrap_scaler`.
        """
        if not self.precision.is_automatic:
            self.precision.make_automatic(reason)
            on_gpu = self.device.type == "cuda"
            self.wrap_scaler(GradScaler(self.device.type, enabled=on_gpu))

    @accept_names(to_wrap="model")
    def autocast_forward_pass(self, model: Model) -> Model:
        """Change the model so that the forward pass runs in autocast on a GPU, and return the
        model.

        Args:
            model: the model.
        """
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
        """Return models and optimizers after `apex.amp.initialize` with mixed precision.

        From then on, `backward` and `step_optimizer` of this context use apex.

        Args:
            models: a model or a list of models.
            optimizers: an optimizer or a list of optimizers.
            enabled: with False, both are returned unchanged, and nothing changes.
            opt_level: the level of apex, such as `O1`.
            options: further arguments of `apex.amp.initialize`.

        Raises:
            DetcloudError: `use_amp` was called before, or apex is not installed.
        """
        if self.precision.is_automatic:
            raise DetcloudError(
                "configure_apex_amp and use_amp exclude each other: call only one of them"
            )
        return self.precision.configure_apex(
            models, optimizers, enabled, opt_level=opt_level, **options
        )

    def set_profiler(self, *arguments: Any, **options: Any) -> None:
        """Profile training with `torch.profiler.profile`. A later call replaces the profiler.

        By default, traces are written to the folder of event files, which is created.

        Args:
            arguments: arguments of `torch.profiler.profile`.
            options: keyword arguments of `torch.profiler.profile`, such as `activities`.
        """
        folder = str(self.get_tensorboard_path())
        options.setdefault("on_trace_ready", tensorboard_trace_handler(folder))
        self._profiler = torch.profiler.profile(*arguments, **options)

    def profile_training(self) -> AbstractContextManager[Any]:
        """Return the context manager that profiles batches. Without `set_profiler`, it does
        nothing.
        """
        return self._profiler if self._profiler is not None else nullcontext()

    def backward(
        self,
        loss: torch.Tensor,
        gradient: torch.Tensor | None = None,
        retain_graph: bool = False,
        create_graph: bool = False,
    ) -> None:
        """Compute the gradients of a loss. The loss is scaled if mixed precision is automatic or
        apex's.

        Args:
            loss: the loss of a batch.
            gradient: as for `torch.autograd.backward`.
            retain_graph: as for `torch.autograd.backward`.
            create_graph: as for `torch.autograd.backward`.
        """
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
        """Step the optimizer at every `optimizations.aggregation_frequency`th batch.

        Between steps, gradients add up. Before a step, gradients are averaged over processes and
        batches, and passed to the hooks `on_before_optimizer_step` and to `clip_grads`.

        Args:
            optimizer: an optimizer that `wrap_optimizer` returned.
            clip_grads: called before a step with the optimizer's parameters.
            auto_zero_grads: whether gradients are set to None after a step.
            scaler: the scaler of `wrap_scaler`, which makes the step and skips infinite gradients.

        Raises:
            DetcloudError: `auto_zero_grads` is False and several batches make a step, or processes
                use different parameters.
        """
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

    def set_stop_requested(self, stop_requested: bool) -> None:
        """Set whether to end the trial after this workload, with a checkpoint.

        Args:
            stop_requested: True to end the trial, False to withdraw an earlier call.

        Raises:
            InvalidType: `stop_requested` is no bool.
        """
        if not isinstance(stop_requested, bool):
            raise InvalidType(f"stop_requested is {stop_requested!r}: expected True or False")
        self._stop_requested = stop_requested

    def get_stop_requested(self) -> bool:
        """Return whether the code has requested the end of the trial in this process."""
        return self._stop_requested

    def finish_batch(self) -> None:
        """Update an automatic scaler after a step, and advance the profiler, if any.

        The Trainer calls this after each batch.
        """
        if self._has_stepped and self.precision.is_automatic:
            scaler = self.optimization.scaler
            if scaler is not None:
                scaler.update()
        self._has_stepped = False
        if self._profiler is not None:
            self._profiler.step()

    def close(self) -> None:
        """Close the writer of event files. Do nothing without a writer."""
        if self._tensorboard_writer is not None:
            self._tensorboard_writer.close()
