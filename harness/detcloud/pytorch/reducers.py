"""Metrics that a trial reduces with its own code, over the batches of all processes."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable
from dataclasses import dataclass
from itertools import zip_longest
from typing import Any

from detcloud.core import DistributedContext
from detcloud.shared.articles import with_article
from detcloud.shared.errors import InvalidType, InvalidValue

_NO_VALUE = object()


class MetricReducer(ABC):
    """A metric that is collected over batches and reported after `context.wrap_reducer`.

    Subclasses define methods that `train_batch` or `evaluate_batch` calls with values.
    """

    @abstractmethod
    def reset(self) -> None:
        """Discard collected values. Called before each training workload and each validation."""

    @abstractmethod
    def per_slot_reduce(self) -> Any:
        """Return the data that this process has collected since `reset`, as a picklable object.

        Called at the end of a training workload or validation, before `cross_slot_reduce`.
        """

    @abstractmethod
    def cross_slot_reduce(self, per_slot_metrics: list[Any]) -> Any:
        """Return the metric, or a dict of metrics, from the data of each process, by rank.

        Called on the chief, which shares the result with all processes.
        """


class FunctionReducer(MetricReducer):
    """A reducer that calls a function with the values of all calls of `update`, in all processes.

    The values are in the order of a run with a single process if each batch gave a value.
    """

    def __init__(self, function: Callable[[list[Any]], Any]) -> None:
        self._function = function
        self._values: list[Any] = []

    def update(self, value: Any) -> None:
        """Add a value of a batch."""
        self._values.append(value)

    def reset(self) -> None:
        """Discard all values."""
        self._values = []

    def per_slot_reduce(self) -> list[Any]:
        """Return the values of this process."""
        return self._values

    def cross_slot_reduce(self, per_slot_metrics: list[Any]) -> Any:
        """Return the function's result for all values. Raises errors of the function."""
        rows = zip_longest(*per_slot_metrics, fillvalue=_NO_VALUE)
        return self._function([value for row in rows for value in row if value is not _NO_VALUE])


@dataclass(frozen=True)
class _ReducerEntry:
    """A wrapped reducer."""

    reducer: MetricReducer
    name: str | None
    """The name of the metric. None if the reducer returns metrics by name."""
    for_training: bool
    """Whether the metric is reported with training workloads."""
    for_validation: bool
    """Whether the metric is reported with validations."""


class Reducers:
    """The reducers of a trial, in the order of wrapping."""

    def __init__(self) -> None:
        self._wrapped: list[_ReducerEntry] = []

    def wrap(
        self,
        reducer: MetricReducer | type[MetricReducer] | Callable[[list[Any]], Any],
        name: str | None,
        for_training: bool,
        for_validation: bool,
    ) -> MetricReducer:
        """Add a reducer, and return the MetricReducer: `reducer`, a new instance, or a
        FunctionReducer.

        With `name`, the reducer returns the metric; with None, a dict of metrics. The metrics are
        reported with training workloads and validations if `for_training` and `for_validation`.
        Raises InvalidType for an object that is none of these three, and InvalidValue for an object
        that was wrapped before.
        """
        if isinstance(reducer, type) and issubclass(reducer, MetricReducer):
            reducer = reducer()
        elif not isinstance(reducer, MetricReducer):
            if not callable(reducer):
                raise InvalidType(
                    f"wrap_reducer got {reducer!r:.80}: expected a function of all values or a "
                    "MetricReducer"
                )
            reducer = FunctionReducer(reducer)
        if any(entry.reducer is reducer for entry in self._wrapped):
            raise InvalidValue(
                f"wrap_reducer got the same {type(reducer).__name__} twice: wrap another object"
            )
        self._wrapped.append(_ReducerEntry(reducer, name, for_training, for_validation))
        return reducer

    def reset(self) -> None:
        """Discard the collected values of all reducers in this process."""
        for wrapped in self._wrapped:
            wrapped.reducer.reset()

    def reduce(self, distributed: DistributedContext, *, training: bool) -> dict[str, Any]:
        """Return the metrics of the reducers for training or validation, equal on every process.

        The chief reduces the values of all processes, so every process must call this. Tensors and
        arrays become numbers or lists. The reducers keep their values; the caller calls `reset`
        before the next workload. Empty without reducers that were wrapped for this purpose.

        Raises InvalidType if a reducer without a name returns no dict, or a named reducer returns a
        dict. Raises errors of the reducers, and DetcloudError if another process has exited.
        """
        due = [entry for entry in self._wrapped if _is_due(entry, training)]
        if not due:
            return {}
        ours = [wrapped.reducer.per_slot_reduce() for wrapped in due]
        if distributed.size == 1 or not distributed.can_exchange:
            return _reduced_metrics(due, [ours])
        slots = distributed.gather(ours)
        metrics = _reduced_metrics(due, slots) if slots is not None else {}
        return distributed.broadcast(metrics)


def _is_due(wrapped: _ReducerEntry, training: bool) -> bool:
    """Return whether the reducer is reported with training, or else with validations."""
    return wrapped.for_training if training else wrapped.for_validation


def _reduced_metrics(due: list[_ReducerEntry], slots: list[list[Any]]) -> dict[str, Any]:
    """Return the metrics of the reducers `due`, by name, with numbers and lists.

    `slots` has a list per process with the data of each reducer. Of equal names, the later metric
    counts. Raises InvalidType if a reducer without a name returns no dict, or a named reducer
    returns a dict. Raises errors of the reducers.
    """
    metrics: dict[str, Any] = {}
    for wrapped, *collected in zip(due, *slots, strict=True):
        value = wrapped.reducer.cross_slot_reduce(collected)
        metrics.update(_named_metrics(wrapped, value))
    return metrics


def _named_metrics(wrapped: _ReducerEntry, value: Any) -> dict[str, Any]:
    """Return a reducer's result as metrics by name, with numbers and lists.

    Raises InvalidType if a reducer without a name returns no dict, or a named reducer returns a
    dict.
    """
    if wrapped.name is None and not isinstance(value, dict):
        raise InvalidType(
            f"a reducer without a name gave {with_article(type(value).__name__)}: expected a dict "
            "of metrics; or give wrap_reducer a name"
        )
    if wrapped.name is not None and isinstance(value, dict):
        raise InvalidType(
            f"the reducer named {wrapped.name!r} gave a dict: expected one metric; leave the "
            "name out for a dict of metrics"
        )
    metrics = value if wrapped.name is None else {wrapped.name: value}
    return {name: plain_metric(metric) for name, metric in metrics.items()}


def plain_metric(value: Any) -> Any:
    """Convert a tensor or array into a number or nested lists.

    A list or tuple with a single element becomes the element, also if the caller passes the list,
    and at any depth: `[[1]]` becomes 1. Other values are returned unchanged.
    """
    value = value.tolist() if hasattr(value, "tolist") else value
    while isinstance(value, list | tuple) and len(value) == 1:
        value = value[0].tolist() if hasattr(value[0], "tolist") else value[0]
    return value
