"""The Trainer of a DeepSpeedTrial: the loop of a PyTorchTrial, with engines."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from detcloud import pytorch
from detcloud.core.background_save import may_store_behind
from detcloud.deepspeed.context import DeepSpeedTrialContext
from detcloud.deepspeed.trial import DeepSpeedTrial
from detcloud.pytorch import snapshot
from detcloud.pytorch.callback import PyTorchCallback
from detcloud.pytorch.evaluation import Evaluation
from detcloud.pytorch.loaders import Loader, Loaders, PlainLoader, checked_loader
from detcloud.pytorch.metrics import BatchMetrics, named_metrics
from detcloud.pytorch.stored_code import write_code
from detcloud.pytorch.training import Training
from detcloud.pytorch.training_state import TrainingState, checkpoint_metadata
from detcloud.shared.errors import DetcloudError

STATE_PARTS = ("callbacks", "average", "position", "generators")


class MicroBatches(PlainLoader):
    """A process's loader, whose micro-batches form `count` batches of `per_batch` each.

    `loader` is None in a process without data.
    """

    def __init__(self, loader: Loader | None, per_batch: int, count: int) -> None:
        super().__init__(loader, count)
        self._per_batch = per_batch

    def __len__(self) -> int:
        assert self._count is not None
        return self._count

    def first_batches(self, count: int) -> MicroBatches:
        return MicroBatches(self.loader, self._per_batch, count)

    def batches_from(self, first: int, seed: int) -> Any:
        loader = self.loader
        return None if loader is None else loader.batches_from(first * self._per_batch, seed)


class DeepSpeedEvaluation(Evaluation):
    """The validations of engines, which read micro-batches from an iterator by themselves."""

    _trial: DeepSpeedTrial
    _context: DeepSpeedTrialContext

    def _evaluate_batches(self, loader: Any) -> dict[str, Any] | None:
        batch_metrics = BatchMetrics(self._trial)
        batches = None if loader.loader is None else iter(loader.loader)
        self._hooks.call(PyTorchCallback.on_validation_epoch_start)
        for batch_idx in range(len(loader)):
            if self._context.mpu.should_report_metrics:
                batch_metrics.add(batches, batch_idx)
            else:
                self._trial.evaluate_batch(batches, batch_idx)
            if self._core.preempt.must_stop_at_next_batch():
                return None
        if self._hooks.overrides(PyTorchCallback.on_validation_epoch_end):
            self._hooks.call(PyTorchCallback.on_validation_epoch_end, batch_metrics.outputs())
        if self._is_gang:
            batch_metrics.merge(self._core.distributed, self._notice)
        return batch_metrics.reduce()


class DeepSpeedState(TrainingState):
    """The state of a training with engines. Each process stores a part of the state."""

    _trial: DeepSpeedTrial
    _context: DeepSpeedTrialContext

    def _save(self, *, is_last: bool) -> None:
        self.finish_save()
        steps, ranks = self.position.steps, self._core.distributed
        self.position = replace(self.position, saved=steps)
        state = self._loop_state()
        self._hooks.call(PyTorchCallback.on_checkpoint_save_start, state)
        metadata = checkpoint_metadata(steps)
        behind = not is_last and may_store_behind(self._core.info.config)
        stored = self._core.checkpoint.store_path(
            metadata, shard=self._is_gang, asynchronous=behind
        )
        with stored as (folder, uuid):
            own = folder / f"rank{ranks.rank}"
            own.mkdir()
            snapshot.save_state(state, own)
            if self._core.is_chief:
                write_code(folder, self._trial, self._core, "DeepSpeedTrial")
            self._trial.save(self._context, folder)
            self._hooks.call(PyTorchCallback.on_checkpoint_write_end, folder)
        self.observed_validation, self._unfinished_save = False, uuid
        if not behind:
            self.finish_save()

    def _load(self) -> dict[str, Any] | None:
        assert self._plan.checkpoint is not None
        self._context.is_warm_start = self._plan.warm_start
        rank = self._core.distributed.rank
        with self._core.checkpoint.restore_path(self._plan.checkpoint) as folder:
            own = (
                {}
                if self._plan.warm_start
                else snapshot.load_state(folder / f"rank{rank}", STATE_PARTS)
            )
            self._hooks.call(PyTorchCallback.on_checkpoint_load_start, own)
            self._trial.load(self._context, folder)
        return None if self._plan.warm_start else own


class DeepSpeedTraining(Training):
    """The training loop with engines. Each process has a part of the batches and of the state."""

    state_class = DeepSpeedState
    evaluation_class = DeepSpeedEvaluation
    _trial: DeepSpeedTrial
    _context: DeepSpeedTrialContext

    def _train_batch(self, batch_idx: int, epoch_length: int) -> None:
        context, (epoch_idx, number) = self._context, divmod(batch_idx, epoch_length)
        context.set_position(batch_idx, epoch_length)
        if number == 0:
            self._hooks.call(PyTorchCallback.on_training_epoch_start, epoch_idx)
        takes_all = context.use_pipeline_parallel or context.accumulates_itself
        for _ in range(1 if takes_all else context.num_micro_batches_per_slot):
            metrics = self._trial.train_batch(self._batches, epoch_idx, batch_idx)
            if context.mpu.should_report_metrics:
                self._state.average.add(metrics)
                if self._batch_metrics is not None:
                    self._batch_metrics.append(named_metrics(metrics))
        context.finish_batch()
        if number + 1 == epoch_length:
            self._hooks.call(PyTorchCallback.on_training_epoch_end, epoch_idx)


class Trainer(pytorch.Trainer):
    """Trains a DeepSpeedTrial. `fit` is that of a PyTorchTrial's Trainer."""

    training_class = DeepSpeedTraining
    _context: DeepSpeedTrialContext

    def __init__(self, trial: DeepSpeedTrial, context: DeepSpeedTrialContext) -> None:
        """Create the Trainer of a trial.

        Args:
            trial: the trial.
            context: the context that the trial was created with.

        Raises:
            DetcloudError: `trial` is no DeepSpeedTrial.
        """
        if not isinstance(trial, DeepSpeedTrial):
            raise DetcloudError(f"{trial!r:.80} is not a DeepSpeedTrial")
        super().__init__(trial, context)

    def _loaders(self) -> Loaders:
        """Return the loaders of this process, limited to the smallest number of batches of any
        process.

        Every process must call this. Raises DetcloudError if a process has no whole batch to train
        on or to validate.
        """
        context, own = self._context, None
        training: Loader | None = None
        validation: Loader | None = None
        per_batch = context.num_micro_batches_per_slot
        per_evaluation = per_batch if context.use_pipeline_parallel else 1
        if context.mpu.should_build_data_loader:
            training, records = self._share("build_training_data_loader")
            validation, validated = self._share("build_validation_data_loader")
            own = records // per_batch, validated // per_evaluation
        lengths = [item for item in context.distributed.allgather(own) if item is not None]
        epoch, count = (min(item) for item in zip(*lengths, strict=True))
        if epoch == 0 or count == 0:
            raise DetcloudError(
                f"a process has {epoch} whole batches to train on and {count} to validate: both "
                f"sets need {per_batch} micro-batches for each process, or smaller ones"
            )
        return Loaders(
            MicroBatches(training, per_batch, epoch), MicroBatches(validation, 1, count), epoch
        )

    def _share(self, method: str) -> tuple[Loader, int]:
        """Return this process's share of the trial's loader, and the share's number of
        micro-batches.

        `method` is the name of the trial's method that builds the loader.
        """
        mpu, checks = self._context.mpu, self._context.experimental.checks_data_sets
        loader = checked_loader(getattr(self._trial, method)(), method, checks)
        if isinstance(loader, PlainLoader):
            # DeepSpeed's RepeatingLoader has no length, but wraps a loader with a length.
            return loader, len(getattr(loader.loader, "loader", loader.loader))
        rank, size = mpu.data_parallel_rank, mpu.data_parallel_world_size
        return loader.share(rank, size), len(range(rank, len(loader), size))
