"""The loop that calls a user's controller for the searcher's operations.

The loop uses the controller's methods `train_for_step`, `compute_validation_metrics`, `save` and
`load`. A controller's own loop, `run`, is not called. The launcher of trial classes uses `init` and
`Trainer`.
"""

from __future__ import annotations

import inspect
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

from detcloud import core
from detcloud.compatibility.trial_controller import TrialContext
from detcloud.core.searcher import Outcome
from detcloud.pytorch.generators import seed_all
from detcloud.pytorch.workloads import (
    ERAS,
    Checkpoint,
    Complete,
    Position,
    Schedule,
    Train,
    Validate,
    is_measured,
    next_workload,
    policy_wants_checkpoint,
)
from detcloud.shared.errors import DetcloudError

_METHODS = ("train_for_step", "compute_validation_metrics", "save", "load")


@contextmanager
def init() -> Iterator[TrialContext]:
    """Yield the context of a trial, with seeded generators. Close the context at the end."""
    with core.init() as core_context:
        seed_all(core_context.info.trial_seed)
        context = TrialContext(core_context)
        try:
            yield context
        finally:
            context.close()


UNKNOWN_EPOCHS = (
    "a trial controller does not know how many batches an epoch has: set records_per_epoch in the"
    " configuration"
)


class Trainer:
    """Trains a trial by its controller, as the searcher requires."""

    def __init__(self, trial: Any, context: TrialContext) -> None:
        """Call the controller class's `pre_execute_hook`, and create the controller.

        Raises DetcloudError if `trial_controller_class` lacks `train_for_step`,
        `compute_validation_metrics`, `save` or `load`, or if the configuration has periods in
        epochs.
        """
        self._core, kind = context.core, type(trial).trial_controller_class
        missing = [name for name in _METHODS if not callable(getattr(kind, name, None))]
        if missing:
            raise DetcloudError(
                f"{type(trial).__name__}: its trial_controller_class {kind!r} has no"
                f" {', '.join(missing)}, through which controllers are used here. Write a script"
                " with detcloud.core, whose loop is your own, or a PyTorchTrial"
            )
        own = type(trial).trial_context_class
        self._context = context if own in (None, TrialContext) else own(context.core)
        kind.pre_execute_hook(self._context.env, None)
        self._controller = _make_controller(kind, trial, self._context)
        self._stop_requested = False
        info = self._core.info
        if info.min_validation_epochs or info.min_checkpoint_epochs:
            raise DetcloudError(UNKNOWN_EPOCHS)
        self._schedule = Schedule(
            scheduling_unit=info.scheduling_unit,
            validation_period=info.min_validation_batches,
            checkpoint_period=info.min_checkpoint_batches,
            policy=info.checkpoint_policy,
            smaller_is_better=info.smaller_is_better,
            rules=ERAS[info.era],
        )
        self._position = Position()

    def fit(self) -> None:
        """Train until the searcher is done or the trial must stop, then store unsaved work.

        Raises DetcloudError for lengths in epochs, and for a validation without the searcher's
        metric.
        """
        self._core.train.allow_repeats()
        self._restore()
        info = self._core.info
        if info.perform_initial_validation and not self._position.steps and not info.test_mode:
            self._validate()
        for operation in self._core.searcher.operations():
            self._run_operation(operation)
            if self._stop_requested or not operation.completed:
                break
        if self._core.searcher.outcome is not Outcome.COMPLETED:
            self._save_if_stale()
        if self._stop_requested:
            self._core.train.report_early_exit(core.EarlyExitReason.USER_REQUESTED_STOP)
        terminate = getattr(self._controller, "terminate", lambda: None)
        terminate()

    def _run_operation(self, operation: core.SearcherOperation) -> None:
        if operation.counts_epochs:
            raise DetcloudError(UNKNOWN_EPOCHS)
        length = 1 if self._core.info.test_mode else operation.length
        while True:
            match next_workload(self._schedule, self._position, length):
                case Train(end):
                    self._train(end)
                    if self._core.is_chief:
                        operation.report_progress(end)
                case Validate():
                    self._validate()
                case Checkpoint():
                    self._position = self._position.after_checkpoint()
                    self._save_if_stale()
                case Complete(metric):
                    operation.complete(metric)
                    return
            must_stop = self._from_any(self._stop_requested) or self._core.preempt.should_preempt()
            if must_stop and not is_measured(self._position, length):
                return

    def _train(self, end: int) -> None:
        steps = self._position.steps
        step_id = -(-end // self._core.info.scheduling_unit)
        metrics = self._answer(self._controller.train_for_step(step_id, end - steps))
        self._position = self._position.after_training(end, end)
        averages = dict(metrics.get("avg_metrics", metrics))
        self._core.train.report_training_metrics(end, averages, batches=end - steps)

    def _validate(self) -> None:
        steps, name = self._position.steps, self._core.info.metric
        step_id = -(-steps // self._core.info.scheduling_unit)
        answer = self._answer(self._controller.compute_validation_metrics(step_id))
        metrics = dict(answer.get("validation_metrics", answer))
        value: Any = metrics.get(name)
        metric = value.item() if hasattr(value, "item") else value
        if not isinstance(metric, int | float):
            raise DetcloudError(
                f"the validation at batch {steps} has {value!r:.80} for the searcher's metric"
                f" {name!r}: expected a number; it has: {', '.join(sorted(metrics)) or 'none'}"
            )
        best = self._core.distributed.broadcast(self._core.train.get_experiment_best_validation())
        self._core.train.report_validation_metrics(steps, metrics)
        wanted = policy_wants_checkpoint(self._schedule, metric, best, self._position.best)
        self._position = self._position.after_validation(self._schedule, metric, wanted)

    def _answer(self, response: Any) -> dict[str, Any]:
        """Return the metrics of a workload's response.

        If the response of any process requests the end of the trial, the trial stops after the
        workload.
        """
        is_asked = bool(response.get("stop_requested")) or self._context.get_stop_requested()
        self._stop_requested = self._from_any(self._stop_requested or is_asked)
        return dict(response.get("metrics", response))

    def _from_any(self, value: bool) -> bool:
        return any(self._core.distributed.allgather(value))

    def _save_if_stale(self) -> None:
        if self._position.is_saved:
            return
        self._position = replace(self._position, saved=self._position.steps)
        if not self._core.is_chief:
            return
        metadata = {"steps_completed": self._position.steps, "position": asdict(self._position)}
        with tempfile.TemporaryDirectory(prefix="detcloud-controller-") as folder:
            place = Path(folder) / "checkpoint"
            place.mkdir()
            try:
                self._controller.save(place)
            except FileExistsError:
                # Controllers of the first releases create the folder themselves.
                place = Path(folder) / "made"
                self._controller.save(place)
            self._core.checkpoint.upload(place, metadata)

    def _restore(self) -> None:
        info = self._core.info
        if info.latest_checkpoint is None:
            return
        with self._core.checkpoint.restore_path(info.latest_checkpoint) as folder:
            self._controller.load(folder)
        if info.latest_checkpoint.trial_id != info.trial_id:
            return
        metadata = self._core.checkpoint.get_metadata(info.latest_checkpoint)
        answered = self._core.distributed.broadcast(self._core.read_directives().answered)
        position = Position(**metadata["position"])
        self._position = position.after_restart(self._schedule, answered, info.validated_steps)


def _make_controller(kind: Any, trial: Any, context: Any) -> Any:
    """Create the controller by `from_trial`, with the trial and the parameters that it names."""
    known = {"context": context, "env": context.env, "workloads": ()}
    parameters = inspect.signature(kind.from_trial).parameters.values()
    named = [one.name for one in parameters if one.kind is one.POSITIONAL_OR_KEYWORD][1:]
    if any(one.kind is one.VAR_KEYWORD for one in parameters):
        return kind.from_trial(trial, **known)
    return kind.from_trial(trial, **{name: known.get(name) for name in named})
