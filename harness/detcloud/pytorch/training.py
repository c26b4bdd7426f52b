"""The training loop: workload after workload, until the searcher has no more.

The processes of a trial go through the same workloads, each with its own share of the batches; the
chief says what only one may decide.
"""

from __future__ import annotations

import math
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any, TypeVar

import torch

from detcloud.core import CheckpointReference, Choice, EarlyExitReason, SearcherOperation
from detcloud.core.searcher import Outcome
from detcloud.pytorch import generators, snapshot
from detcloud.pytorch.callback import PyTorchCallback
from detcloud.pytorch.context import PyTorchTrialContext
from detcloud.pytorch.data import DataLoader
from detcloud.pytorch.gang import copy_buffers_of_chief
from detcloud.pytorch.hooks import Hooks
from detcloud.pytorch.loaders import (
    ENDLESS_EPOCH,
    NO_BATCH,
    Loader,
    Loaders,
    padded_batches,
    whole_loader,
)
from detcloud.pytorch.metrics import (
    BatchMetrics,
    MetricAverage,
    checked_metrics,
    evaluates_batches,
    named_metrics,
)
from detcloud.pytorch.optimization import MODELS, OPTIMIZERS, SCHEDULERS
from detcloud.pytorch.reducers import plain_metric
from detcloud.pytorch.saving import StateStore
from detcloud.pytorch.stored_code import write_code
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
from detcloud.shared.errors import DetcloudError
from detcloud.shared.trial_directory import ENDLESS

Value = TypeVar("Value")

APEX = "amp_state"
STATE_PARTS = (
    MODELS,
    OPTIMIZERS,
    SCHEDULERS,
    "gradients",
    "callbacks",
    "average",
    "position",
    "generators",
)


