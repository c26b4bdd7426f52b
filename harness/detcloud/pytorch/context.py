"""The context of a PyTorchTrial, with all that a trial may ask and wrap, and `init`."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, TypeVar, cast

import torch
from torch.amp.grad_scaler import GradScaler
from torch.optim.lr_scheduler import LRScheduler as TorchLRScheduler

from detcloud import core
from detcloud.pytorch.batch_data import move_to_device
from detcloud.pytorch.gang import distribute_model, join_process_group
from detcloud.pytorch.generators import seed_all
from detcloud.pytorch.optimization import ClipGrads, Optimization, StepMode
from detcloud.shared.errors import DetcloudError

Model = TypeVar("Model", bound=torch.nn.Module)
Optimizer = TypeVar("Optimizer", bound=torch.optim.Optimizer)
Scheduler = TypeVar("Scheduler", bound=TorchLRScheduler)


@contextmanager
def init(
    *,
    hparams: dict[str, Any] | None = None,
    exp_conf: dict[str, Any] | None = None,
    checkpoint_dir: str | Path | None = None,
    distributed: core.DistributedContext | None = None,
) -> Iterator[PyTorchTrialContext]:
    """A trial's context, with the generators seeded and torch set up to be deterministic.

    The arguments are for runs without a cluster; on one, its specification holds instead. A worker
    of a launcher finds the others by itself; any other process of several needs `distributed`.
    """
    seed = (exp_conf or {}).get("reproducibility", {}).get("experiment_seed", 0)
    with core.init(
        hparams=hparams,
        config=exp_conf,
        checkpoint_dir=checkpoint_dir,
        seed=seed,
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
        yield PyTorchTrialContext(core_context)


class PyTorchTrialContext:
    """One trial's hyperparameters, wrapped objects and position in its training."""

    def __init__(self, core_context: core.Context) -> None:
        self.core = core_context
        self.distributed = core_context.distributed
        local = self.distributed.local_rank
        self.device = torch.device(f"cuda:{local}" if torch.cuda.is_available() else "cpu")
        options = core_context.info.config.get("optimizations") or {}
        self.optimization = Optimization(
            options.get("aggregation_frequency", 1),
            options.get("average_aggregated_gradients", True),
        )
        self._batch_idx = 0
        self._epoch_length = 1
        self._stop_requested = False

    # Facts about the trial.

    def get_hparams(self) -> dict[str, Any]:
        return self.core.info.hparams

    def get_hparam(self, name: str) -> Any:
        """Raises DetcloudError for a name the configuration does not have."""
        hparams = self.core.info.hparams
        if name not in hparams:
            known = ", ".join(sorted(hparams)) or "none"
            raise DetcloudError(
                f"hyperparameter {name!r} does not exist; there are: {known}. Add it below "
                "hyperparameters in the experiment's configuration"
            )
        return hparams[name]

    def get_global_batch_size(self) -> int:
        """Records in one batch over all slots: the hyperparameter of that name."""
        size = self.get_hparam("global_batch_size")
        if isinstance(size, bool) or not isinstance(size, int) or size < self.distributed.size:
            raise DetcloudError(
                f"hyperparameter global_batch_size is {size!r}: an integer of at least the number "
                f"of slots, {self.distributed.size}, was expected"
            )
        return size

    def get_per_slot_batch_size(self) -> int:
        """Records in one slot's share of a batch, rounded down."""
        return self.get_global_batch_size() // self.distributed.size

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
        """The folder of the trial's event files, which has every reported number already."""
        return self.core.train.get_tensorboard_path()

    # Objects that the trial wraps, and what the context does with them.

    def wrap_model(self, model: Model) -> Model:
        """Move the model to the device; its weights become part of every checkpoint.

        Of several processes each gets a model whose gradients are averaged over all of them, and
        that otherwise is the one given.
        """
        moved = model.to(self.device)
        wrapped: Any = distribute_model(moved, self.device)
        self.optimization.models.append(moved)
        self.optimization.wrapped_models.append(wrapped)
        return cast("Model", wrapped)

    def wrap_optimizer(self, optimizer: Optimizer) -> Optimizer:
        self.optimization.optimizers.append(optimizer)
        return optimizer

    def wrap_lr_scheduler(
        self, lr_scheduler: Scheduler, step_mode: StepMode, frequency: int = 1
    ) -> Scheduler:
        """Have the Trainer step the scheduler at every `frequency`th moment of `step_mode`."""
        self.optimization.add_scheduler(lr_scheduler, step_mode, frequency)
        return lr_scheduler

    def wrap_scaler(self, scaler: GradScaler) -> GradScaler:
        """Keep the scale of mixed-precision gradients in checkpoints; a trial has one scaler.

        Give it to `step_optimizer` and call its `update` after that.
        """
        if self.optimization.scaler is not None:
            raise DetcloudError("wrap_scaler was called twice: a trial has one scaler")
        self.optimization.scaler = scaler
        return scaler

    def to_device(self, data: Any) -> Any:
        """The data with every tensor in its dicts, lists and tuples on the trial's device."""
        return move_to_device(data, self.device)

    def backward(
        self,
        loss: torch.Tensor,
        gradient: torch.Tensor | None = None,
        retain_graph: bool = False,
        create_graph: bool = False,
    ) -> None:
        torch.autograd.backward(loss, gradient, retain_graph, create_graph)

    def step_optimizer(
        self,
        optimizer: torch.optim.Optimizer,
        clip_grads: ClipGrads | None = None,
        auto_zero_grads: bool = True,
        scaler: GradScaler | None = None,
    ) -> None:
        """Step the optimizer once for every `optimizations.aggregation_frequency` batches."""
        self.optimization.step(optimizer, self._batch_idx, clip_grads, auto_zero_grads, scaler)

    def set_stop_requested(self, stop_requested: bool) -> None:
        """End the trial after the current workload, with a checkpoint, if True."""
        self._stop_requested = stop_requested

    def get_stop_requested(self) -> bool:
        return self._stop_requested

    # The position in training.

    def set_position(self, batch_idx: int, epoch_length: int) -> None:
        """Set the batch in training; the Trainer calls it before each."""
        self._batch_idx, self._epoch_length = batch_idx, epoch_length

    def current_train_batch(self) -> int:
        """The number of the batch in training, counted from the trial's start."""
        return self._batch_idx

    def current_train_epoch(self) -> int:
        return self._batch_idx // self._epoch_length

    def is_epoch_start(self) -> bool:
        """Whether the batch in training is its epoch's first."""
        return self._batch_idx % self._epoch_length == 0

    def is_epoch_end(self) -> bool:
        """Whether the batch in training is its epoch's last."""
        return (self._batch_idx + 1) % self._epoch_length == 0
