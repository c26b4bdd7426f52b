"""The searcher's operations, each of which says how far to train before the next validation."""

from __future__ import annotations

import json
import math
import time
from collections.abc import Callable, Iterator
from dataclasses import replace
from enum import Enum
from typing import Any

from detcloud.core.distributed_context import DistributedContext
from detcloud.core.preempt import PreemptContext
from detcloud.shared.errors import DetcloudError, InvalidCall, InvalidValue
from detcloud.shared.json_values import to_float, to_json_value, to_python_value
from detcloud.shared.search_values import VALUE_BYTES_MAX
from detcloud.shared.trial_directory import (
    BATCHES,
    ENDLESS,
    EPOCHS,
    Directives,
    Reporter,
)

POLL_SECONDS = 0.02


class Outcome(Enum):
    """The reason why the operations have ended; the value is the reason of the exit report."""

    COMPLETED = "completed"
    """The search needs nothing more from the trial."""
    IDLE = "idle"
    """The trial has reached its length and may get a longer one later."""
    PREEMPTED = "preempted"
    """The cluster has asked the trial to stop and resume later."""


class SearcherOperation:
    """A request of the search: train to a length, validate, and call `complete`.

    `length` counts batches since the trial's start. If `unit` is "epochs", `length` counts epochs,
    because the configuration does not define the records of an epoch. `length_units` is the length
    in the configuration's unit. If `is_endless`, ignore `length`: train as long as you like or
    until a preemption, and report every validation. `completed` is whether `complete` was called.
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
        """Create an open operation. `report` writes a report, a line of the trial's report file.

        `length_units` is by default `length`. `await_checkpoint` waits for a background checkpoint
        and raises its error. `takes_values`: the search accepts any JSON value as its metric.
        """
        self._takes_values = takes_values
        self._await_checkpoint = await_checkpoint
        self.length = length
        self.unit = unit
        self.length_units = length if length_units is None else length_units
        self.completed = False
        self._report = report

    @property
    def is_endless(self) -> bool:
        """Whether the searcher stops the trial by a time metric, so that `length` is
        meaningless.
        """
        return self.length == ENDLESS

    @property
    def counts_epochs(self) -> bool:
        """Whether `length` is a number of epochs."""
        return self.unit == EPOCHS

    @property
    def goal(self) -> str:
        """The length as text for messages: `batch 100` or `epoch 5`."""
        return f"{'epoch' if self.counts_epochs else 'batch'} {self.length}"

    def report_progress(self, completed: float) -> None:
        """Report how much of the operation is done.

        The report has the share of `length`, at most 1. An endless operation reports nothing. Only
        the chief's reports count.

        Args:
            completed: the number of batches since the trial's start, or of epochs if `unit` is
                "epochs".

        Raises:
            DetcloudError: the report cannot be written.
        """
        if self.is_endless:
            return
        self._report("progress", value=max(0.0, min(1.0, to_float(completed) / self.length)))

    def complete(self, metric: Any) -> None:
        """Send the searcher the validation metric at `length`, once.

        Report the validation and store the checkpoint first, so that the metric can be restored.
        The call waits for a background checkpoint. An endless operation sends nothing and ignores
        `metric`: the call ends the training.

        Args:
            metric: a number. Custom searches accept any JSON value of up to 8 KiB except None, such
                as all metrics by name. For other searches, an integer too large for a float counts
                as infinite.

        Raises:
            InvalidCall: the operation is complete already.
            InvalidValue: the metric is no number, or for a custom search too large.
            DetcloudError: the value is no JSON, the report cannot be written, or the background
                checkpoint has failed.
        """
        if self.completed:
            raise InvalidCall(f"the operation of length {self.length} was completed twice")
        fields = {} if self.is_endless else self._metric_fields(metric)
        self._await_checkpoint()
        if not self.is_endless:
            self._report("completed", length=self.length, **fields)
        self.completed = True

    # Determined's name, for scripts written for it.
    report_completed = complete

    def report_missing_metric(self, message: str) -> None:
        """Append a `completed` report without a metric, with the reason `message`.

        A search that needs the metric ends. The operation does not count as completed here. Raises
        DetcloudError if the report cannot be written.
        """
        self._report("completed", length=self.length, metric=None, message=message)

    def _metric_fields(self, metric: Any) -> dict[str, Any]:
        """Return the report's fields: `metric`, a number, or `value`, a custom search's value.

        Raises InvalidValue if the metric is no number, or for custom searches if the value is None
        or exceeds 8 KiB. Raises DetcloudError if the value is no JSON.
        """
        number = _one_number(metric)
        # A custom search receives the exact integer instead of infinity.
        is_huge = number is not None and math.isinf(number) and isinstance(metric, int)
        if number is not None and not (is_huge and self._takes_values):
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
    """Return a metric as a float, infinite if an integer is too large for a float.

    Return None for anything but one number.
    """
    try:
        value = metric.item() if hasattr(metric, "item") else metric
        value = to_python_value(value, "metric")
    except (ValueError, RuntimeError, DetcloudError):
        # Several elements, or a tensor without values.
        return None
    is_number = isinstance(value, int | float) and not isinstance(value, bool)
    return to_float(value) if is_number else None


def _length_of_code(max_length: int | None) -> int:
    """Return `max_length`. Raises InvalidValue if it is missing or ENDLESS."""
    if max_length is None or max_length == ENDLESS:
        raise InvalidValue(
            "nothing says how long to train: give searcher.max_length in the configuration, or "
            "Trainer.fit(max_length=...), or train without searcher.operations()"
        )
    return max_length


class SearcherMode(Enum):
    """The ranks that iterate over the operations: all ranks, or only the chief."""

    WorkersAskChief = "WORKERS_ASK_CHIEF"
    """All ranks iterate, and get the same operations."""
    ChiefOnly = "CHIEF_ONLY"
    """Only the chief iterates. Your code sends the lengths to the other ranks."""

    @classmethod
    def _missing_(cls, value: object) -> SearcherMode | None:
        """Return ChiefOnly for Determined's own value, which is misspelt. Return None for other
        values.
        """
        return cls.ChiefOnly if value == "CHEIF_ONLY" else None


class SearcherContext:
    """Yields the searcher's operations in order; without a cluster, a single operation.

    `outcome` is the reason why the operations have ended, or None before.
    """

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
        """Create the context.

        `read` returns the newest directives: the file by which the cluster sets the length.
        `is_timed`: the search stops the trial by a time metric. `takes_values`: the search accepts
        any JSON value as its metric. `await_checkpoint` waits for a background checkpoint.
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
        """Yield operations of growing length, until this run has nothing left to do.

        The iteration waits for each operation. Afterwards `outcome` is the reason of the end.
        Without a cluster, or if the configuration has no `searcher.max_length`, yield a single
        operation of `max_length`. All ranks must iterate and get the same operations.

        Args:
            max_length: the length if the configuration defines none. Without a cluster, the default
                is 1.
            searcher_mode: with `ChiefOnly`, only the chief iterates.

        Raises:
            InvalidCall: the code asks for the next operation without completing the last operation
                or being preempted, or a rank other than the chief iterates in the mode `ChiefOnly`.
            InvalidValue: on a cluster, neither the configuration nor `max_length` defines the
                length.
            DetcloudError: the cluster's file of directives is malformed, or another process of the
                trial has exited.
            ValueError: the mode is unknown.
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
        """Wait for the next operation, or for the reason why the operations have ended.

        Return the length, the length in the configuration's unit or None, and the unit of the
        first. Or return an Outcome. Raises InvalidValue if nothing defines the length. Raises
        DetcloudError if the cluster's file of directives is malformed.
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
        """Return whether the searcher decides how long to train. Otherwise the code decides.

        Return False without a cluster, for a search that stops trials by time, and without
        `searcher.max_length`. On a cluster, wait for the first length, except for a search by time.
        Return True as well if the search ends or a request to stop arrives before; `operations`
        then yields nothing. All ranks must call this.

        Raises:
            DetcloudError: the cluster's file of directives is malformed, or another process of the
                trial has exited.
        """
        if not self._on_cluster or self._is_timed:
            return False
        if self._distributed is None:
            return self._await_first_length() != ENDLESS
        is_chief = self._distributed.rank == 0
        gives = is_chief and self._await_first_length() != ENDLESS
        return self._distributed.broadcast(gives)

    def _await_first_length(self) -> int | None:
        """Wait for the first length and return the length; ENDLESS without searcher.max_length.

        Return None if the search ends or a request to stop arrives before the first length. The
        first call declares that this process reads requests to stop. Raises DetcloudError if the
        cluster's file of directives is malformed.
        """
        while True:
            directives = self._read()
            is_over = directives.closed or self._preempt.is_requested()
            if directives.length is not None or is_over:
                return directives.length
            time.sleep(POLL_SECONDS)

    def is_finished(self) -> bool:
        """Return whether no operation is open and the cluster will send no more operations.

        For an endless training, return whether no preemption is requested. Raises DetcloudError if
        the cluster's file of directives is malformed.
        """
        directives = self._read()
        if directives.length == ENDLESS:
            return directives.preempt is None
        return directives.closed and (directives.length or 0) <= self._completed_length(directives)

    def _completed_length(self, directives: Directives) -> int:
        """Return the longest completed length, including an operation completed in this run."""
        last = self._current
        done = last.length if last is not None and last.completed else 0
        return max(done, directives.answered)

    def _next_step(self, directives: Directives) -> int | Outcome | None:
        """Return the length of the next operation, or the Outcome if the operations have ended.

        Return None if the cluster has not decided yet, so that the caller asks again later. Raises
        DetcloudError if the cluster's file of directives is malformed.
        """
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
        """Raise InvalidCall if the operation has neither a metric nor a preemption."""
        if not operation.completed and not self._preempt.is_requested():
            raise InvalidCall(
                f"the operation of length {operation.length} was left without its metric: call "
                "operation.complete(metric) before asking for the next one"
            )
