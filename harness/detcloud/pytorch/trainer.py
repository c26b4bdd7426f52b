"""The Trainer, which computes the plan of a training from the arguments of `fit` and the
specification.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Literal

from detcloud.core import CheckpointReference
from detcloud.pytorch.callback import PyTorchCallback
from detcloud.pytorch.context import PyTorchTrialContext
from detcloud.pytorch.event_files import flush_writers
from detcloud.pytorch.former_trial import to_current_form
from detcloud.pytorch.hooks import Hooks
from detcloud.pytorch.loaders import Loaders, check_not_empty, share_loaders
from detcloud.pytorch.metrics import evaluates_batches
from detcloud.pytorch.periods import (
    Batch,
    Epoch,
    Period,
    configured_batches,
    length_batches,
    period_batches,
)
from detcloud.pytorch.plan import Plan
from detcloud.pytorch.training import Training
from detcloud.pytorch.trial import PyTorchTrial
from detcloud.pytorch.workloads import ERAS, Interval, Multiples, Schedule
from detcloud.shared.articles import with_article
from detcloud.shared.errors import DetcloudError, InvalidType, InvalidValue
from detcloud.shared.trial_directory import ENDLESS

CheckpointPolicy = Literal["best", "all", "none"]


@dataclass(frozen=True)
class _FitArguments:
    """The arguments of `Trainer.fit`."""

    checkpoint_period: Period | None
    validation_period: Period | None
    max_length: Period | None
    reporting_period: Period | None
    checkpoint_policy: CheckpointPolicy | None
    latest_checkpoint: CheckpointReference | str | None
    step_zero_validation: bool | None
    test_mode: bool | None
    profiling_enabled: bool | None


class Trainer:
    """The training loop of a trial: training, validations, checkpoints and requests to stop."""

    training_class: type[Training] = Training

    def __init__(self, trial: PyTorchTrial, context: PyTorchTrialContext) -> None:
        """Create the Trainer of a trial.

        A trial in a former form is adapted, which may wrap its model.

        Args:
            trial: the trial.
            context: the context that the trial was created with.

        Raises:
            InvalidType: `trial` is no PyTorchTrial.
            DetcloudError: the trial defines neither evaluation, or both.
        """
        if not isinstance(trial, PyTorchTrial):
            raise InvalidType(f"{trial!r:.80} is not a PyTorchTrial")
        self._trial = to_current_form(trial, context)
        evaluates_batches(self._trial)
        self._context = context
        self._is_profiled = False

    def configure_profiler(
        self,
        sync_timings: bool = True,
        enabled: bool = False,
        begin_on_batch: int = 0,
        end_after_batch: int | None = None,
    ) -> None:
        """Set whether `fit` measures the machine while training.

        `fit(profiling_enabled=...)` replaces this value.

        Args:
            sync_timings: ignored, as are the last two; they exist for code written for Determined.
            enabled: whether to measure the whole training.
            begin_on_batch: ignored.
            end_after_batch: ignored.
        """
        self._is_profiled = enabled

    def fit(  # noqa: PLR0913 - code written for Determined names all of them.
        self,
        checkpoint_period: Period | None = None,
        validation_period: Period | None = None,
        max_length: Period | None = None,
        reporting_period: Period | None = None,
        checkpoint_policy: CheckpointPolicy | None = None,
        latest_checkpoint: CheckpointReference | str | None = None,
        step_zero_validation: bool | None = None,
        test_mode: bool | None = None,
        profiling_enabled: bool | None = None,
    ) -> None:
        """Train, validate and store checkpoints until the search or `max_length` needs no more
        training.

        None stands for the experiment's configuration. A period is a Batch or an Epoch: a period of
        one number ends at each of its multiples, and `Batch([5, 20])` ends after these batches. In
        contrast, the periods of the configuration count from the last validation or checkpoint.

        Also return after a request of the cluster or of the code to stop the trial, once unsaved
        work is stored. If the machine ends soon, work is stored only if the time suffices. At the
        end, also after an error, call `on_trial_shutdown` and flush the event files.

        Args:
            checkpoint_period: the period of checkpoints.
            validation_period: the period of validations.
            max_length: the length of training. Required without a cluster, except in test mode. On
                a cluster, only used if the search is measured by `time_metric` or has no
                `max_length`.
            reporting_period: the period of training metrics; without a cluster 100 batches by
                default.
            checkpoint_policy: `best` stores a checkpoint after each validation that is better than
                all before in the experiment; without a cluster the default. `all`: after each
                validation. `none`: at checkpoint periods only. If the searcher has no metric,
                `best` means `all`.
            latest_checkpoint: the checkpoint to start from, or its UUID; None for the checkpoint
                that the cluster names. From another trial's checkpoint, only the weights are
                loaded.
            step_zero_validation: whether to validate before the first batch.
            test_mode: whether to train and validate a single batch, and store a checkpoint.
            profiling_enabled: whether to measure the machine; None for the value of
                `configure_profiler`.

        Raises:
            InvalidValue: `max_length` is missing, or `test_mode` is True in a search.
            DetcloudError: a period, the policy, a callback or a data loader is invalid, or a
                checkpoint cannot be loaded or stored.
        """
        self._train(
            _FitArguments(
                checkpoint_period=checkpoint_period,
                validation_period=validation_period,
                max_length=max_length,
                reporting_period=reporting_period,
                checkpoint_policy=checkpoint_policy,
                latest_checkpoint=latest_checkpoint,
                step_zero_validation=step_zero_validation,
                test_mode=test_mode,
                profiling_enabled=profiling_enabled,
            )
        )

    def _train(self, arguments: _FitArguments) -> None:
        """Train as `fit` describes."""
        hooks = Hooks(self._callbacks())
        checkpoint = self._checkpoint(arguments.latest_checkpoint)
        warm_start = self._is_warm_start(checkpoint)
        first = 0 if warm_start or checkpoint is None else self._steps_completed(checkpoint)
        uuid = checkpoint.uuid if isinstance(checkpoint, CheckpointReference) else checkpoint
        hooks.call(PyTorchCallback.on_trial_startup, first, uuid)
        try:
            self._context.set_initial_batch(first)
            loaders = self._loaders()
            is_profiled = arguments.profiling_enabled
            if self._is_profiled if is_profiled is None else is_profiled:
                self._context.core.profiler.start_measuring()
            spec, epoch = self._context.core.info, loaders.epoch_length
            testing = self._is_testing(arguments.test_mode)
            validation = spec.min_validation_batches or configured_batches(
                spec.min_validation_epochs, epoch
            )
            saving = spec.min_checkpoint_batches or configured_batches(
                spec.min_checkpoint_epochs, epoch
            )
            self._warn_of_unused_periods(
                validation_period=(arguments.validation_period, validation),
                checkpoint_period=(arguments.checkpoint_period, saving),
            )
            schedule = self._schedule(
                _period_or_default(arguments.reporting_period, epoch, self._reporting_batches()),
                _period_or_default(arguments.validation_period, epoch, validation),
                _period_or_default(arguments.checkpoint_period, epoch, saving),
                arguments.checkpoint_policy or spec.checkpoint_policy,
            )
            plan = Plan(
                schedule=schedule,
                max_length=self._max_length(arguments.max_length, epoch, testing),
                epoch_length=epoch,
                metric=self._metric(),
                checkpoint=checkpoint,
                warm_start=warm_start,
                first_batch=first,
                initial_validation=not testing
                and self._validates_first(arguments.step_zero_validation),
                test_mode=testing,
            )
            self.training_class(self._trial, self._context, hooks, loaders, plan).run()
        finally:
            hooks.call(PyTorchCallback.on_trial_shutdown)
            flush_writers()

    def _warn_of_unused_periods(self, **periods: tuple[Period | None, int]) -> None:
        """Print on the chief which periods of the configuration are replaced by arguments of `fit`.

        `periods` maps a name to the argument and the configured number of batches, 0 for none.
        """
        if not self._context.core.is_chief:
            return
        for name, (given, configured) in periods.items():
            if given is not None and configured:
                print(
                    f"[detcloud] min_{name} of the configuration is not used:"
                    f" fit({name}=...) goes before it",
                    flush=True,
                )

    def _warn_of_other_time(self, max_length: Period | None) -> None:
        """Print on the chief that `max_length` differs from the search's `max_time`.

        Print nothing without a cluster or a search by time.
        """
        core = self._context.core
        search = core.info.config.get("searcher") or {}
        kind = {"batches": Batch, "epochs": Epoch}.get(str(search.get("time_metric")))
        if kind is None or not core.on_cluster or not core.is_chief:
            return
        if max_length != kind(search.get("max_time", 0)):
            print(
                f"[detcloud] fit(max_length={max_length}) is not the search's max_time, "
                f"{search.get('max_time')} {search['time_metric']}: it may compare trials at other "
                "lengths than you expect",
                flush=True,
            )

    def _validates_first(self, step_zero_validation: bool | None) -> bool:
        """Return whether to validate before the first batch: the argument, or the configuration."""
        if step_zero_validation is not None:
            return step_zero_validation
        return self._context.core.info.perform_initial_validation

    def _is_testing(self, test_mode: bool | None) -> bool:
        """Return whether to test: `test_mode`, or by default the specification's value.

        Raises InvalidValue for a test in a trial of a search.
        """
        core = self._context.core
        if test_mode and core.on_cluster and not core.info.test_mode:
            raise InvalidValue(
                "fit(test_mode=True) would end a trial of a search after one batch: use it without "
                "a cluster, or `detcloud create --test-mode`"
            )
        return core.info.test_mode if test_mode is None else test_mode

    def _callbacks(self) -> dict[str, PyTorchCallback]:
        """Return the trial's callbacks.

        Raises DetcloudError for anything but a dict of callbacks.
        """
        callbacks = self._trial.build_callbacks()
        if not isinstance(callbacks, dict):
            raise DetcloudError(
                f"build_callbacks returned {with_article(type(callbacks).__name__)}: expected a "
                "dict of callbacks by their names"
            )
        for name, callback in callbacks.items():
            if not isinstance(callback, PyTorchCallback):
                raise DetcloudError(f"callback {name!r} is {callback!r:.80}, not a PyTorchCallback")
        return callbacks

    def _loaders(self) -> Loaders:
        """Build and check the trial's data loaders. All processes must call this.

        Raises InvalidCall for objects that are no accepted loaders, and for loaders without
        batches. A validation loader without batches is accepted for `evaluate_full_dataset`. Raises
        errors of the trial's code, and DetcloudError if another process has exited.
        """
        loaders = share_loaders(
            self._trial.build_training_data_loader(),
            self._trial.build_validation_data_loader(),
            self._context.distributed,
            checked=self._context.experimental.checks_data_sets,
        )
        check_not_empty(loaders.training, "build_training_data_loader")
        # `evaluate_full_dataset` may read the data from another place than the loader.
        if evaluates_batches(self._trial):
            check_not_empty(loaders.validation, "build_validation_data_loader")
        return loaders

    def _checkpoint(
        self, latest_checkpoint: CheckpointReference | str | None
    ) -> CheckpointReference | str | None:
        """Return the checkpoint to start from: the argument, or else the cluster's.

        Return None without both.
        """
        return latest_checkpoint or self._context.core.info.latest_checkpoint

    def _is_warm_start(self, checkpoint: CheckpointReference | str | None) -> bool:
        """Return whether only weights are loaded, because another trial wrote the checkpoint.

        `checkpoint` is the result of `_checkpoint`. Return False for None, which means a start
        without a checkpoint. The writer of a UUID is known only for the checkpoint that the cluster
        names; return False for all other UUIDs.
        """
        spec = self._context.core.info
        latest = spec.latest_checkpoint
        if isinstance(checkpoint, str) and latest is not None and latest.uuid == checkpoint:
            checkpoint = latest
        return isinstance(checkpoint, CheckpointReference) and checkpoint.trial_id != spec.trial_id

    def _steps_completed(self, checkpoint: CheckpointReference | str) -> int:
        """Return the trained batches of a checkpoint, from the metadata, or 0 without this entry.

        `checkpoint` is a reference or a UUID. First wait for a background save of this checkpoint.
        Raises DetcloudError if the checkpoint is unknown or storage is disabled, StorageError if
        the store fails, and CheckpointDamaged if the manifest is missing or damaged.
        """
        metadata: dict[str, Any] = self._context.core.checkpoint.get_metadata(checkpoint)
        return int(metadata.get("steps_completed", 0))

    def _schedule(
        self,
        unit: Interval,
        validation_period: Interval,
        checkpoint_period: Interval,
        policy: str,
    ) -> Schedule:
        """Return the schedule of the periods. Without a searcher's metric, `best` becomes `all`.

        Raises DetcloudError for an unknown policy.
        """
        if policy not in ("best", "all", "none"):
            raise DetcloudError(f"checkpoint_policy is {policy!r}, not best, all or none")
        if policy == "best" and self._metric() is None:
            policy = "all"
        return Schedule(
            scheduling_unit=unit,
            validation_period=validation_period,
            checkpoint_period=checkpoint_period,
            policy=policy,
            smaller_is_better=self._smaller_is_better(),
            rules=ERAS[self._context.core.info.era],
        )

    def _reporting_batches(self) -> Interval:
        """Return the configuration's scheduling_unit as a period in batches.

        On a cluster, the period counts from the last report. Without a cluster, the period ends at
        multiples of the unit.
        """
        core = self._context.core
        unit = core.info.scheduling_unit
        return unit if core.on_cluster else Multiples(unit)

    def _metric(self) -> str | None:
        """Return the name of the searcher's metric.

        Return None without a cluster if the configuration has no metric.
        """
        core = self._context.core
        if core.on_cluster:
            return core.info.metric
        metric: str | None = (core.info.config.get("searcher") or {}).get("metric")
        return metric

    def _smaller_is_better(self) -> bool:
        """Return whether smaller values of the searcher's metric are better, by default True."""
        core = self._context.core
        if core.on_cluster:
            return core.info.smaller_is_better
        return bool((core.info.config.get("searcher") or {}).get("smaller_is_better", True))

    def _max_length(self, max_length: Period | None, epoch_length: int, testing: bool) -> int:
        """Return the length in batches: 1 in a test, ENDLESS if only the search decides.

        Print a notice if the length differs from the search's time. Raises InvalidValue without a
        cluster and `max_length`. Raises InvalidType if `max_length` is not a Batch or Epoch with a
        single number, and DetcloudError for a number below 1.
        """
        if testing:
            return 1
        if max_length is None and self._context.core.on_cluster:
            return ENDLESS
        self._warn_of_other_time(max_length)
        if max_length is None:
            raise InvalidValue(
                "fit needs max_length without a cluster: for example max_length=Epoch(10)"
            )
        return length_batches(max_length, epoch_length)


def _period_or_default(period: Period | None, epoch_length: int, default: Interval) -> Interval:
    """Return a period in batches. Return the default for None.

    Raises InvalidType if `period` is not a Batch or Epoch, and DetcloudError for a number below 1.
    """
    return default if period is None else period_batches(period, epoch_length)
