"""One process's training: workload after workload, from the searcher's operations to the exit."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import asdict, dataclass, replace
from typing import Any

import torch

from detcloud import DetcloudError
from detcloud.core import CheckpointReference, EarlyExitReason, SearcherOperation
from detcloud.core.searcher import Outcome
from detcloud.pytorch import generators, snapshot
from detcloud.pytorch.callback import PyTorchCallback
from detcloud.pytorch.context import PyTorchTrialContext
from detcloud.pytorch.data import DataLoader
from detcloud.pytorch.metrics import (
    BatchMetrics,
    MetricAverage,
    checked_metrics,
    evaluates_batches,
)
from detcloud.pytorch.trial import PyTorchTrial
from detcloud.pytorch.workloads import (
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

# A time metric that is known without the trial's reporting it.
EPOCHS = "epochs"
STATE_PARTS = (
    "models",
    "optimizers",
    "schedulers",
    "gradients",
    "callbacks",
    "average",
    "position",
    "generators",
)


@dataclass(frozen=True)
class Plan:
    """What `fit` resolved: `max_length` in batches counts where no searcher says how long.

    `metric` names the searcher's metric, None for a run without a searcher. A `warm_start` takes
    the weights of `checkpoint` and nothing else.
    """

    schedule: Schedule
    max_length: int
    metric: str | None
    checkpoint: CheckpointReference | str | None
    warm_start: bool
    initial_validation: bool
    test_mode: bool


@dataclass(frozen=True)
class Loaders:
    training: DataLoader
    validation: DataLoader


class Training:
    """Runs a trial by a plan; `position` says how far it is."""

    def __init__(
        self,
        trial: PyTorchTrial,
        context: PyTorchTrialContext,
        callbacks: dict[str, PyTorchCallback],
        loaders: Loaders,
        plan: Plan,
    ) -> None:
        self._trial = trial
        self._context = context
        self._core = context.core
        self._optimization = context.optimization
        self._callbacks = callbacks
        self._loaders = loaders
        self._plan = plan
        self._average = MetricAverage()
        self._batches = iter(())
        self._observed_validation = False
        # Why the latest validation has no metric for the searcher; "" where it has one.
        self._lack = ""
        self.position = Position()

    def run(self) -> None:
        """Trains until nothing is left to do here; unsaved work is checkpointed at the end."""
        self._start()
        for operation in self._core.searcher.operations(self._plan.max_length):
            self._perform(operation)
            if self._context.get_stop_requested() or not operation.completed:
                break
        if self._core.searcher.outcome is not Outcome.COMPLETED:
            self._save_if_stale()
        if self._context.get_stop_requested():
            self._core.train.report_early_exit(EarlyExitReason.USER_REQUESTED_STOP)

    def _start(self) -> None:
        self._core.train.allow_repeats()
        state = self._restore() if self._plan.checkpoint is not None else None
        seed = self._context.get_trial_seed()
        self._batches = self._loaders.training.batches_from(self.position.steps, seed)
        # The last batch that was trained, as a validation in an unbroken run would see it.
        self._context.set_position(max(0, self.position.steps - 1), len(self._loaders.training))
        self._call(PyTorchCallback.on_training_start)
        known = self._core.info.validated_steps
        if self._plan.initial_validation and self.position.steps == 0 and known is None:
            self._validate()
        if state is not None:
            # Last, so that nothing above moves the generators on.
            generators.restore(state["generators"])

    def _perform(self, operation: SearcherOperation) -> None:
        """Workload after workload until the operation is done or this process has to stop.

        What is due is looked at before a workload rather than after one, so that a trial stopped
        between its training and its validation validates at the same batch when it resumes.
        """
        schedule, length = self._plan.schedule, operation.length
        if operation.is_endless:
            # Without a period the searcher would hear nothing.
            period = schedule.validation_period or schedule.scheduling_unit
            schedule = replace(schedule, validation_period=period)
            length = self._plan.max_length
        if self._plan.test_mode:
            length = 1
        while True:
            match next_workload(schedule, self.position, length):
                case Train(end):
                    self._train(end, operation)
                case Validate():
                    self._validate()
                case Checkpoint():
                    self.position = self.position.checkpointed()
                    self._save_if_stale()
                case Complete(metric):
                    if self._lack:
                        operation.report_lack(self._lack)
                        raise DetcloudError(self._lack)
                    operation.complete(metric)
                    return
            if self._must_stop() and not is_measured(self.position, length):
                return

    def _train(self, end: int, operation: SearcherOperation) -> None:
        """Trains to batch `end`; with a deadline it stops before and the workload stays open."""
        self._optimization.set_training(True)
        steps, epoch_length = self.position.steps, len(self._loaders.training)
        while steps < end:
            self._train_batch(steps, epoch_length)
            steps += 1
            if steps < end and self._core.preempt.must_stop_at_next_batch():
                break
        batches = steps - self.position.workload_start
        self.position = self.position.trained(steps, end)
        if steps < end:
            return
        metrics = self._average.average()
        self._core.train.report_training_metrics(steps, metrics, batches)
        operation.report_progress(steps)
        self._average = MetricAverage()
        self._call(PyTorchCallback.on_training_workload_end, metrics)

    def _train_batch(self, batch_idx: int, epoch_length: int) -> None:
        context, (epoch_idx, number) = self._context, divmod(batch_idx, epoch_length)
        context.set_position(batch_idx, epoch_length)
        if number == 0:
            self._call(PyTorchCallback.on_training_epoch_start, epoch_idx)
        batch = context.to_device(next(self._batches))
        self._average.add(self._trial.train_batch(batch, epoch_idx, batch_idx))
        self._optimization.step_schedulers(batch_idx, epoch_length)
        if number + 1 == epoch_length:
            self._call(PyTorchCallback.on_training_epoch_end, epoch_idx)

    def _validate(self) -> None:
        """One validation; where a deadline cuts it short, nothing but its hook has happened."""
        before = generators.capture()
        self._call(PyTorchCallback.on_validation_start)
        self._optimization.set_training(False)
        with generators.preserved(), torch.no_grad():
            metrics = self._evaluate()
        if metrics is None:
            # It begins anew when the trial resumes, with the hook above.
            generators.restore(before)
            return
        steps, known = self.position.steps, self._core.info.validated_steps
        experiment_best = self._core.train.get_experiment_best_validation()
        metric = self._searcher_metric(metrics)
        if self._core.info.config.get("searcher", {}).get("time_metric") == EPOCHS:
            metrics = {EPOCHS: steps / len(self._loaders.training), **metrics}
        self._core.train.report_validation_metrics(steps, metrics)
        wanted = policy_wants_checkpoint(
            self._plan.schedule,
            metric,
            experiment_best,
            self.position.best,
            repeats=known is not None and steps <= known,
        )
        self.position = self.position.validated(self._plan.schedule, metric, wanted)
        self._call(PyTorchCallback.on_validation_end, metrics)
        self._observed_validation = any(map(_observes_validations, self._callbacks.values()))

    def _evaluate(self) -> dict[str, Any] | None:
        loader = self._loaders.validation
        if self._plan.test_mode:
            loader = loader.cut(1)
        if not evaluates_batches(self._trial):
            whole = self._trial.evaluate_full_dataset(loader)
            return checked_metrics(whole, "evaluate_full_dataset")
        reduced = BatchMetrics(self._trial)
        self._call(PyTorchCallback.on_validation_epoch_start)
        for batch_idx, batch in enumerate(loader):
            reduced.add(self._context.to_device(batch), batch_idx)
            if self._core.preempt.must_stop_at_next_batch():
                return None
        self._call(PyTorchCallback.on_validation_epoch_end, reduced.batches)
        return reduced.reduce()

    def _searcher_metric(self, metrics: dict[str, Any]) -> float:
        """What the validation says to the searcher; where it may lack that, NaN: never the best."""
        name = self._plan.metric
        if name is None:
            return math.nan
        value: Any = metrics.get(name)
        value = value.tolist() if hasattr(value, "tolist") else value
        if isinstance(value, int | float) and not isinstance(value, bool):
            self._lack = ""
            return value
        batch = self.position.steps
        if name in metrics:
            lack = (
                f"the searcher's metric {name!r} at batch {batch} is {value!r:.80}: it must be one "
                "number"
            )
        else:
            found = ", ".join(sorted(metrics)) or "none"
            lack = (
                f"the validation at batch {batch} lacks the searcher's metric {name!r}; it has: "
                f"{found}. Return it from the trial's evaluation or change searcher.metric"
            )
        if not self._plan.schedule.rules.lack_ends_search:
            raise DetcloudError(lack)
        self._lack = lack
        return math.nan

    def _must_stop(self) -> bool:
        return self._context.get_stop_requested() or self._core.preempt.should_preempt()

    def _save_if_stale(self) -> None:
        observed = self._observed_validation and self.position.steps > 0
        if observed or not self.position.is_saved:
            self._save()

    def _save(self) -> None:
        steps = self.position.steps
        self.position = replace(self.position, saved=steps)
        state = {
            **self._optimization.state_dict(),
            "callbacks": {name: one.state_dict() for name, one in self._callbacks.items()},
            "average": self._average.state_dict(),
            "position": asdict(self.position),
            "generators": generators.capture(),
        }
        self._call(PyTorchCallback.on_checkpoint_save_start, state)
        metadata = {"steps_completed": steps, "framework": f"torch-{torch.__version__}"}
        with self._core.checkpoint.store_path(metadata) as (folder, uuid):
            snapshot.save(state, folder)
            self._call(PyTorchCallback.on_checkpoint_write_end, folder)
        self._observed_validation = False
        self._call(PyTorchCallback.on_checkpoint_upload_end, uuid)

    def _restore(self) -> dict[str, Any] | None:
        """Loads the plan's checkpoint; None after a warm start, which has no state to go on."""
        assert self._plan.checkpoint is not None
        with self._core.checkpoint.restore_path(self._plan.checkpoint) as folder:
            state = snapshot.load(folder, ("models",) if self._plan.warm_start else STATE_PARTS)
        self._call(PyTorchCallback.on_checkpoint_load_start, state)
        if self._plan.warm_start:
            self._optimization.load_models(state)
            return None
        self._optimization.load_state_dict(state)
        self._average.load_state_dict(state["average"], self._context.device)
        for name, callback in self._callbacks.items():
            if name in state["callbacks"]:
                callback.load_state_dict(state["callbacks"][name])
        answered = self._core.read_directives().answered
        known = self._core.info.validated_steps
        position = Position(**state["position"])
        self.position = position.resumed(self._plan.schedule, answered, known)
        return state

    def _call(self, hook: Callable[..., None], *arguments: Any) -> None:
        for callback in self._callbacks.values():
            getattr(callback, hook.__name__)(*arguments)


def _observes_validations(callback: PyTorchCallback) -> bool:
    """Whether a validation may have changed what training goes on with."""
    hooks = (
        PyTorchCallback.on_validation_start,
        PyTorchCallback.on_validation_epoch_start,
        PyTorchCallback.on_validation_epoch_end,
        PyTorchCallback.on_validation_end,
    )
    return any(getattr(type(callback), hook.__name__) is not hook for hook in hooks)
