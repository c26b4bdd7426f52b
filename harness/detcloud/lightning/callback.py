"""The callback that turns a call of `trainer.fit` into a trial's training."""

from __future__ import annotations

from contextlib import ExitStack
from pathlib import Path
from typing import Any

from detcloud import core
from detcloud.core.framework_loop import FrameworkLoop
from detcloud.lightning.logger import DetLogger
from detcloud.lightning.package import package
from detcloud.pytorch import generators
from detcloud.pytorch.loader_progress import LoaderProgress, unfollowed_reason
from detcloud.shared.errors import DetcloudError
from detcloud.shared.plurals import count_text

CHECKPOINT = "model.ckpt"
STATES = "detcloud_generators"
_Callback: Any = package.Callback


class TrialCallback(_Callback):
    """Connects Lightning's Trainer to a trial: validation metrics, checkpoints, preemption,
    resuming.

    Call `trainer.fit(module, ckpt_path=callback.latest_checkpoint())`. Every process of the Trainer
    needs a callback. Training raises DetcloudError if the trial has a checkpoint that the Trainer
    did not load.
    """

    def __init__(self, core_context: core.Context) -> None:
        self._core = core_context
        self._loop = FrameworkLoop(core_context)
        self._fetched = ExitStack()
        self._warm_start: Path | None = None
        self._steps = self._saved_steps = self._epochs = self._epoch_batches = 0
        self._metrics: dict[str, Any] = {}
        self._metrics_before: dict[str, Any] = {}
        self._is_leaving = False
        self._progress: LoaderProgress | None = None
        # This rank's state of the random generators and the loader, from the checkpoint.
        self._rank_state: dict[str, Any] = {}

    @property
    def is_unfinished(self) -> bool:
        """Whether `fit` has returned early because the trial leaves now and resumes later."""
        return self._loop.is_unfinished

    def latest_checkpoint(self) -> str | None:
        """Return the path of the trial's latest checkpoint, for `ckpt_path`. Return None for a new
        trial.

        The file exists until training begins. For another trial's checkpoint, return None too; the
        callback then loads only the weights.

        Raises:
            DetcloudError: the checkpoint cannot be read. A CheckpointDamaged should end the script.
        """
        checkpoint = self._core.info.latest_checkpoint
        if checkpoint is None:
            return None
        folder = self._fetched.enter_context(self._core.checkpoint.restore_path(checkpoint))
        if checkpoint.trial_id == self._core.info.trial_id:
            return str(folder / CHECKPOINT)
        self._warm_start = folder / CHECKPOINT
        return None

    def setup(self, trainer: Any, pl_module: Any, stage: str) -> None:
        # Lightning loads the checkpoint between this call and the sanity check or the training.
        self._core.checkpoint.loading.begin()
        if self._warm_start is not None:
            state = trainer.strategy.load_checkpoint(self._warm_start)
            pl_module.load_state_dict(state["state_dict"])
            self._warm_start = None

    def on_sanity_check_start(self, trainer: Any, pl_module: Any) -> None:
        self._core.checkpoint.loading.end()

    def on_train_start(self, trainer: Any, pl_module: Any) -> None:
        self._core.checkpoint.loading.end()
        self._fetched.close()
        checkpoint, info = self._core.info.latest_checkpoint, self._core.info
        if checkpoint is not None and checkpoint.trial_id == info.trial_id and not self._steps:
            trained = count_text(info.steps_completed, "batch", "batches")
            raise DetcloudError(
                f"the trial was trained for {trained}, and the Trainer would start from the "
                "beginning: call trainer.fit(..., "
                "ckpt_path=callback.latest_checkpoint())"
            )
        if self._metrics and self._loop.is_due(self._steps, self._epochs):
            # An earlier process ended after saving this length and before sending the metric.
            self._loop.complete(self._metrics)
        trainer.should_stop = trainer.should_stop or self._loop.has_ended
        self._go_on_within_epoch(trainer)

    def on_train_epoch_start(self, trainer: Any, pl_module: Any) -> None:
        self._follow_loader(trainer)

    def on_train_batch_end(
        self, trainer: Any, pl_module: Any, outputs: Any, batch: Any, batch_idx: int
    ) -> None:
        self._steps += 1
        self._core.first_step.report(self._steps)
        self._epoch_batches = 0 if trainer.is_last_batch else batch_idx + 1
        self._metrics = {}
        if self._core.preempt.must_stop_at_next_batch():
            self._save(trainer, is_last=True)
            self._is_leaving = trainer.should_stop = True

    def on_validation_start(self, trainer: Any, pl_module: Any) -> None:
        self._metrics_before = dict(trainer.callback_metrics)
        self._mark_loggers(trainer, is_validating=True)

    def on_validation_end(self, trainer: Any, pl_module: Any) -> None:
        self._mark_loggers(trainer, is_validating=False)
        if not trainer.sanity_checking and trainer.state.fn == "fit" and not self._is_leaving:
            self._epochs = trainer.current_epoch + trainer.is_last_batch
            self._finish_validation(trainer)

    def on_train_epoch_end(self, trainer: Any, pl_module: Any) -> None:
        if self._is_leaving:
            return
        self._epochs = trainer.current_epoch + 1
        if not trainer.enable_validation:
            self._metrics_before = {}
            self._finish_validation(trainer)
        steps, epochs = trainer.max_steps, trainer.max_epochs or 0
        share = trainer.global_step / steps if steps > 0 else self._epochs / max(1, epochs)
        self._loop.report_progress(self._steps, self._epochs, share)
        if self._core.preempt.should_preempt():
            trainer.should_stop = True

    def on_train_end(self, trainer: Any, pl_module: Any) -> None:
        if self._steps > self._saved_steps:
            self._save(trainer, is_last=True)

    def on_save_checkpoint(self, trainer: Any, pl_module: Any, checkpoint: dict[str, Any]) -> None:
        progress, batches = self._progress, self._epoch_batches
        state = {
            "generators": generators.capture_state(),
            "loader": None if progress is None else progress.state_dict(batches),
        }
        checkpoint[STATES] = self._core.distributed.allgather(state)

    def on_load_checkpoint(self, trainer: Any, pl_module: Any, checkpoint: dict[str, Any]) -> None:
        states, ranks = checkpoint.get(STATES, []), self._core.distributed
        if len(states) == ranks.size:
            self._rank_state = states[ranks.rank]
            generators.restore_state(self._rank_state.get("generators", self._rank_state))

    def state_dict(self) -> dict[str, Any]:
        counts = {"steps": self._steps, "epochs": self._epochs, "batches": self._epoch_batches}
        return {**counts, "metrics": self._metrics}

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        self._steps = self._saved_steps = state_dict["steps"]
        self._epochs, self._metrics = state_dict["epochs"], state_dict["metrics"]
        self._epoch_batches = state_dict.get("batches", 0)

    def _go_on_within_epoch(self, trainer: Any) -> None:
        """Make the loader resume after the trained batches of the epoch, or log why that is
        impossible.
        """
        reason, state = self._follow_loader(trainer), self._rank_state.get("loader")
        if self._progress is not None:
            if state is not None:
                self._progress.load_state_dict(state)
            elif self._rank_state:
                reason = "its checkpoint has no order of it"
            # Replace the iterator that Lightning has created already.
            iter(trainer.fit_loop._data_fetcher)
        if self._epoch_batches and self._core.is_chief:
            rest = "what is left of the epoch is trained with batches from its beginning"
            more = f"; {reason}, so {rest}" if reason else ""
            at = f"training goes on after batch {self._epoch_batches} of its epoch"
            print(f"[detcloud] {at}{more}", flush=True)

    def _follow_loader(self, trainer: Any) -> str:
        """Follow the epochs of the training loader, and return "".

        If the loader cannot be followed, return the reason. A loader with its own state is not
        followed.
        """
        loader = trainer.train_dataloader
        if hasattr(loader, "state_dict"):
            return ""
        reason = unfollowed_reason(loader)
        if reason:
            self._progress = None
        elif self._progress is None or self._progress.loader is not loader:
            self._progress = LoaderProgress(loader)
        return reason

    def _finish_validation(self, trainer: Any) -> None:
        """Report the metrics that the validation changed, save if needed, and complete the
        operation.

        After the last operation, stop the Trainer.
        """
        self._metrics = {
            name: value.item()
            for name, value in trainer.callback_metrics.items()
            if value is not self._metrics_before.get(name)
        }
        is_wanted = self._loop.report_validation(self._steps, self._metrics)
        is_due = self._loop.is_due(self._steps, self._epochs)
        if is_wanted or is_due:
            self._save(trainer)
        if is_due and not self._loop.complete(self._metrics):
            trainer.should_stop = True

    def _save(self, trainer: Any, *, is_last: bool = False) -> None:
        """Store a checkpoint. Every rank must call this and writes a part of the checkpoint."""
        self._saved_steps = self._steps
        ranks, folder = self._core.distributed, ""
        metadata = {"steps_completed": self._steps, "framework": f"lightning-{package.__version__}"}
        with ExitStack() as stack:
            if self._core.is_chief:
                path, _ = stack.enter_context(self._loop.store_path(metadata, is_last=is_last))
                folder = str(path)
            trainer.save_checkpoint(Path(ranks.broadcast(folder)) / CHECKPOINT, weights_only=False)

    def _mark_loggers(self, trainer: Any, *, is_validating: bool) -> None:
        for logger in trainer.loggers:
            if isinstance(logger, DetLogger):
                logger.is_validating = is_validating
