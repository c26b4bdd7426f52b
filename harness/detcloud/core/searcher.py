"""The searcher's operations: how far to train before the next validation."""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Iterator
from dataclasses import replace
from enum import Enum
from typing import Any

from detcloud.core.distributed_context import DistributedContext
from detcloud.core.preempt import PreemptContext
from detcloud.shared.errors import InvalidCall, InvalidValue
from detcloud.shared.search_values import VALUE_BYTES_MAX
from detcloud.shared.trial_directory import (
    BATCHES,
    ENDLESS,
    EPOCHS,
    Directives,
    Reporter,
    to_json_value,
)

POLL_SECONDS = 0.02


class Outcome(Enum):
    """The reason why there are no more operations; the value is the exit line's reason."""

    COMPLETED = "completed"
    IDLE = "idle"
    PREEMPTED = "preempted"


class SearcherOperation:
    """An instruction: train to `length` batches since the trial's start, validate, `complete`.

    Where the `unit` is "epochs", `length` is the number of epochs: the configuration counts in them
    and does not say how many records one has. `length_units` is that length as the configuration
    counts, in epochs for one. One that `is_endless` has no real length: train as long as you like,
    or until preempted, and report every validation.
    """

    def __init__(
        self,
        length: int,
        report: Reporter,
        length_units: int | None = None,
        await_checkpoint: Callable[[], None] = lambda: None,
        unit: str = BATCHES,
        *,
        takes_values: bool = False,
    ) -> None:
        self._takes_values = takes_values
        self._await_checkpoint = await_checkpoint
        self.length = length
        self.unit = unit
        self.length_units = length if length_units is None else length_units
        self.completed = False
        self._report = report

    @property
    def is_endless(self) -> bool:
        """Whether the searcher measures training by a time metric and stops it by itself."""
        return self.length == ENDLESS

    @property
    def counts_epochs(self) -> bool:
        """Whether `length` is the number of epochs."""
        return self.unit == EPOCHS

    @property
    def goal(self) -> str:
        """The length in a sentence: `batch 100`, or `epoch 5`."""
        return f"{'epoch' if self.counts_epochs else 'batch'} {self.length}"

    def report_progress(self, completed: float) -> None:
        """Report how many batches of `length` are done, or epochs where the `unit` is those; of
        several processes the chief's counts.
        """
        if self.is_endless:
            return
        self._report("progress", value=max(0.0, min(1.0, completed / self.length)))

    def complete(self, metric: Any) -> None:
        """Give the searcher its metric at `length`, once, after the report of the metrics.

        An endless operation needs no metric: the call ends the training. It waits for a checkpoint
        that is stored in the background, so that no search decides on what cannot be restored.

        A custom search takes any value that JSON can hold, for instance all metrics by name.
        Raises InvalidCall for a second call, and InvalidValue for a metric that is no number in any
        other search and for a value of more than 8 KiB.
        """
        if self.completed:
            raise InvalidCall(f"the operation of length {self.length} was completed twice")
        fields = self._metric_fields(metric)
        self._await_checkpoint()
        if not self.is_endless:
            self._report("completed", length=self.length, **fields)
        self.completed = True

    # Determined's name, for scripts written for it.
    report_completed = complete

    def report_missing_metric(self, message: str) -> None:
        """Report why there is no metric at `length`, which ends a search that needs it."""
        self._report("completed", length=self.length, metric=None, message=message)

    def _metric_fields(self, metric: Any) -> dict[str, Any]:
        """The fields of a report that say what the searcher gets: a number, or a value."""
        number = _one_number(metric)
        if number is not None:
            return {"metric": number}
        if not self._takes_values or metric is None:
            raise InvalidValue(
                f"the searcher's metric at {self.length} {self.unit} is {metric!r:.80}: it must be "
                "one number; a custom search alone takes other values"
            )
        value = to_json_value(metric, "metric")
        size = len(json.dumps(value))
        if size > VALUE_BYTES_MAX:
            raise InvalidValue(
                f"the value for the search at {self.length} {self.unit} has {size} bytes as JSON; "
                f"expected at most {VALUE_BYTES_MAX}: report_validation_metrics takes more"
            )
        return {"metric": None, "value": value}


def _one_number(metric: Any) -> float | None:
    """The number that a metric is, None where it is something else."""
    try:
        value = metric.item() if hasattr(metric, "item") else metric
        if isinstance(value, int | float) and not isinstance(value, bool):
            return float(value)
    except (ValueError, RuntimeError, OverflowError):
        # Several elements, or an integer beyond what a float holds.
        pass
    return None


def _length_of_code(max_length: int | None) -> int:
    if max_length is None or max_length == ENDLESS:
        raise InvalidValue(
            "nothing says how long to train: give searcher.max_length in the configuration, or "
            "Trainer.fit(max_length=...), or train without searcher.operations()"
        )
    return max_length


class SearcherMode(Enum):
    """The ranks that go through the operations: all of them, or the chief alone."""

    WorkersAskChief = "WORKERS_ASK_CHIEF"
    ChiefOnly = "CHIEF_ONLY"

    @classmethod
    def _missing_(cls, value: object) -> SearcherMode | None:
        """The mode of Determined's own value, which is misspelt there."""
        return cls.ChiefOnly if value == "CHEIF_ONLY" else None


