"""The training loop, which runs workloads until the searcher has no more operations.

All processes of a trial run the same workloads, each with its share of the batches. The chief makes
the decisions that must be equal.
"""

from __future__ import annotations

import math
from dataclasses import replace
from typing import Any

import torch

from detcloud.core import EarlyExitReason, SearcherOperation
from detcloud.core.searcher import Outcome
from detcloud.pytorch import generators
from detcloud.pytorch.callback import PyTorchCallback
from detcloud.pytorch.context import PyTorchTrialContext
from detcloud.pytorch.evaluation import Evaluation
from detcloud.pytorch.event_files import flush_writers
from detcloud.pytorch.gang import chief_value, copy_buffers_of_chief, is_gang
from detcloud.pytorch.hooks import Hooks, bind_names
from detcloud.pytorch.loaders import ENDLESS_EPOCH, Loaders
from detcloud.pytorch.metrics import (
    MetricAverage,
    PartialMetricNotice,
    array_metrics,
    named_metrics,
)
from detcloud.pytorch.periods import operation_batches
from detcloud.pytorch.plan import Plan
from detcloud.pytorch.reducers import plain_metric
from detcloud.pytorch.training_state import TrainingState
from detcloud.pytorch.trial import PyTorchTrial
from detcloud.pytorch.workloads import (
    Checkpoint,
    Complete,
    Train,
    Validate,
    is_measured,
    next_workload,
    policy_wants_checkpoint,
)
from detcloud.shared.errors import DetcloudError, InvalidCall
from detcloud.shared.plurals import count_text
from detcloud.shared.trial_directory import ENDLESS


