"""The trial's side of a training loop that belongs to a framework, which calls back as it goes.

The framework decides when it validates and saves, and how; its adapter tells a `FrameworkLoop`,
which knows how far the searcher wants to train.
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
    """Follows one loop over the searcher's operations; every rank makes one, and all call alike.

    `operation` is the one that is open. It is None where the code itself says how long to train,
    and after the last one; then `has_ended` is true.
    """

    def __init__(self, context: Context, *, saves_by_policy: bool = True) -> None:
        """`saves_by_policy`: the adapter saves where `report_validation` says so."""
        self._context = context
        context.loop.kind = TrainingLoop.FRAMEWORK
        if not saves_by_policy:
            context.loop.ignored.add(("checkpoint_policy",))
        self._operations: Iterator[SearcherOperation] | None = None
        self._percent = -1
        self._best: float | None = None
        self.operation: SearcherOperation | None = None
        self.has_ended = False
        # Whether the searcher gives lengths in epochs, which then nobody converts.
        self._takes_epochs = False
        if context.batch_searcher.gives_lengths():
            self._operations = context.batch_searcher.operations()
            self._take_operation()

    @property
    def is_unfinished(self) -> bool:
        """Whether the trial leaves now and goes on later, preempted or for want of a length."""
        outcome = self._context.batch_searcher.outcome
        if outcome is None:
            return self._context.preempt.was_seen
        return outcome is not Outcome.COMPLETED

    @property
    def counts_epochs(self) -> bool:
        """Whether the configuration's lengths are epochs, which end where the framework's do."""
        return self._takes_epochs or self._max_epochs() is not None

    def is_due(self, steps: int, epochs: float) -> bool:
        """Whether the operation ends here: after so many batches, or epochs of the framework's own
        where the configuration counts in those.
        """
        if self.operation is None:
            return False
        if self.operation.counts_epochs:
            return epochs >= self.operation.length
        due_epochs = self._epochs(self.operation.length)
        return steps >= self.operation.length if due_epochs is None else epochs >= due_epochs

    def report_progress(self, steps: int, epochs: float, share: float) -> None:
        """Report each percent of the operation, after so many batches and epochs of the framework,
        or where the code says how long to train its `share`; the chief does so for all. After the
        last operation there is none to report.
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
        """Report a validation; whether the configuration's checkpoint_policy wants it saved."""
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
        """Yield a folder to fill, which is stored in the background if that is allowed.

        The last checkpoint is stored in the foreground; everything else is as for `store_path` of
        the Core API.
        """
        behind = self.stores_behind(is_last=is_last)
        return self._context.checkpoint.store_path(metadata, shard=shard, asynchronous=behind)

    def stores_behind(self, *, is_last: bool = False) -> bool:
        """Whether a checkpoint is stored behind the training, unless it `is_last`."""
        return not is_last and may_store_behind(self._context.info.config)

    def complete(self, metrics: Mapping[str, Any]) -> bool:
        """Answer the operation with the searcher's metric, after the checkpoint, and wait for the
        next one; whether there is one.

        Raises DetcloudError where the metrics lack the searcher's, or it is no number.
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
        assert self._operations is not None
        self.operation = next(self._operations, None)
        self.has_ended = self.operation is None
        if self.operation is not None:
            self._takes_epochs = self.operation.counts_epochs

    def _epochs(self, length: int) -> int | None:
        """The whole epochs in so many batches, rounded up; None where the search counts batches."""
        info, max_epochs = self._context.info, self._max_epochs()
        if max_epochs is None:
            return None
        # As the cluster counts: a batch without a size has one record, and nothing is shorter than
        # a batch, however long that is.
        batch_size = max(1, int(_number(info.hparams.get("global_batch_size")) or 1))
        epochs = -(-length * batch_size // int(info.config["records_per_epoch"]))
        return max(1, min(epochs, max_epochs))

    def _max_epochs(self) -> int | None:
        config = self._context.info.config
        max_length = (config.get("searcher") or {}).get("max_length")
        if not isinstance(max_length, Mapping) or not config.get("records_per_epoch"):
            return None
        epochs = max_length.get("epochs")
        return None if epochs is None else int(epochs)


def _number(value: Any) -> float | None:
    value = value.item() if hasattr(value, "item") else value
    is_number = isinstance(value, int | float) and not isinstance(value, bool)
    return float(value) if is_number and value == value else None