class SearcherContext:
    """Yields one operation after the other; without a cluster, a single one."""

    def __init__(
        self,
        read: Callable[[], Directives],
        report: Reporter,
        preempt: PreemptContext,
        *,
        on_cluster: bool,
        distributed: DistributedContext | None = None,
        is_timed: bool = False,
        takes_values: bool = False,
        await_checkpoint: Callable[[], None] = lambda: None,
    ) -> None:
        """`is_timed`: the search stops the trial by its time metric. `takes_values`: it takes any
        value in the place of its metric.
        """
        self._takes_values = takes_values
        self._await_checkpoint = await_checkpoint
        self._read = read
        self._is_timed = is_timed
        self._distributed = distributed if distributed and distributed.can_exchange else None
        self._report = report
        self._preempt = preempt
        self._on_cluster = on_cluster
        self._current: SearcherOperation | None = None
        self.outcome: Outcome | None = None

    def operations(
        self,
        max_length: int | None = None,
        searcher_mode: SearcherMode = SearcherMode.WorkersAskChief,
    ) -> Iterator[SearcherOperation]:
        """Operations of growing length, waiting for each; ends when nothing is left to do here.

        `outcome` then says why. Where the configuration has no searcher.max_length, and without a
        cluster, there is one operation, of `max_length` (without a cluster 1 by default). Of
        several processes all go through the same ones, which the chief reads, unless
        `searcher_mode` has the chief go through them alone.
        Raises InvalidCall where an operation is left neither completed nor preempted, and on other
        ranks than the chief in that mode, and InvalidValue where nothing says how long to train.
        """
        if not self._on_cluster:
            self._current = None
        distributed = self._distributed
        if SearcherMode(searcher_mode) is SearcherMode.ChiefOnly:
            if distributed is not None and distributed.rank:
                raise InvalidCall(
                    f"rank {distributed.rank} cannot go through the operations, since searcher_mode"
                    " is ChiefOnly: let the chief broadcast what to do, or use WorkersAskChief"
                )
            distributed = None
        is_chief = distributed is None or distributed.rank == 0
        while True:
            step = self._await_step(max_length) if is_chief else None
            step = distributed.broadcast(step) if distributed is not None else step
            if isinstance(step, Outcome):
                self.outcome = step
                return
            assert step is not None
            length, units, unit = step
            operation = SearcherOperation(
                length,
                self._report,
                units,
                self._await_checkpoint,
                unit,
                takes_values=self._takes_values,
            )
            self._current = operation
            yield operation
            if is_chief:
                self._check_completed(operation)

    def _await_step(self, max_length: int | None) -> tuple[int, int | None, str] | Outcome:
        """Wait for the next operation's length, that in the configuration's unit, and the length's
        own unit; or for the reason why there is none.
        """
        while True:
            directives = self._read() if self._on_cluster else Directives(0, max_length or 1, True)
            if directives.length == ENDLESS and not self._is_timed:
                length = _length_of_code(max_length)
                directives = replace(directives, length=length, length_units=None, closed=True)
            step = self._next_step(directives)
            if step is not None:
                if isinstance(step, Outcome):
                    return step
                return step, directives.length_units, directives.length_unit
            time.sleep(POLL_SECONDS)

    def gives_lengths(self) -> bool:
        """Whether the searcher says how long to train; without a cluster, in a search that stops
        trials by time, and without searcher.max_length the code does.

        Waits for the cluster's first word, which of several processes the chief reads for all.
        """
        if not self._on_cluster or self._is_timed:
            return False
        if self._distributed is None:
            return self._await_first_length() != ENDLESS
        is_chief = self._distributed.rank == 0
        gives = is_chief and self._await_first_length() != ENDLESS
        return self._distributed.broadcast(gives)

    def _await_first_length(self) -> int | None:
        """The length in the directives; None where the trial ends or leaves before it has one."""
        while True:
            directives = self._read()
            is_over = directives.closed or self._preempt.is_requested()
            if directives.length is not None or is_over:
                return directives.length
            time.sleep(POLL_SECONDS)

    def is_finished(self) -> bool:
        """Whether no operation is left and none will come."""
        directives = self._read()
        if directives.length == ENDLESS:
            return directives.preempt is None
        return directives.closed and (directives.length or 0) <= self._completed_length(directives)

    def _completed_length(self, directives: Directives) -> int:
        """The longest length that is done, also where the caller left the loop after it."""
        last = self._current
        done = last.length if last is not None and last.completed else 0
        return max(done, directives.answered)

    def _next_step(self, directives: Directives) -> int | Outcome | None:
        length, done = directives.length, self._completed_length(directives)
        if done == ENDLESS:
            return Outcome.COMPLETED
        open_length = length if length is not None and length > done else None
        if open_length is None and directives.closed:
            return Outcome.COMPLETED
        if self._preempt.is_requested():
            return Outcome.PREEMPTED
        if open_length is not None:
            return open_length
        if length is not None and length <= directives.answered:
            return Outcome.IDLE
        return None

    def _check_completed(self, operation: SearcherOperation) -> None:
        if not operation.completed and not self._preempt.is_requested():
            raise InvalidCall(
                f"the operation of length {operation.length} was left without its metric: call "
                "operation.complete(metric) before asking for the next one"
            )
