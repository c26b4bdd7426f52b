"""The Hugging Face Trainer: `DetCallback` turns a call of `train` into a trial's training."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import transformers
from transformers.trainer_callback import TrainerState
from transformers.trainer_utils import get_last_checkpoint

from detcloud import core
from detcloud.core.framework_loop import FrameworkLoop
from detcloud.shared.errors import DetcloudError
from detcloud.shared.plurals import count_text

LOGS = "runs/"
USER_DATA = "my_data.json"
STATE = "trainer_state.json"
SPEEDS = ("_runtime", "_per_second", "_compilation_time")
# The files of a checkpoint that a warm start deletes.
TRAINING_STATE = ("optimizer.*", "scheduler.pt", "scaler.pt", "rng_state*.pth")


class DetCallback(transformers.TrainerCallback):
    """Connects the Hugging Face Trainer to a trial: metrics, checkpoints, preemption and resuming.

    Call `trainer.train(resume_from_checkpoint=args.resume_from_checkpoint)`. Every process of the
    Trainer needs a callback. Each checkpoint that the Trainer saves is stored. Training raises
    DetcloudError if the trial has a checkpoint that the Trainer did not load. After a preemption,
    the process exits with SystemExit(0).
    """

    def __init__(
        self,
        core_context: core.Context,
        args: transformers.TrainingArguments,
        filter_metrics: list[str] | None = None,
        user_data: dict[str, Any] | None = None,
    ) -> None:
        """Create the callback, check `args`, and fetch the latest checkpoint by
        `load_last_checkpoint`.

        Reports also contain `batches` and `epochs`.

        Args:
            core_context: the context of `core.init`.
            args: the arguments of the Trainer.
            filter_metrics: texts. Only the searcher's metric and metrics whose names contain one of
                the texts are reported. None for all metrics.
            user_data: JSON data that is stored in each checkpoint as `my_data.json`.

        Raises:
            DetcloudError: `args` contradict the configuration.
        """
        super().__init__()
        self.core_context = core_context
        self.filter_metrics, self.user_data = filter_metrics, user_data
        self._continued_steps = 0
        self._metrics: dict[str, Any] = {}
        self._metrics_step = self._uploaded_step = -1
        self._is_due = self._is_leaving = False
        self._loop = FrameworkLoop(core_context, saves_by_policy=False)
        self._check_arguments(args)
        self.load_last_checkpoint(args)

    @property
    def current_op(self) -> core.SearcherOperation | None:
        """The open operation of the searcher. None if only `args` decide how long to train."""
        return self._loop.operation

    def load_last_checkpoint(self, args: transformers.TrainingArguments) -> None:
        """Fetch the trial's latest checkpoint and set `args.resume_from_checkpoint` to the folder.

        The files are copied into `args.output_dir`. Of another trial's checkpoint only the weights
        are kept. Without a checkpoint, nothing happens. If `args.overwrite_output_dir` is set, only
        print that the trial starts from the beginning. Every rank must call this.

        Args:
            args: the arguments of the Trainer, which are changed.
        """
        checkpoint = self.core_context.info.latest_checkpoint
        if checkpoint is None:
            return
        if getattr(args, "overwrite_output_dir", False):
            print(
                "[detcloud] overwrite_output_dir is set: the trial starts from the beginning",
                flush=True,
            )
            return
        ranks = self.core_context.distributed
        self.core_context.checkpoint.download(checkpoint, args.output_dir)
        folder = Path(args.output_dir) / f"checkpoint-{checkpoint.steps_completed}"
        if not folder.is_dir():
            folder = Path(get_last_checkpoint(args.output_dir) or folder)
        if checkpoint.trial_id == self.core_context.info.trial_id:
            self._continued_steps = checkpoint.steps_completed
        else:
            if ranks.local_rank == 0:
                _keep_weights_alone(folder)
            ranks.allgather(None)
        args.resume_from_checkpoint = str(folder)

    def on_init_end(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        # The Trainer loads the checkpoint between this call and the beginning of the training.
        self.core_context.checkpoint.loading.begin()

    def on_train_begin(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        self.core_context.checkpoint.loading.end()
        if self._continued_steps and state.global_step == 0:
            trained = count_text(self._continued_steps, "step")
            raise DetcloudError(
                f"the trial was trained for {trained}, and the Trainer would start from the "
                "beginning: call "
                "trainer.train(resume_from_checkpoint=args.resume_from_checkpoint)"
            )
        if self._continued_steps and args.ignore_data_skip and self.core_context.is_chief:
            print(
                "[detcloud] ignore_data_skip is set: the epoch is trained from its beginning, with "
                "batches that it has had",
                flush=True,
            )
        if self._loop.is_due(state.global_step, state.epoch or 0):
            # An earlier process ended after saving this length and before sending the metric.
            known = [item for item in state.log_history if item.get("step") == state.global_step]
            metrics = {name: value for entry in known for name, value in entry.items()}
            if self.core_context.info.metric in metrics:
                self._loop.complete(metrics)
        control.should_training_stop = self._loop.has_ended

    def on_log(
        self, args: Any, state: Any, control: Any, logs: dict[str, Any] | None = None, **kwargs: Any
    ) -> None:
        logs, step = logs or {}, state.global_step
        if self._metrics_step != step:
            self._metrics_step, self._metrics = step, {}
        self._metrics.update(logs)
        counts = {"batches": step, "epochs": state.epoch or 0.0}
        metrics = {
            **counts,
            **{name: value for name, value in logs.items() if self._is_reported(name)},
        }
        if any(name.startswith("eval_") for name in logs):
            self._loop.report_validation(step, metrics)
        else:
            group = "test" if any(name.startswith("test_") for name in logs) else "training"
            self.core_context.train.report_new_metrics(group, step, metrics)

    def _is_reported(self, name: str) -> bool:
        """Return whether a logged value is reported.

        The searcher's metric and the time metric are always reported. The rounded epoch and
        measurements of speed are never reported. Other values depend on `filter_metrics`.
        """
        info = self.core_context.info
        if name in (info.metric, (info.config.get("searcher") or {}).get("time_metric")):
            return True
        if name == "epoch" or name.endswith(SPEEDS):
            return False
        return not self.filter_metrics or any(part in name for part in self.filter_metrics)

    def on_step_end(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        self.core_context.first_step.report(state.global_step)
        share = state.global_step / max(1, state.max_steps)
        self._loop.report_progress(state.global_step, state.epoch or 0, share)
        if not self._loop.counts_epochs:
            self._note_due(state, control)
        if self.core_context.preempt.should_preempt():
            self._is_leaving = control.should_save = control.should_training_stop = True

    def on_epoch_end(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        if self._uploaded_step == state.global_step:
            # The Trainer may write into the uploaded folder again, so the upload must end first.
            self.core_context.checkpoint.wait()
        if self._loop.counts_epochs:
            self._note_due(state, control)

    def on_save(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        step, ranks = state.global_step, self.core_context.distributed
        name = f"checkpoint-{step}"
        if self.user_data is not None and state.is_world_process_zero:
            (Path(args.output_dir) / name / USER_DATA).write_text(json.dumps(self.user_data))
        # The first rank of each node stores the files of all, so wait until all are written.
        ranks.allgather(None)
        metadata = {"steps_completed": step, "trial_id": self.core_context.info.trial_id}
        self.core_context.checkpoint.upload(
            args.output_dir if ranks.local_rank == 0 else None,
            {**metadata, "framework": f"transformers-{transformers.__version__}"},
            shard=ranks.size > 1,
            selector=lambda path: path.startswith((f"{name}/", LOGS)),
            asynchronous=self._loop.stores_behind(is_last=self._is_leaving),
            growing=lambda path: path.startswith(LOGS),
        )
        self._uploaded_step = step
        if self._is_due:
            self._is_due = False
            control.should_training_stop |= not self._loop.complete(self._metrics)
        if self._is_leaving or self._loop.has_ended:
            self._leave_unfinished()

    def _note_due(self, state: Any, control: Any) -> None:
        """Make the Trainer log, validate and save if the operation ends here."""
        if self._loop.is_due(state.global_step, state.epoch or 0):
            self._is_due = True
            control.should_log = control.should_evaluate = control.should_save = True

    def _leave_unfinished(self) -> None:
        """End the process by SystemExit(0) if the trial is preempted; code after the training must
        not run.
        """
        if self._loop.is_unfinished:
            print(
                "[detcloud] the trial is preempted and will resume from this checkpoint", flush=True
            )
            raise SystemExit(0)

    def _check_arguments(self, args: transformers.TrainingArguments) -> None:
        """Raise DetcloudError if `args` contradict the searcher: another length, or save_strategy
        "best".

        Check nothing if no operation is open.
        """
        if self._loop.operation is None:
            return
        if str(getattr(args.save_strategy, "value", args.save_strategy)) == "best":
            raise DetcloudError(
                'save_strategy="best" saves nothing where the searcher asks for it: use "steps", '
                '"epoch" or "no"'
            )
        max_length = (self.core_context.info.config.get("searcher") or {}).get("max_length")
        by_steps = args.max_steps > 0
        given = {"batches": args.max_steps} if by_steps else {"epochs": args.num_train_epochs}
        for unit, length in max_length.items() if isinstance(max_length, dict) else ():
            if unit in ("batches", "epochs") and given.get(unit) != length:
                raise DetcloudError(
                    f"searcher.max_length is {length} {unit}, and the Trainer's arguments have "
                    f"max_steps {args.max_steps} and num_train_epochs {args.num_train_epochs:g}: "
                    "give both the same length, max_steps for batches or num_train_epochs for "
                    "epochs"
                )


def _keep_weights_alone(folder: Path) -> None:
    """Delete the training state of a checkpoint, and reset the step of the Trainer's state file."""
    for pattern in TRAINING_STATE:
        for file in folder.glob(pattern):
            file.unlink()
    state = TrainerState.load_from_json(str(folder / STATE))
    state.global_step, state.epoch, state.total_flos, state.log_history = 0, 0.0, 0, []
    state.best_metric = state.best_global_step = state.best_model_checkpoint = None
    state.save_to_json(str(folder / STATE))
