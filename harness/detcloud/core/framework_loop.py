"""The trial's side of a training loop that a framework runs and that reports through callbacks.

The framework decides when and how to validate and save. The framework's adapter informs a
FrameworkLoop, which follows the searcher's operations.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Any

from detcloud.core.background_save import may_store_behind
from detcloud.core.context import Context
from detcloud.core.searcher import Outcome, SearcherOperation
from detcloud.shared.errors import DetcloudError
from detcloud.shared.training_settings import TrainingLoop


class FrameworkLoop:
    """Follows a framework's training loop through the searcher's operations.

    Every rank creates one FrameworkLoop, and all ranks make the same calls. `operation` is the open
    operation. `operation` is None if the code itself decides how long to train, and after the last
    operation; then `has_ended` is true.
    """

    def __init__(self, context: Context, *, saves_by_policy: bool = True) -> None:
        """Record that a framework's loop trains, and wait for the first operation.

        If the code itself decides how long to train, only wait until the cluster has announced
        this. All ranks must do this. `saves_by_policy`: the adapter saves a checkpoint whenever
        `report_validation` returns True. Raises DetcloudError if the cluster's file of directives
        is malformed, or if another process has exited.
        """
        self._context = context
        context.loop.kind = TrainingLoop.FRAMEWORK
        if not saves_by_policy:
            context.loop.ignored.add(("checkpoint_policy",))
        self._operations: Iterator[SearcherOperation] | None = None
        self._percent = -1
        self._best: float | None = None
        self.operation: SearcherOperation | None = None
        self.has_ended = False
        # Whether the searcher gives lengths in epochs, which need no conversion.
        self._takes_epochs = False
        if context.batch_searcher.gives_lengths():
            self._operations = context.batch_searcher.operations()
            self._take_operation()

    @property
    def is_unfinished(self) -> bool:
        """Whether the trial leaves now and resumes later, because of a preemption or for a new
        length.
        """
        outcome = self._context.batch_searcher.outcome
        if outcome is None:
            return self._context.preempt.was_seen
        return outcome is not Outcome.COMPLETED

    @property
    def counts_epochs(self) -> bool:
        """Whether the configuration counts lengths in epochs, which then end with the framework's
        epochs.
        """
        return self._takes_epochs or self._max_epochs() is not None

    def is_due(self, steps: int, epochs: float) -> bool:
        """Return whether the open operation ends after `steps` batches, which are `epochs` epochs.

        If the configuration counts in epochs, only `epochs` decides. Return False if no operation
        is open.
        """
        if self.operation is None:
            return False
        if self.operation.counts_epochs:
            return epochs >= self.operation.length
        due_epochs = self._epochs(self.operation.length)
        return steps >= self.operation.length if due_epochs is None else epochs >= due_epochs

    def report_progress(self, steps: int, epochs: float, share: float) -> None:
        """Report the progress of the open operation whenever the whole percentage changes.

        `steps` and `epochs` are the completed batches and epochs. If the code decides how long to
        train, `share` is the completed part, from 0 to 1. Report nothing on ranks other than the
        chief, or after the last operation. Raises DetcloudError if the report cannot be written,
        and the error of a failed background checkpoint.
        """
        if not self._context.is_chief or self.has_ended:
            return
        if self.operation is not None:
            done = epochs if self.operation.counts_epochs else steps
            share = done / self.operation.length
        share = max(0.0, min(1.0, share))
        if int(share * 100) != self._percent:
            self._percent = int(share * 100)
            self._context.train.report_progress(share)

    def report_validation(self, steps: int, metrics: Mapping[str, Any]) -> bool:
        """Report a validation at batch `steps`. Return whether to save a checkpoint of it.

        All ranks must call this at the same batch, because the chief broadcasts the experiment's
        best value. Metrics that were already reported at this batch are skipped. The
        `checkpoint_policy` decides: True for `all`, False for `none`. For `best`, True if the
        searcher metric is better than every earlier one of the experiment and this loop, and False
        without the metric. Without a cluster, always True.

        Raises InvalidValue or InvalidType for an invalid `steps`. Raises DetcloudError for values
        that JSON cannot contain, and if the report cannot be written or exceeds 256 KiB. Also if
        another process has exited or the cluster's file of directives is malformed. Raises the
        error of a failed background checkpoint.
        """
        experiment_best = self._context.train.get_experiment_best_validation()
        if self._context.distributed.can_exchange:
            experiment_best = self._context.distributed.broadcast(experiment_best)
        self._context.train.report_new_metrics("validation", steps, metrics)
        info = self._context.info
        policy = info.checkpoint_policy if self._context.on_cluster else "all"
        metric = _number(metrics.get(info.metric))
        if policy != "best" or metric is None:
            return policy == "all"
        sign = 1 if info.smaller_is_better else -1
        is_best = all(
            best is None or sign * metric < sign * best for best in (experiment_best, self._best)
        )
        if is_best:
            self._best = metric
        return is_best

    def store_path(
        self, metadata: dict[str, Any], *, shard: bool = False, is_last: bool = False
    ) -> AbstractContextManager[tuple[Path, str]]:
        """Return the context manager of the Core API's `store_path`: a folder to fill and a UUID.

        The files are stored after the block: in the background, except if `is_last` or if the
        configuration forbids background saves. With `shard`, every rank calls this; otherwise only
        the chief. First wait for an earlier background checkpoint, and raise its error. On a
        cluster, `metadata` must contain `steps_completed`, the number of completed batches.

        The block's begin or end raises InvalidCall on a rank that may not store, and InvalidValue
        for invalid `steps_completed` or too large metadata. Raises DetcloudError for metadata that
        is no JSON, or if storing or a report fails. A failed background save raises its error at a
        later report, save or wait.
        """
        behind = self.stores_behind(is_last=is_last)
        return self._context.checkpoint.store_path(metadata, shard=shard, asynchronous=behind)

    def stores_behind(self, *, is_last: bool = False) -> bool:
        """Return whether a checkpoint is stored in the background.

        False if `is_last`, or if `optimizations.asynchronous_checkpoints` is false.
        """
        return not is_last and may_store_behind(self._context.info.config)

    def complete(self, metrics: Mapping[str, Any]) -> bool:
        """Complete the open operation with the searcher's metric of `metrics`, and wait for the
        next operation.

        Call this after the checkpoint is saved. Return whether a next operation is open. Return
        False if none was open. Wait for a background checkpoint and raise its error.

        Raises DetcloudError if the searcher's metric is missing, the report cannot be written,
        the cluster's file of directives is malformed, or another process has exited. Raises
        InvalidValue if the metric is no number.
        """
        if self.operation is None:
            return False
        name = self._context.info.metric
        if name not in metrics:
            raise DetcloudError(
                f"the validation for {self.operation.goal} lacks the searcher's metric "
                f"{name!r}; it has: {', '.join(sorted(metrics)) or 'none'}. Compute it in the "
                "validation, or change searcher.metric in the configuration"
            )
        self.operation.complete(metrics[name])
        self._take_operation()
        return self.operation is not None

    def _take_operation(self) -> None:
        """Wait for the next operation, and set `operation`; at the end, None, and set `has_ended`.

        Raises InvalidCall if the open operation was neither completed nor preempted. Raises
        DetcloudError if the cluster's file of directives is malformed, or if another process has
        exited.
        """
        assert self._operations is not None
        self.operation = next(self._operations, None)
        self.has_ended = self.operation is None
        if self.operation is not None:
            self._takes_epochs = self.operation.counts_epochs

    def _epochs(self, length: int) -> int | None:
        """Return the epochs in `length` batches, rounded up.

        The result is at least 1, and at most the maximum length in epochs. Return None as
        `_max_epochs` does.
        """
        info, max_epochs = self._context.info, self._max_epochs()
        if max_epochs is None:
            return None
        # As on the cluster: a batch of unknown size has a single record, and a length is at least a
        # batch, however many records that is.
        batch_size = max(1, int(_number(info.hparams.get("global_batch_size")) or 1))
        epochs = -(-length * batch_size // int(info.config["records_per_epoch"]))
        return max(1, min(epochs, max_epochs))

    def _max_epochs(self) -> int | None:
        """Return the configured maximum length in epochs.

        Return None if the configuration uses another unit or lacks `records_per_epoch`.
        """
        config = self._context.info.config
        max_length = (config.get("searcher") or {}).get("max_length")
        if not isinstance(max_length, Mapping) or not config.get("records_per_epoch"):
            return None
        epochs = max_length.get("epochs")
        return None if epochs is None else int(epochs)


def _number(value: Any) -> float | None:
    """Return a number or a scalar tensor as a float. Return None for NaN and for anything else."""
    value = value.item() if hasattr(value, "item") else value
    is_number = isinstance(value, int | float) and not isinstance(value, bool)
    return float(value) if is_number and value == value else None