@dataclass(frozen=True)
class Plan:
    """The arguments of `fit`, resolved; `max_length` is in batches, for runs without a searcher.

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


class Training:
    """Runs a trial by a plan; `position` says how far it is."""

    def __init__(
        self,
        trial: PyTorchTrial,
        context: PyTorchTrialContext,
        hooks: Hooks,
        loaders: Loaders,
        plan: Plan,
    ) -> None:
        self._trial = trial
        self._context = context
        self._core = context.core
        self._optimization = context.optimization
        self._hooks = hooks
        self._optimization.before_step = hooks.before_step()
        # What each batch of a workload returned, where a hook wants it.
        self._batch_metrics: list[dict[str, Any]] | None = (
            [] if hooks.wants_batch_metrics() else None
        )
        self._loaders = loaders
        self._plan = plan
        self._average = MetricAverage()
        self._batches = iter(())
        self._observed_validation = False
        self._states = StateStore(
            context.core, writes_in_step=hooks.overrides(PyTorchCallback.on_checkpoint_write_end)
        )
        # The checkpoint of whose end the callbacks have not been told yet.
        self._unfinished_save: str | None = None
        # Why the latest validation has no metric for the searcher; "" where it has one.
        self._missing_metric_reason = ""
        self.position = Position()

    def run(self) -> None:
        """Train until nothing is left to do here, then checkpoint unsaved work."""
        self._start()
        with self._context.profile_training():
            for operation in self._core.searcher.operations(self._plan.max_length):
                self._tell_of_unused_length(operation)
                self._run_operation(operation)
                if self._is_stop_requested() or not operation.completed:
                    break
        if self._core.searcher.outcome is not Outcome.COMPLETED:
            self._save_before_leaving()
        self._finish_save()
        if self._is_stop_requested():
            self._core.train.report_early_exit(EarlyExitReason.USER_REQUESTED_STOP)

    def _tell_of_unused_length(self, operation: SearcherOperation) -> None:
        """Print that another length than the argument of `fit` counts, once."""
        given, length = self._plan.max_length, operation.length
        is_used = not self._core.on_cluster or operation.is_endless or given in (length, ENDLESS)
        if is_used or self._plan.test_mode or not self._is_chief:
            return
        self._plan = replace(self._plan, max_length=ENDLESS)
        print(
            f"[detcloud] fit(max_length=...), which comes to {given} batches, is not used: the"
            " search says how long, as searcher.max_length is given",
            flush=True,
        )

    def _start(self) -> None:
        self._core.train.allow_repeats()
        state = self._restore_checkpoint() if self._plan.checkpoint is not None else None
        seed = self._context.get_trial_seed()
        self._batches = self._loaders.training.batches_from(self.position.steps, seed)
        # The last batch that was trained, as a validation in an unbroken run would see it.
        self._context.set_position(max(0, self.position.steps - 1), self._loaders.epoch_length)
        self._hooks.call(PyTorchCallback.on_training_start)
        known = self._core.info.validated_steps
        if self._plan.initial_validation and self.position.steps == 0 and known is None:
            self._run_validation()
        if state is not None:
            # Last, so that nothing above moves the generators on.
            generators.restore_state(state["generators"])

    def _run_operation(self, operation: SearcherOperation) -> None:
        """Run workloads until the operation is done or this process has to stop.

        The next workload is chosen before it runs rather than after the last one, so that a trial
        stopped between training and validation validates at the same batch when it resumes.
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
                    self._run_training(end, operation)
                case Validate():
                    self._run_validation()
                case Checkpoint():
                    self.position = self.position.after_checkpoint()
                    self._save_if_stale()
                case Complete(metric):
                    if self._missing_metric_reason:
                        operation.report_missing_metric(self._missing_metric_reason)
                        raise DetcloudError(self._missing_metric_reason)
                    self._finish_save()
                    operation.complete(metric)
                    return
            self._finish_stored_save()
            if self._must_stop() and not is_measured(self.position, length):
                return

    def _run_training(self, end: int, operation: SearcherOperation) -> None:
        """Train to batch `end`; with a deadline, stop before it and leave the workload open."""
        self._optimization.set_training(True)
        self._context.reducers.reset()
        steps, epoch_length = self.position.steps, self._loaders.epoch_length
        while steps < end:
            self._train_batch(steps, epoch_length)
            steps += 1
            if steps < end and self._core.preempt.must_stop_at_next_batch():
                break
        batches = steps - self.position.workload_start
        self.position = self.position.after_training(steps, end)
        if steps < end:
            return
        metrics = self._training_metrics()
        self._core.train.report_training_metrics(steps, self._add_counts(metrics), batches=batches)
        if self._is_chief:
            operation.report_progress(steps)
        self._average = MetricAverage()
        outputs = [
            {name: plain_metric(value) for name, value in one.items()}
            for one in self._batch_metrics or ()
        ]
        self._batch_metrics = None if self._batch_metrics is None else []
        self._hooks.call(PyTorchCallback.on_training_workload_end, metrics, outputs)

    def _training_metrics(self) -> dict[str, Any]:
        """The metrics of the workload that ends, over all processes unless only the chief's count.

        `optimizations.average_training_metrics` decides, which is off by default in the step era.
        """
        distributed, info = self._core.distributed, self._core.info
        options = info.config.get("optimizations") or {}
        average = self._average
        if options.get("average_training_metrics", info.era != "steps"):
            average = average.over_all_processes(distributed)
        reduced = self._context.reducers.reduce(distributed, training=True)
        return {**average.average(), **reduced}

    def _add_counts(self, metrics: dict[str, Any]) -> dict[str, Any]:
        """The metrics to report: in the length era with the batches and epochs until now."""
        steps, epoch_length = self.position.steps, self._loaders.epoch_length
        if self._core.info.era == "steps":
            return metrics
        epochs = {"epochs": steps / epoch_length} if epoch_length < ENDLESS_EPOCH else {}
        # Last, unless the trial has metrics of these names.
        return {**metrics, "batches": steps, **epochs, **metrics}

    def _train_batch(self, batch_idx: int, epoch_length: int) -> None:
        context, (epoch_idx, number) = self._context, divmod(batch_idx, epoch_length)
        context.set_position(batch_idx, epoch_length)
        if number == 0:
            self._hooks.call(PyTorchCallback.on_training_epoch_start, epoch_idx)
        self._optimization.prepare_batch(batch_idx)
        batch = self._moved_batch(next(self._batches))
        if context.precision.is_automatic:
            with context.precision.autocast():
                metrics = self._trial.train_batch(batch, epoch_idx, batch_idx)
        else:
            metrics = self._trial.train_batch(batch, epoch_idx, batch_idx)
        self._average.add(metrics)
        if self._batch_metrics is not None:
            self._batch_metrics.append(named_metrics(metrics))
        self._optimization.step_schedulers(batch_idx, epoch_length)
        context.finish_batch()
        if number + 1 == epoch_length:
            self._hooks.call(PyTorchCallback.on_training_epoch_end, epoch_idx)

    def _run_validation(self) -> None:
        """Validate once; where a deadline cuts it short, only the first hook has had an effect."""
        generators_before = generators.capture_state()
        self._hooks.call(PyTorchCallback.on_validation_start)
        self._optimization.set_training(False)
        copy_buffers_of_chief(self._optimization.models)
        self._context.reducers.reset()
        with generators.preserve_state(), torch.no_grad(), self._context.precision.autocast():
            metrics = self._evaluate()
        if metrics is None:
            # The validation starts anew when the trial resumes, with the hook above.
            generators.restore_state(generators_before)
            return
        steps, validated_steps = self.position.steps, self._core.info.validated_steps
        experiment_best = self._from_chief(self._core.train.get_experiment_best_validation())
        metric = self._searcher_metric(metrics)
        self._core.train.report_validation_metrics(steps, self._add_counts(metrics))
        wants_checkpoint = policy_wants_checkpoint(
            self._plan.schedule,
            metric,
            experiment_best,
            self.position.best,
            repeats=validated_steps is not None and steps <= validated_steps,
        )
        self.position = self.position.after_validation(
            self._plan.schedule, metric, wants_checkpoint
        )
        self._hooks.call(PyTorchCallback.on_validation_end, metrics)
        self._observed_validation = self._hooks.observe_validations()

    def _evaluate(self) -> dict[str, Any] | None:
        """The metrics of the validation set; None where a deadline came before its end."""
        loader = self._loaders.validation
        if self._plan.test_mode:
            loader = loader.first_batches(1)
        if evaluates_batches(self._trial):
            metrics = self._evaluate_batches(loader)
        else:
            metrics = self._from_chief(self._evaluate_whole(loader) if self._is_chief else {})
        if metrics is None:
            return None
        return metrics | self._context.reducers.reduce(self._core.distributed, training=False)

    def _evaluate_whole(self, loader: Loader) -> dict[str, Any]:
        evaluated = self._trial.evaluate_full_dataset(whole_loader(loader))
        metrics = checked_metrics(evaluated, "evaluate_full_dataset")
        return {name: plain_metric(value) for name, value in metrics.items()}

    def _evaluate_batches(self, loader: Loader) -> dict[str, Any] | None:
        distributed = self._core.distributed
        batch_metrics = BatchMetrics(self._trial)
        self._hooks.call(PyTorchCallback.on_validation_epoch_start)
        if isinstance(loader, DataLoader) and self._is_gang:
            loader = loader.share(distributed.rank, distributed.size)
        # All ranks have to ask alike whether to stop, and a loader of the trial's own may give
        # each of them another number of batches.
        may_stop = isinstance(loader, DataLoader) or not self._is_gang
        for batch_idx, batch in enumerate(padded_batches(loader)):
            if batch is not NO_BATCH:
                batch_metrics.add(self._moved_batch(batch), batch_idx)
            if may_stop and self._core.preempt.must_stop_at_next_batch():
                return None
        self._hooks.call(PyTorchCallback.on_validation_epoch_end, batch_metrics.batches)
        if self._is_gang:
            batch_metrics.merge(distributed)
        return batch_metrics.reduce()

    def _moved_batch(self, batch: Any) -> Any:
        moves = self._context.experimental.moves_batches
        return self._context.to_device(batch) if moves else batch

    @property
    def _is_gang(self) -> bool:
        distributed = self._core.distributed
        return distributed.size > 1 and distributed.can_exchange

    @property
    def _is_chief(self) -> bool:
        return self._core.is_chief

    def _from_chief(self, value: Value) -> Value:
        """The chief's value: what each process reads by itself may differ."""
        return self._core.distributed.broadcast(value) if self._is_gang else value

    def _searcher_metric(self, metrics: dict[str, Any]) -> float:
        """The metric that the searcher uses; NaN, which is never the best, if it may be missing."""
        name = self._plan.metric
        if name is None:
            return math.nan
        value: Any = metrics.get(name)
        value = value.tolist() if hasattr(value, "tolist") else value
        if isinstance(value, int | float) and not isinstance(value, bool):
            self._missing_metric_reason = ""
            return value
        batch = self.position.steps
        if name in metrics:
            reason = (
                f"the searcher's metric {name!r} at batch {batch} is {value!r:.80}: it must be one "
                "number"
            )
        else:
            names = ", ".join(sorted(metrics)) or "none"
            reason = (
                f"the validation at batch {batch} lacks the searcher's metric {name!r}; it has: "
                f"{names}. Return it from the trial's evaluation or change searcher.metric"
            )
        if not self._plan.schedule.rules.missing_metric_ends_search:
            raise DetcloudError(reason)
        self._missing_metric_reason = reason
        return math.nan

    def _must_stop(self) -> bool:
        return self._is_stop_requested() or self._core.preempt.should_preempt()

    def _is_stop_requested(self) -> bool:
        """Whether the code of any process has asked for the trial's end."""
        requested = self._context.get_stop_requested()
        return any(self._core.distributed.allgather(requested)) if self._is_gang else requested

    def _save_before_leaving(self) -> None:
        """Store what is not stored yet, as far as a notice leaves the time for it."""
        plan = self._core.plan_last_save
        choice = plan(is_saved=not self._is_stale()) if self._is_chief else Choice.SAVE
        choice = self._from_chief(choice)
        if choice is Choice.SAVE:
            self._save_if_stale(is_last=True)
        elif choice is Choice.KEEP:
            # The chief's plan has done so for itself.
            self._core.checkpoint.saves.abandon()
            self._unfinished_save = None

    def _is_stale(self) -> bool:
        observed = self._observed_validation and self.position.steps > 0
        return observed or not self.position.is_saved

    def _save_if_stale(self, *, is_last: bool = False) -> None:
        if self._is_stale():
            self._save_checkpoint(is_last=is_last)

    def _save_checkpoint(self, *, is_last: bool = False) -> None:
        self._finish_save()
        steps = self.position.steps
        self.position = replace(self.position, saved=steps)
        ranks = self._gathered_rank_states()
        stored = self._store_state(steps, ranks, is_last) if self._is_chief else ("", False)
        self._unfinished_save, is_stored = self._from_chief(stored)
        self._observed_validation = False
        if is_stored:
            self._finish_save()

    def _finish_save(self) -> None:
        """Wait for the checkpoint in the background, and tell the callbacks of its end."""
        uuid, self._unfinished_save = self._unfinished_save, None
        if uuid is None:
            return
        self._core.checkpoint.wait()
        # The others go on once the chief has stored it.
        self._from_chief(None)
        self._hooks.call(PyTorchCallback.on_checkpoint_upload_end, uuid)

    def _finish_stored_save(self) -> None:
        """Tell the callbacks that ask for it of the checkpoint in the background, if it is done."""
        if self._unfinished_save is None or not self._hooks.overrides(
            PyTorchCallback.on_checkpoint_upload_end
        ):
            return
        if self._from_chief(self._core.checkpoint.saves.running is None):
            self._finish_save()

    def _store_state(
        self, steps: int, ranks: list[dict[str, Any]], is_last: bool
    ) -> tuple[str, bool]:
        """Store the trial's state, as the chief; the checkpoint's UUID, and whether it is stored
        already.
        """
        state = {
            **self._optimization.state_dict(),
            APEX: self._context.precision.state_dict(),
            "callbacks": {
                name: callback.state_dict() for name, callback in self._hooks.callbacks.items()
            },
            "average": self._average.state_dict(),
            "position": asdict(self.position),
            "generators": generators.capture_state(),
            **({"ranks": ranks} if ranks else {}),
        }
        self._hooks.call(PyTorchCallback.on_checkpoint_save_start, state)
        metadata = {"steps_completed": steps, "framework": f"torch-{torch.__version__}"}

        def finish(folder: Path) -> None:
            write_code(folder, self._trial, self._core)
            self._hooks.call(PyTorchCallback.on_checkpoint_write_end, folder)

        return self._states.store(state, metadata, finish, is_last=is_last)

    def _gathered_rank_states(self) -> list[dict[str, Any]]:
        """The state that each process has of its own, on the chief; nothing for one alone."""
        if not self._is_gang:
            return []
        ours: dict[str, Any] = {
            "average": self._average.state_dict(),
            "generators": generators.capture_state(),
        }
        if self._optimization.aggregation_frequency > 1:
            ours["gradients"] = self._optimization.gradients()
        return self._core.distributed.gather(ours) or []

    def _restore_checkpoint(self) -> dict[str, Any] | None:
        """Load the plan's checkpoint; its state, or None after a warm start, which has none."""
        assert self._plan.checkpoint is not None
        with self._core.checkpoint.restore_path(self._plan.checkpoint) as folder:
            state = snapshot.load_state(folder, (MODELS,) if self._plan.warm_start else STATE_PARTS)
        self._hooks.call(PyTorchCallback.on_checkpoint_load_start, state)
        if self._plan.warm_start:
            self._optimization.load_models(state)
            return None
        self._optimization.load_state_dict(state)
        ranks = state.get("ranks", [])
        if len(ranks) == self._core.distributed.size:
            state = {**state, **ranks[self._core.distributed.rank]}
            self._optimization.load_gradients(state["gradients"])
        self._average.load_state_dict(state["average"], self._context.device)
        self._context.precision.load_state_dict(state.get(APEX, {}))
        for name, callback in self._hooks.callbacks.items():
            if name in state["callbacks"]:
                callback.load_state_dict(state["callbacks"][name])
        answered = self._from_chief(self._core.read_directives().answered)
        known = self._core.info.validated_steps
        position = Position(**state["position"])
        self.position = position.after_restart(self._plan.schedule, answered, known)
        return state
