"""Keras 3 on torch: `DeterminedCallback` turns a call of `model.fit` into a trial's training."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import keras

from detcloud import core
from detcloud.core.framework_loop import FrameworkLoop
from detcloud.pytorch import generators, snapshot
from detcloud.shared.errors import DetcloudError

WEIGHTS = "model_checkpoint"
STATE = "callback_state.json"


class DeterminedCallback(keras.callbacks.ProgbarLogger):
    """Connects `model.fit` to a trial: metrics, checkpoints, preemption and resuming.

    The callback replaces the progress bar, BackupAndRestore and ModelCheckpoint. If the checkpoint
    was stored with the same `continue_id`, training resumes. Otherwise only the model's state is
    loaded, and training starts from the beginning.
    """

    def __init__(
        self,
        core_context: core.Context,
        checkpoint: str | core.CheckpointReference | None,
        continue_id: int | str,
        *,
        train_metrics_report_period: int | str = "epoch",
        checkpoint_epochs: int | None = 1,
    ) -> None:
        """Create a callback for a call of `model.fit`.

        Args:
            core_context: the context of `core.init`.
            checkpoint: the checkpoint to begin with, usually `context.info.latest_checkpoint`. None
                for the new model.
            continue_id: any id of the training, usually `context.info.trial_id`.
            train_metrics_report_period: the number of batches between reports of training metrics,
                or "epoch" for a report after each epoch.
            checkpoint_epochs: the number of epochs between checkpoints. With 0, checkpoints are
                stored only before training ends or is preempted. None: the configuration's
                `checkpoint_policy` decides.

        Raises:
            DetcloudError: a period is invalid.
        """
        # The initialisation of ProgbarLogger would print a progress bar.
        keras.callbacks.Callback.__init__(self)
        period = train_metrics_report_period
        if period != "epoch" and (not isinstance(period, int) or period < 1):
            raise DetcloudError(
                f'train_metrics_report_period is {period!r}: "epoch" or a number of batches was '
                "expected"
            )
        self._core, self._checkpoint, self._continue_id = core_context, checkpoint, continue_id
        self._period, self._checkpoint_epochs = period, checkpoint_epochs
        self._loop = FrameworkLoop(core_context, saves_by_policy=checkpoint_epochs is None)
        self._steps = self._epoch_start = self._epoch = self._skipped = self._begun = 0
        self._saved_steps = 0
        self._is_wanted = self._is_leaving = False
        self._metrics: dict[str, Any] = {}
        self._epoch_generators: dict[str, Any] | None = None
        self._batch_generators: dict[str, Any] | None = None

    def set_params(self, params: dict[str, Any]) -> None:
        keras.callbacks.Callback.set_params(self, params)

    def on_train_begin(self, logs: Any = None) -> None:
        epoch = 0
        if self._checkpoint is not None:
            with self._core.checkpoint.loading.watch(self._checkpoint):
                epoch = self._load()
        self._checkpoint = None
        if self._loop.is_due(self._steps, epoch) and self._metrics and not self._skipped:
            # An earlier process ended after saving this length and before sending the metric.
            self._loop.complete(self._metrics)
        if self._loop.has_ended:
            epoch = self.params["epochs"]
        self.model._initial_epoch = epoch

    def on_epoch_begin(self, epoch: int, logs: Any = None) -> None:
        self._epoch, self._epoch_start = epoch, self._steps - self._skipped
        if self._skipped:
            self._skip_batches(self.model.train_function)
        self._epoch_generators = self._epoch_generators or generators.capture_state()
        self._is_wanted = False

    def on_train_batch_begin(self, batch: int, logs: Any = None) -> None:
        self._begun = batch
        if batch >= self._skipped and self._batch_generators is not None:
            generators.restore_state(self._batch_generators)
            self._batch_generators = None

    def on_train_batch_end(self, batch: int, logs: Any = None) -> None:
        if batch + 1 <= self._skipped:
            return
        self._steps = self._epoch_start + batch + 1
        self._core.first_step.report(self._steps)
        if isinstance(self._period, int) and self._steps % self._period == 0:
            self._report_training(logs or {})
        if self._core.preempt.must_stop_at_next_batch():
            self._save(self._epoch, batch + 1, is_last=True)
            # Keras still runs the epoch's validation, which must not be reported.
            self._is_leaving = self.model.stop_training = True

    def on_test_begin(self, logs: Any = None) -> None: ...

    def on_test_batch_end(self, batch: int, logs: Any = None) -> None: ...

    def on_test_end(self, logs: Any = None) -> None:
        if self._is_leaving:
            return
        metrics = {"epochs": self._epoch + 1, "batches": self._steps, **(logs or {})}
        metric = self._core.info.metric
        if metric.startswith("val_") and (name := metric.removeprefix("val_")) in metrics:
            metrics[metric] = metrics[name]
        self._metrics = metrics
        self._is_wanted = self._loop.report_validation(self._steps, metrics)

    def on_epoch_end(self, epoch: int, logs: Any = None) -> None:
        self._skipped, self._epoch_generators = 0, None
        if self._is_leaving:
            return
        if self._period == "epoch":
            self._report_training(logs or {})
        self._loop.report_progress(self._steps, epoch + 1, (epoch + 1) / self.params["epochs"])
        is_due = self._loop.is_due(self._steps, epoch + 1)
        every = self._checkpoint_epochs
        wanted = self._is_wanted if every is None else bool(every) and (epoch + 1) % every == 0
        if wanted or is_due:
            self._save(epoch + 1)
        if is_due and not self._loop.complete(self._metrics):
            self.model.stop_training = True
        # Check after the checkpoint, which may take long.
        if self._core.preempt.should_preempt():
            self.model.stop_training = True

    def on_train_end(self, logs: Any = None) -> None:
        self.model._initial_epoch = None
        if self._steps > self._saved_steps:
            self._save(self._epoch + 1, is_last=True)

    def save_model(self, model: Any, path: str, distributed: core.DistributedContext) -> None:
        """Write the weights and the optimizer's state to `path` plus `.weights.h5`, on rank 0 only.

        Override this together with `load_model` to store models in another way.

        Args:
            model: the Keras model.
            path: the path of the file without its ending.
            distributed: the trial's processes.
        """
        if distributed.rank == 0:
            model.save_weights(f"{path}.weights.h5")

    def load_model(self, model: Any, path: str, distributed: core.DistributedContext) -> None:
        """Load the file that `save_model` wrote. Build the optimizer first, if needed.

        Args:
            model: the Keras model.
            path: the path of the file without its ending.
            distributed: the trial's processes.
        """
        if model.optimizer is not None and not model.optimizer.built:
            model.optimizer.build(model.trainable_variables)
        model.load_weights(f"{path}.weights.h5")

    def _report_training(self, logs: Mapping[str, Any]) -> None:
        metrics = {name: value for name, value in logs.items() if not name.startswith("val_")}
        counts = {"epochs": self._epoch + 1, "batches": self._steps}
        self._core.train.report_new_metrics("training", self._steps, {**counts, **metrics})

    def _save(self, epoch: int, batches: int = 0, *, is_last: bool = False) -> None:
        """Store a checkpoint after `batches` batches of epoch `epoch`, or at the end of the epoch
        before.

        Every rank must call this.
        """
        state = {
            "epoch": epoch,
            "batches": batches,
            "steps_completed": self._steps,
            "continue_id": self._continue_id,
            "metrics": {} if batches else self._metrics,
        }
        ranks = self._core.distributed
        metadata = {"steps_completed": self._steps, "framework": f"keras-{keras.__version__}"}
        now = generators.capture_state()
        begun = self._epoch_generators if batches else now
        # Exchange before all steps that may fail on a rank, so that no rank waits here for a failed
        # rank.
        drawn = ranks.allgather({"epoch": begun, "batch": now})
        stored = self._loop.store_path(metadata, shard=ranks.size > 1, is_last=is_last)
        with stored as (folder, _):
            self.save_model(self.model, str(folder / WEIGHTS), ranks)
            if self._core.is_chief:
                (folder / STATE).write_text(json.dumps(state, default=float))
                snapshot.save_state({"ranks": drawn}, folder)
        self._saved_steps = self._steps

    def _load(self) -> int:
        """Load the checkpoint and return the epoch with which to resume.

        If the checkpoint has the same `continue_id`, also restore the position and the random
        state. Otherwise load only the model, and return 0.
        """
        assert self._checkpoint is not None
        with self._core.checkpoint.restore_path(self._checkpoint) as folder:
            self.load_model(self.model, str(folder / WEIGHTS), self._core.distributed)
            place = Path(folder) / STATE
            state = json.loads(place.read_text()) if place.exists() else {}
            if state.get("continue_id") != self._continue_id:
                return 0
            loaded = snapshot.load_state(folder)
        # Older checkpoints contain the state of a single process.
        drawn = loaded.get("ranks") or [loaded]
        generator_states = drawn[self._core.distributed.rank % len(drawn)]
        self._steps = self._saved_steps = state["steps_completed"]
        self._skipped, self._metrics = state["batches"], state["metrics"]
        generators.restore_state(generator_states["epoch"])
        self._epoch_generators = generator_states["epoch"] if self._skipped else None
        self._batch_generators = generator_states["batch"] if self._skipped else None
        epoch: int = state["epoch"]
        return epoch

    def _skip_batches(self, train: Any) -> None:
        """Skip the batches of the epoch that an earlier run trained. `train` is the model's train
        function.
        """

        def train_rest(data: Any) -> Any:
            if self._begun < self._skipped:
                return self.model.get_metrics_result()
            self.model.train_function = train
            return train(data)

        self.model.train_function = train_rest
