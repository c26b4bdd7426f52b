"""Lightning: `TrialCallback` makes a call of `trainer.fit` a trial's training, and `DetLogger`
reports what it logs.
"""

from __future__ import annotations

import importlib
import sys
from contextlib import ExitStack
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from detcloud import core
from detcloud.core.framework_loop import FrameworkLoop
from detcloud.pytorch import generators
from detcloud.shared.errors import DetcloudError

CHECKPOINT = "model.ckpt"
GENERATORS = "detcloud_generators"


# The package that the script has imported, by its present name or by its former one.
_NAMES = ("lightning.pytorch", "pytorch_lightning")
_NAME = next((name for name in _NAMES if name in sys.modules), "") or next(
    name for name in _NAMES if find_spec(name.partition(".")[0])
)
_package: Any = importlib.import_module(_NAME)
_Callback: Any = _package.Callback
_Logger: Any = importlib.import_module(f"{_NAME}.loggers").Logger


class TrialCallback(_Callback):
    """Checkpoints and stops one Trainer, reports its validations, and has it go on where it was:
    `trainer.fit(module, ckpt_path=callback.latest_checkpoint())`.

    Every process of the Trainer makes one.
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

    @property
    def is_unfinished(self) -> bool:
        """Whether the trial leaves now and goes on later: then `fit` returned before its end."""
        return self._loop.is_unfinished

    def latest_checkpoint(self) -> str | None:
        """The file to go on from, which is there until training begins; None for a new trial.

        Of another trial's checkpoint the weights alone are taken, by the callback itself.
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
        if self._warm_start is not None:
            state = trainer.strategy.load_checkpoint(self._warm_start)
            pl_module.load_state_dict(state["state_dict"])
            self._warm_start = None

    def on_train_start(self, trainer: Any, pl_module: Any) -> None:
        self._fetched.close()
        checkpoint, info = self._core.info.latest_checkpoint, self._core.info
        if checkpoint is not None and checkpoint.trial_id == info.trial_id and not self._steps:
            raise DetcloudError(
                f"the trial was trained for {info.steps_completed} batches, and the Trainer begins "
                "anew: call trainer.fit(..., ckpt_path=callback.latest_checkpoint())"
            )
        if self._metrics and self._loop.is_due(self._steps, self._epochs):
            # It was saved, and then this process ended before the searcher heard of it.
            self._loop.complete(self._metrics)
        trainer.should_stop = trainer.should_stop or self._loop.has_ended
        is_within = self._epoch_batches and not hasattr(trainer.train_dataloader, "state_dict")
        if is_within and self._core.is_chief:
            print(
                f"[detcloud] training goes on after batch {self._epoch_batches} of its epoch; the "
                "data loader has no state_dict, so what is left of the epoch is trained with "
                "batches from its beginning",
                flush=True,
            )

    def on_train_batch_end(
        self, trainer: Any, pl_module: Any, outputs: Any, batch: Any, batch_idx: int
    ) -> None:
        self._steps += 1
        self._epoch_batches = 0 if trainer.is_last_batch else batch_idx + 1
        self._metrics = {}
        if self._core.preempt.must_stop_at_next_batch():
            self._save(trainer)
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
        self._loop.report_progress(self._steps, share)
        if self._core.preempt.should_preempt():
            trainer.should_stop = True

    def on_train_end(self, trainer: Any, pl_module: Any) -> None:
        if self._steps > self._saved_steps:
            self._save(trainer)

    def on_save_checkpoint(self, trainer: Any, pl_module: Any, checkpoint: dict[str, Any]) -> None:
        checkpoint[GENERATORS] = self._core.distributed.allgather(generators.capture_state())

    def on_load_checkpoint(self, trainer: Any, pl_module: Any, checkpoint: dict[str, Any]) -> None:
        states, ranks = checkpoint.get(GENERATORS, []), self._core.distributed
        if len(states) == ranks.size:
            generators.restore_state(states[ranks.rank])

    def state_dict(self) -> dict[str, Any]:
        counts = {"steps": self._steps, "epochs": self._epochs, "batches": self._epoch_batches}
        return {**counts, "metrics": self._metrics}

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        self._steps = self._saved_steps = state_dict["steps"]
        self._epochs, self._metrics = state_dict["epochs"], state_dict["metrics"]
        self._epoch_batches = state_dict.get("batches", 0)

    def _finish_validation(self, trainer: Any) -> None:
        """Report what the validation has changed of the metrics, save, and answer the searcher."""
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

    def _save(self, trainer: Any) -> None:
        """Store a checkpoint, which every rank writes its part of."""
        self._saved_steps = self._steps
        ranks, folder = self._core.distributed, ""
        framework = f"lightning-{_package.__version__}"
        metadata = {"steps_completed": self._steps, "framework": framework}
        with ExitStack() as stack:
            if self._core.is_chief:
                path, _ = stack.enter_context(self._core.checkpoint.store_path(metadata))
                folder = str(path)
            trainer.save_checkpoint(Path(ranks.broadcast(folder)) / CHECKPOINT, weights_only=False)

    def _mark_loggers(self, trainer: Any, *, is_validating: bool) -> None:
        for logger in trainer.loggers:
            if isinstance(logger, DetLogger):
                logger.is_validating = is_validating


class DetLogger(_Logger):
    """Reports what a Trainer logs as training metrics, but for what its TrialCallback reports."""

    def __init__(
        self, core_context: core.Context | None = None, *, config: Any = None, client: Any = None
    ) -> None:
        """Report to this context; Determined's `config` and `client` are refused."""
        super().__init__()
        if core_context is None or config is not None or client is not None:
            raise DetcloudError(
                "DetLogger reports to a trial: give it the context alone, `with "
                "detcloud.core.init() as context: DetLogger(context)`"
            )
        self._core, self.is_validating = core_context, False

    @property
    def name(self) -> str:
        return "DetLogger"

    @property
    def version(self) -> str:
        return str(self._core.info.trial_id)

    def log_hyperparams(self, params: Any, *args: Any, **kwargs: Any) -> None:
        """Nothing: the trial's hyperparameters are those of its configuration."""

    def log_metrics(self, metrics: dict[str, float], step: int | None = None) -> None:
        # Lightning counts the steps before this one.
        if self._core.is_chief and not self.is_validating:
            self._core.train.report_new_metrics("training", (step or 0) + 1, metrics)
