"""The validations of a training, over the batches of all processes."""

from __future__ import annotations

from typing import Any

from detcloud.pytorch.callback import PyTorchCallback
from detcloud.pytorch.context import PyTorchTrialContext
from detcloud.pytorch.data import DataLoader
from detcloud.pytorch.gang import chief_value, is_gang
from detcloud.pytorch.hooks import Hooks, bind_names
from detcloud.pytorch.loaders import NO_BATCH, Loader, padded_batches, whole_loader
from detcloud.pytorch.metrics import (
    BatchMetrics,
    PartialMetricNotice,
    checked_metrics,
    evaluates_batches,
)
from detcloud.pytorch.reducers import plain_metric
from detcloud.pytorch.trial import PyTorchTrial
from detcloud.shared.errors import InvalidCall


class Evaluation:
    """Evaluates a trial's model on the validation set of `loader`."""

    def __init__(
        self, trial: PyTorchTrial, context: PyTorchTrialContext, hooks: Hooks, loader: Loader
    ) -> None:
        """Create the evaluation. `loader` has the batches of all processes."""
        self._trial, self._context, self._hooks, self._loader = trial, context, hooks, loader
        self._core = context.core
        self._is_gang = is_gang(context.distributed)
        self._notice = PartialMetricNotice()

    def metrics(self) -> dict[str, Any] | None:
        """Return the metrics of the validation set, or None if the validation was stopped.

        All processes call this method and get the metrics, also the reducers' metrics. If the trial
        defines `evaluate_batch`, all processes evaluate and call the hooks of validation epochs. A
        request to stop with a deadline, at which the machine ends or the process is killed, stops
        the validation. If the trial defines `evaluate_full_dataset`, only the chief evaluates,
        without hooks, and nothing stops the validation.

        Raises InvalidCall if `evaluate_batch` gets no batch. Raises DetcloudError for invalid
        metrics, for a malformed file of directives, and if another process has exited. Raises
        errors of the trial's code.
        """
        distributed = self._context.distributed
        if evaluates_batches(self._trial):
            metrics = self._evaluate_batches(self._loader)
        else:
            whole = self._evaluate_whole() if self._core.is_chief else {}
            metrics = chief_value(distributed, whole)
        if metrics is None:
            return None
        return metrics | self._context.reducers.reduce(distributed, training=False)

    def _evaluate_whole(self) -> dict[str, Any]:
        """Return the metrics of the trial's `evaluate_full_dataset`. Called on the chief only.

        The method gets the batches of all processes. Tensors and arrays become numbers or lists;
        other values stay unchanged. Raises InvalidType if the method returns no dict, and errors of
        the method.
        """
        evaluate = bind_names(self._trial.evaluate_full_dataset, "data_loader")
        evaluated = evaluate(whole_loader(self._loader))
        metrics = checked_metrics(evaluated, "evaluate_full_dataset")
        return {name: plain_metric(value) for name, value in metrics.items()}

    def _evaluate_batches(self, loader: Loader) -> dict[str, Any] | None:
        """Return the metrics of `evaluate_batch`, reduced over all processes.

        Return None if a request to stop with a deadline, at which the machine ends or the process
        is killed, stopped the validation. All processes call this and get the metrics. Call the
        hooks of validation epochs.

        Raises InvalidCall if the loader has no batch. Raises DetcloudError for invalid metrics, for
        a malformed file of directives, the cluster's requests, and if another process has exited.
        Raises errors of the trial's code.
        """
        distributed, moved_batch = self._core.distributed, self._context.batch_mover()
        batch_metrics = BatchMetrics(self._trial)
        self._hooks.call(PyTorchCallback.on_validation_epoch_start)
        if isinstance(loader, DataLoader) and self._is_gang:
            loader = loader.share(distributed.rank, distributed.size)
        # All ranks must ask the same number of times whether to stop. A loader of the trial's own
        # may have another number of batches on each rank.
        may_stop = isinstance(loader, DataLoader) or not self._is_gang
        batch_idx = -1
        for batch_idx, batch in enumerate(padded_batches(loader)):
            if batch is not NO_BATCH:
                batch_metrics.add(moved_batch(batch), batch_idx)
            if may_stop and self._core.preempt.must_stop_at_next_batch():
                return None
        if batch_idx < 0:
            raise InvalidCall(
                "the validation data loader has no batch: there is nothing to evaluate"
            )
        if self._hooks.overrides(PyTorchCallback.on_validation_epoch_end):
            self._hooks.call(PyTorchCallback.on_validation_epoch_end, batch_metrics.outputs())
        if self._is_gang:
            batch_metrics.merge(distributed, self._notice)
        return batch_metrics.reduce()