class Training:
    """Runs a trial by a plan."""

    state_class: type[TrainingState] = TrainingState
    evaluation_class: type[Evaluation] = Evaluation

    def __init__(
        self,
        trial: PyTorchTrial,
        context: PyTorchTrialContext,
        hooks: Hooks,
        loaders: Loaders,
        plan: Plan,
    ) -> None:
        """Prepare the training; load and train nothing yet. The hooks of optimizer steps are
        installed.
        """
        self._trial = trial
        self._context = context
        self._core = context.core
        self._optimization = context.optimization
        self._hooks = hooks
        self._optimization.before_step = hooks.before_step()
        # The metrics of each batch of a workload. None without a hook that needs batch metrics.
        self._batch_metrics: list[dict[str, Any]] | None = (
            [] if hooks.wants_batch_metrics() else None
        )
        self._loaders = loaders
        self._plan = plan
        self._state = self.state_class(trial, context, hooks, plan)
        validation = loaders.validation
        if plan.test_mode:
            validation = validation.first_batches(1)
        self._evaluation = self.evaluation_class(trial, context, hooks, validation)
        self._moved_batch = context.batch_mover()
        self._batches = iter(())
        self._train_with = trial.train_batch
        # Why the latest validation has no metric for the searcher, or "".
        self._missing_metric_reason = ""
        self._notice = PartialMetricNotice()

    def run(self) -> None:
        """Restore the plan's checkpoint; train until the searcher is done or a request to stop.

        The cluster or the trial's code requests the stop. Then store unsaved work, and wait for a
        checkpoint in the background. After an interruption notice, unsaved work is stored only if
        the time suffices. If the trial's code requested the stop, report the stop to the cluster as
        an early exit.

        Raises errors of the trial's code. Raises DetcloudError if a report or checkpoint cannot be
        stored or loaded, or the searcher's metric is missing.
        """
        self._start()
        with self._context.profile_training():
            for operation in self._core.searcher.operations(self._plan.max_length):
                self._warn_of_unused_length(operation)
                self._run_operation(operation)
                if self._is_stop_requested() or not operation.completed:
                    break
        if self._core.searcher.outcome is not Outcome.COMPLETED:
            self._state.save_before_leaving()
        self._state.finish_save()
        if self._is_stop_requested():
            self._core.train.report_early_exit(EarlyExitReason.USER_REQUESTED_STOP)

    def _warn_of_unused_length(self, operation: SearcherOperation) -> None:
        """Print, once, on the chief, that the search decides the length and not the argument of
        `fit`.

        Do nothing if the argument is used. After the notice, the plan's `max_length` is ENDLESS.
        """
        given = self._plan.max_length
        length = operation_batches(operation, self._plan.epoch_length)
        is_used = not self._core.on_cluster or operation.is_endless or given in (length, ENDLESS)
        if is_used or self._plan.test_mode or not self._core.is_chief:
            return
        self._plan = replace(self._plan, max_length=ENDLESS)
        batches = count_text(given, "batch", "batches")
        print(
            f"[detcloud] fit(max_length=...), {batches}, is not used: the search decides the"
            " length, because the configuration sets searcher.max_length",
            flush=True,
        )

    def _start(self) -> None:
        """Restore the checkpoint, begin the batches, and call `on_training_start`.

        If the plan says so, also validate before the first batch of a new training. At the end, set
        the random generators to the state in the checkpoint. Raises DetcloudError if the checkpoint
        cannot be read or does not fit the trial, and all errors of a validation and of the trial's
        code.
        """
        self._core.train.allow_repeats()
        drawn = self._state.restore()
        steps, seed = self._state.position.steps, self._context.get_trial_seed()
        self._batches = self._loaders.training.batches_from(steps, seed)
        # A validation after a restart must see the same position as in an unbroken run.
        self._context.set_position(max(0, steps - 1), self._loaders.epoch_length)
        self._hooks.call(PyTorchCallback.on_training_start)
        known = self._core.info.validated_steps
        if self._plan.initial_validation and steps == 0 and known is None:
            self._run_validation()
        self._train_with = bind_names(self._trial.train_batch, "batch", "epoch_idx", "batch_idx")
        if drawn is not None:
            # Restored last, because the code above draws random numbers.
            generators.restore_state(drawn)

    def _run_operation(self, operation: SearcherOperation) -> None:
        """Run workloads until the operation is done, or until a request to stop the trial.

        Complete the operation with the searcher's metric. After an earlier request to stop, by the
        cluster or the trial's code, return without completing the operation. If the metric is
        missing, report the operation's end without a metric to the searcher, and raise
        DetcloudError. Raises errors of the trial's code, and DetcloudError if a report or
        checkpoint cannot be stored.

        An endless operation ends at the plan's `max_length`, and validates after each scheduling
        unit unless the configuration sets a period. In test mode, train a single batch.
        """
        schedule = self._plan.schedule
        length = operation_batches(operation, self._plan.epoch_length)
        if operation.is_endless:
            # Without a period, no validation would be reported to the searcher.
            period = schedule.validation_period or schedule.scheduling_unit
            schedule = replace(schedule, validation_period=period)
            length = self._plan.max_length
        if self._plan.test_mode:
            length = 1
        while True:
            # A workload is chosen just before the workload runs. So a trial that is stopped between
            # training and validation validates at the same batch when the trial resumes.
            match next_workload(schedule, self._state.position, length):
                case Train(end):
                    self._run_training(end, operation)
                case Validate():
                    self._run_validation()
                case Checkpoint():
                    self._state.position = self._state.position.after_checkpoint()
                    self._state.save_if_stale()
                case Complete(metric):
                    if self._missing_metric_reason:
                        operation.report_missing_metric(self._missing_metric_reason)
                        raise DetcloudError(self._missing_metric_reason)
                    self._state.finish_save()
                    operation.complete(metric)
                    return
            self._state.finish_stored_save()
            if self._must_stop() and not is_measured(self._state.position, length):
                return

    def _run_training(self, end: int, operation: SearcherOperation) -> None:
        """Train up to batch `end`, advance the position, and report the averaged metrics.

        The chief also reports the operation's progress. Then begin new averages, and call
        `on_training_workload_end`.

        After a request to stop with a deadline, stop before `end`, advance the position and report
        nothing. At the deadline the machine ends or the process is killed. A resumed trial then
        trains the remaining batches.

        Raises DetcloudError if a report cannot be written, and errors of the trial's code.
        """
        self._optimization.set_training(True)
        self._context.reducers.reset()
        steps, epoch_length = self._state.position.steps, self._loaders.epoch_length
        while steps < end:
            self._train_batch(steps, epoch_length)
            steps += 1
            self._core.first_step.report(steps)
            if steps < end and self._core.preempt.must_stop_at_next_batch():
                break
        batches = steps - self._state.position.workload_start
        self._state.position = self._state.position.after_training(steps, end)
        if steps < end:
            return
        metrics = self._add_counts(self._training_metrics())
        self._core.train.report_training_metrics(steps, metrics, batches=batches)
        if self._core.is_chief:
            operation.report_progress(steps / epoch_length if operation.counts_epochs else steps)
        self._state.average = MetricAverage()
        outputs = [array_metrics(each) for each in self._batch_metrics or ()]
        self._batch_metrics = None if self._batch_metrics is None else []
        self._hooks.call(PyTorchCallback.on_training_workload_end, metrics, outputs)

    def _training_metrics(self) -> dict[str, Any]:
        """Return the averages of the workload's batches, with the metrics of the reducers.

        With `optimizations.average_training_metrics`, the averages cover the batches of all
        processes. Otherwise each process returns the averages of its batches. The default is True;
        for configurations of Determined 0.12 (the step era) False. Reducers always cover all
        processes, and replace averages of the same name. Every process must call this method.
        """
        distributed, info = self._core.distributed, self._core.info
        options = info.config.get("optimizations") or {}
        average = self._state.average
        if options.get("average_training_metrics", info.era != "steps"):
            average = average.over_all_processes(distributed, self._notice)
        reduced = self._context.reducers.reduce(distributed, training=True)
        return {**average.average(), **reduced}

    def _add_counts(self, metrics: dict[str, Any]) -> dict[str, Any]:
        """Return the metrics to report.

        Except for configurations of Determined 0.12 (the step era), add the numbers of trained
        `batches` and whole `epochs`, unless metrics have these names.
        """
        steps, epoch_length = self._state.position.steps, self._loaders.epoch_length
        if self._core.info.era == "steps":
            return metrics
        epochs = {"epochs": steps // epoch_length} if epoch_length < ENDLESS_EPOCH else {}
        # The trial's own metrics replace the counts, which otherwise come last.
        return {**metrics, "batches": steps, **epochs, **metrics}

    def _train_batch(self, batch_idx: int, epoch_length: int) -> None:
        """Train batch `batch_idx`: call the trial and the hooks of epochs, and step schedulers.

        Add the metrics to the average. Raises InvalidType for a result that is no tensor or dict,
        and errors of the trial's code.
        """
        context, (epoch_idx, number) = self._context, divmod(batch_idx, epoch_length)
        context.set_position(batch_idx, epoch_length)
        if number == 0:
            self._hooks.call(PyTorchCallback.on_training_epoch_start, epoch_idx)
        if self._optimization.aggregation_frequency > 1:
            self._optimization.prepare_batch(batch_idx)
        batch = self._moved_batch(next(self._batches))
        if context.precision.is_automatic:
            with context.precision.autocast():
                metrics = self._train_with(batch, epoch_idx, batch_idx)
        else:
            metrics = self._train_with(batch, epoch_idx, batch_idx)
        self._state.average.add(metrics)
        if self._batch_metrics is not None:
            self._batch_metrics.append(named_metrics(metrics))
        if self._optimization.schedulers:
            self._optimization.step_schedulers(batch_idx, epoch_length)
        context.finish_batch()
        if number + 1 == epoch_length:
            self._hooks.call(PyTorchCallback.on_training_epoch_end, epoch_idx)

    def _run_validation(self) -> None:
        """Validate, call the hooks, report the metrics, and advance the position.

        All processes call this. The metrics are reported as the chief's `on_validation_end` has
        changed them. The position then states the metric and whether the policy requires a
        checkpoint. If a request with a deadline stops the validation, restore the random generators
        and report nothing, so that the resumed trial validates again.

        Raises InvalidCall if the loader has no batch, or if the searcher's metric is missing or no
        number. Under the rules of a Determined release that ends the search instead, the metric
        counts as NaN. Raises DetcloudError for invalid metrics, or if a report cannot be written.
        Raises errors of the trial's code.
        """
        generators_before = generators.capture_state()
        self._context.reducers.reset()
        # Called before the hook, so that the hook can set another mode for parts of a model.
        self._optimization.set_training(False)
        self._hooks.call(PyTorchCallback.on_validation_start)
        copy_buffers_of_chief(self._optimization.models)
        with generators.preserve_state(), torch.no_grad(), self._context.precision.autocast():
            metrics = self._evaluation.metrics()
        if metrics is None:
            # When the trial resumes, the validation starts again and calls the hook above again.
            generators.restore_state(generators_before)
            return
        steps, validated_steps = self._state.position.steps, self._core.info.validated_steps
        experiment_best = chief_value(
            self._core.distributed, self._core.train.get_experiment_best_validation()
        )
        if self._hooks.overrides(PyTorchCallback.on_validation_end):
            # The metrics are reported as the chief's callbacks changed them.
            self._hooks.call(PyTorchCallback.on_validation_end, metrics)
            changed = {name: plain_metric(value) for name, value in metrics.items()}
            metrics = chief_value(self._core.distributed, changed)
        metric = self._searcher_metric(metrics)
        self._core.train.report_validation_metrics(steps, self._add_counts(metrics))
        wants_checkpoint = policy_wants_checkpoint(
            self._plan.schedule,
            metric,
            experiment_best,
            self._state.position.best,
            repeats=validated_steps is not None and steps <= validated_steps,
        )
        self._state.position = self._state.position.after_validation(
            self._plan.schedule, metric, wants_checkpoint
        )
        flush_writers()
        self._state.observed_validation = self._hooks.observe_validations()

    def _searcher_metric(self, metrics: dict[str, Any]) -> float:
        """Return the searcher's metric. If the metric is missing, raise InvalidCall or return NaN.

        A metric that is not a single number counts as missing. Return NaN, which is never the best,
        without a searcher, and in eras where a missing metric ends the search. In such an era, set
        `_missing_metric_reason`.
        """
        name = self._plan.metric
        if name is None:
            return math.nan
        value: Any = metrics.get(name)
        value = value.tolist() if hasattr(value, "tolist") else value
        if isinstance(value, int | float) and not isinstance(value, bool):
            self._missing_metric_reason = ""
            return value
        batch = self._state.position.steps
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
            raise InvalidCall(reason)
        self._missing_metric_reason = reason
        return math.nan

    def _must_stop(self) -> bool:
        """Return whether to stop after this workload, equal on every process.

        The code of a process or the cluster may have requested the stop. All processes must call
        this. Raises DetcloudError if the cluster's file of directives is malformed or another
        process of the trial has exited.
        """
        return self._is_stop_requested() or self._core.preempt.should_preempt()

    def _is_stop_requested(self) -> bool:
        """Return whether the code of any process has requested the end of the trial.

        The processes exchange their answers, so every process must call this method and gets the
        same answer. Raises DetcloudError if another process has exited.
        """
        requested = self._context.get_stop_requested()
        return (
            any(self._core.distributed.allgather(requested))
            if is_gang(self._core.distributed)
            else requested
        )
