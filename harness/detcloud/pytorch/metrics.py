"""Metrics of many batches: averages over training workloads, reductions over validations."""

from __future__ import annotations

import inspect
from collections.abc import Collection, Sequence
from decimal import Decimal
from itertools import zip_longest
from numbers import Real
from typing import Any, TypeVar

import torch

from detcloud.core import DistributedContext
from detcloud.pytorch.former_trial import FormerTrial
from detcloud.pytorch.hooks import bind_names
from detcloud.pytorch.trial import PyTorchTrial, Reducer
from detcloud.shared.articles import with_article
from detcloud.shared.errors import DetcloudError, InvalidType, InvalidValue
from detcloud.shared.json_values import to_float

Item = TypeVar("Item")


class PartialMetricNotice:
    """Prints a notice, once for each metric, if only some processes have the metric."""

    def __init__(self) -> None:
        self._told: set[tuple[str, str]] = set()

    def tell(self, group: str, names_by_rank: Sequence[Collection[str]], rank: int) -> None:
        """Print the metrics of a group that some ranks lack; only rank 0 prints.

        A rank without any metric had no batch, and is ignored.
        """
        reporting = [number for number, names in enumerate(names_by_rank) if names]
        for name in dict.fromkeys(name for names in names_by_rank for name in names):
            having = [number for number in reporting if name in names_by_rank[number]]
            if len(having) == len(reporting) or (group, name) in self._told:
                continue
            self._told.add((group, name))
            if rank == 0:
                ranks = ", ".join(map(str, having))
                print(
                    f"[detcloud] only {len(having)} of {len(names_by_rank)} processes have the"
                    f" {group} metric {name!r} (ranks {ranks}): it is that of their batches alone",
                    flush=True,
                )


class MetricAverage:
    """The averages of training metrics over batches. Sums on a GPU do not wait for the GPU.

    An array counts as its mean. A metric that has no numbers, or arrays of different shapes, has
    the average None. Sums are in double precision: CPU values are summed as Python floats, and
    other tensors on their device in place.
    """

    def __init__(self) -> None:
        self._sums: dict[str, torch.Tensor | float] = {}
        self._counts: dict[str, int] = {}
        # The shapes of metrics that are arrays; None for a metric without an average.
        self._shapes: dict[str, list[int] | None] = {}

    def add(self, metrics: torch.Tensor | dict[str, Any]) -> None:
        """Add a batch's metrics; a tensor is the metric `loss`. A metric that is None is skipped.

        A metric without numbers, or with arrays of different shapes, gets the average None. Raises
        InvalidType for anything but a tensor or dict.
        """
        sums, counts = self._sums, self._counts
        named = metrics if type(metrics) is dict else named_metrics(metrics)
        for name, value in named.items():
            if value is None:
                continue
            if isinstance(value, torch.Tensor) and _is_cpu_scalar(value):
                value = value.item()
            total = sums.get(name)
            if type(value) is float and type(total) is float and name not in self._shapes:
                # The path of nearly every metric and batch.
                sums[name] = total + value
            else:
                sums[name] = self._add_to_total(name, value)
            counts[name] = counts.get(name, 0) + 1

    def average(self) -> dict[str, Any]:
        """Return the mean of each metric over the batches with a value. Without a mean, None."""
        return {name: self._mean(name) for name in self._sums}

    def state_dict(self) -> dict[str, Any]:
        """Return the sums, the counts and the shapes by metric, for checkpoints."""
        sums, counts, shapes = dict(self._sums), dict(self._counts), dict(self._shapes)
        return {"sums": sums, "counts": counts, "shapes": shapes}

    def over_all_processes(
        self, distributed: DistributedContext, notice: PartialMetricNotice | None = None
    ) -> MetricAverage:
        """Return a new average over the batches of all processes, equal on each process.

        Return this object itself in a single process, or if the processes cannot exchange values.
        All processes must call this. Only batches with a value of a metric count. `notice` prints
        metrics that some processes lack; None prints nothing. Raises DetcloudError if another
        process has exited.
        """
        if distributed.size == 1 or not distributed.can_exchange:
            return self
        state = {**self.state_dict(), "sums": _on_cpu(self._sums)}
        merged = MetricAverage()
        states = distributed.allgather(state)
        if notice is not None:
            notice.tell("training", [other["sums"] for other in states], distributed.rank)
        for other in states:
            for name, total in other["sums"].items():
                merged._note_shape(name, other["shapes"].get(name, []))
                before = merged._sums.get(name)
                merged._sums[name] = total if before is None else before + total
                merged._counts[name] = merged._counts.get(name, 0) + other["counts"][name]
        return merged

    def load_state_dict(self, state: dict[str, Any], device: torch.device) -> None:
        """Restore a state of `state_dict`, with tensors moved to `device`.

        The sum of an array becomes the mean of its elements.
        """
        self._sums = {
            name: total.mean().to(device) if isinstance(total, torch.Tensor) else total
            for name, total in state["sums"].items()
        }
        self._counts = dict(state["counts"])
        self._shapes = dict(state.get("shapes", {}))

    def _mean(self, name: str) -> float | None:
        """Return the mean of a metric. Return None if the values have no common shape."""
        if self._shapes.get(name, ()) is None:
            return None
        mean = self._sums[name] / self._counts[name]
        return float(mean)

    def _add_to_total(self, name: str, value: object) -> torch.Tensor | float:
        """Return the total of a metric with `value` added. A tensor may be changed in place.

        Return 0.0 for a metric without an average. Record the shape of the value.
        """
        total = self._sums.get(name)
        if name not in self._shapes:
            if type(value) is float and total is None:
                return value
            if (
                isinstance(total, torch.Tensor)
                and isinstance(value, torch.Tensor)
                and value.dim() == 0
                and not value.is_complex()
            ):
                return total.add_(value.detach())
        number = to_double(value)
        self._note_shape(name, None if number is None else list(number.shape))
        if number is None or self._shapes.get(name, ()) is None:
            return 0.0
        # A tensor in double precision may be the trial's own object, so it is cloned.
        mean = number.mean() if number.dim() else number.clone()
        return mean if total is None else total + mean

    def _note_shape(self, name: str, shape: list[int] | None) -> None:
        """Record the shape of a metric's value.

        A shape of None, or a shape that differs from the earlier values' shape, ends the average.
        """
        former = self._shapes.get(name, []) if name in self._sums else shape
        if shape is None or shape != former:
            self._shapes[name] = None
        elif shape:
            self._shapes[name] = shape


def named_metrics(metrics: object) -> dict[str, Any]:
    """Return the metrics of `train_batch` by name; a tensor is the metric `loss`.

    Raises InvalidType for anything but a tensor or dict.
    """
    named = {"loss": metrics} if isinstance(metrics, torch.Tensor) else metrics
    if not isinstance(named, dict):
        raise InvalidType(
            f"train_batch returned {with_article(type(metrics).__name__)}: a tensor or a dict of "
            "metrics was expected"
        )
    return named


def evaluates_batches(trial: PyTorchTrial) -> bool:
    """Return True if the trial defines evaluate_batch, False if evaluate_full_dataset.

    Raises DetcloudError if both or neither are defined.
    """
    kind = type(trial.trial if isinstance(trial, FormerTrial) else trial)
    by_batch = kind.evaluate_batch is not PyTorchTrial.evaluate_batch
    by_dataset = kind.evaluate_full_dataset is not PyTorchTrial.evaluate_full_dataset
    if by_batch == by_dataset:
        defined = "both" if by_batch else "neither"
        raise DetcloudError(
            f"{kind.__name__} defines {defined} of evaluate_batch and evaluate_full_dataset: "
            "define exactly one"
        )
    return by_batch


def checked_metrics(metrics: object, method: str) -> dict[str, Any]:
    """Return `metrics`, or raise InvalidType that names `method` if it is no dict."""
    if not isinstance(metrics, dict):
        raise InvalidType(
            f"{method} returned {with_article(type(metrics).__name__)}: expected a dict of metrics"
        )
    return metrics


def array_metrics(metrics: dict[str, Any]) -> dict[str, Any]:
    """Return a copy of the metrics with NumPy arrays instead of tensors, as callbacks get them."""
    return {
        name: _to_array(value) if isinstance(value, torch.Tensor) else value
        for name, value in metrics.items()
    }


class BatchMetrics:
    """The metrics of a validation, collected from `evaluate_batch` and reduced at the end.

    All batches must have the same metrics. All arrays of a metric must have the same shape. The
    reducer combines all elements to one number.
    """

    def __init__(self, trial: PyTorchTrial) -> None:
        """Create an empty collection. The trial's `evaluation_reducer` is called."""
        self._reducer = trial.evaluation_reducer()
        parameters = inspect.signature(trial.evaluate_batch).parameters
        names = ["batch", "batch_idx"] if "batch_idx" in parameters else ["batch"]
        self._takes_batch_idx = "batch_idx" in parameters
        self._evaluate = bind_names(trial.evaluate_batch, *names)
        self._values: dict[str, list[torch.Tensor]] = {}
        self._shapes: dict[str, list[int]] = {}
        self._batches: list[dict[str, Any]] = []

    def add(self, batch: Any, batch_idx: int) -> None:
        """Evaluate a batch by the trial's `evaluate_batch`, and add the metrics.

        Raises InvalidType if the result is no dict, and InvalidValue if the names differ from
        earlier batches. Raises DetcloudError for values that are no numbers, differ in shape from
        earlier batches, or have no reducer. Raises errors of `evaluate_batch`.
        """
        values = (batch, batch_idx) if self._takes_batch_idx else (batch,)
        metrics = checked_metrics(self._evaluate(*values), "evaluate_batch")
        if self._batches and metrics.keys() != self._batches[0].keys():
            raise InvalidValue(
                f"evaluate_batch returned the metrics {sorted(metrics)} for a batch, and "
                f"{sorted(self._batches[0])} for those before: return the same for all"
            )
        self._batches.append(metrics)
        for name, value in metrics.items():
            number, reducer = self._checked_number(name, value), self._reducer_of(name)
            self._values.setdefault(name, []).append(_reduced_value(number, reducer))

    def outputs(self) -> list[dict[str, Any]]:
        """Return each batch's metrics in this process, with NumPy arrays instead of tensors."""
        return [array_metrics(metrics) for metrics in self._batches]

    def merge(
        self, distributed: DistributedContext, notice: PartialMetricNotice | None = None
    ) -> None:
        """Add the batches of the other processes, in the order of a run with a single process.

        All processes call this method, and all have the batches of all processes afterwards.
        `outputs` still returns this process's batches. `notice` prints metrics that only some
        processes have; None prints nothing. Raises DetcloudError if another process has exited.
        """
        ours = {name: [value.cpu() for value in values] for name, values in self._values.items()}
        everybody = distributed.allgather(ours)
        if notice is not None:
            notice.tell("validation", everybody, distributed.rank)
        names = dict.fromkeys(name for values in everybody for name in values)
        self._values = {n: _interleave([values.get(n, []) for values in everybody]) for n in names}

    def reduce(self) -> dict[str, Any]:
        """Return each metric as a number, reduced over all batches. Empty without batches."""
        return {name: self._reduced_metric(name).tolist() for name in self._values}

    def _reduced_metric(self, name: str) -> torch.Tensor:
        """Reduce a metric over all batches. Batches have equal weight, whatever their length."""
        return _reduced_value(torch.stack(self._values[name]), self._reducer_of(name))

    def _checked_number(self, name: str, value: object) -> torch.Tensor:
        """Return the value in double precision, and remember the shape of the metric's first value.

        Raises DetcloudError for a value that is no number, is empty, or differs in shape from the
        metric's first value.
        """
        place, number = f"validation metric {name!r}", to_double(value)
        if number is None:
            raise DetcloudError(
                f"{place} is {with_article(type(value).__name__)}: expected a number or a tensor"
            )
        shape = list(number.shape)
        former = self._shapes.setdefault(name, shape)
        if shape != former or number.numel() == 0:
            raise DetcloudError(
                f"{place} has the shape {shape} and had {former} in a batch before: return one "
                "number, such as its mean, for a batch"
            )
        return number

    def _reducer_of(self, name: str) -> Reducer:
        """Return the reducer of a metric.

        Raises DetcloudError if the trial's `evaluation_reducer` has no Reducer for the metric.
        """
        reducer = self._reducer
        chosen = reducer.get(name) if isinstance(reducer, dict) else reducer
        if not isinstance(chosen, Reducer):
            raise DetcloudError(
                f"evaluation_reducer gives {chosen!r} for metric {name!r}: a "
                "detcloud.pytorch.Reducer was expected"
            )
        return chosen


def _interleave(columns: list[list[Item]]) -> list[Item]:
    """Return the first item of each column, then the second of each, and so on."""
    rows = zip_longest(*columns, fillvalue=None)
    return [item for row in rows for item in row if item is not None]


def _on_cpu(sums: dict[str, torch.Tensor | float]) -> dict[str, torch.Tensor | float]:
    """Return the sums with all tensors on the CPU."""
    return {
        name: total.cpu() if isinstance(total, torch.Tensor) else total
        for name, total in sums.items()
    }


def _is_cpu_scalar(value: torch.Tensor) -> bool:
    """Return whether the tensor is a float on the CPU, which can be read without waiting."""
    return value.is_cpu and value.dim() == 0 and value.is_floating_point()


def _reduced_value(values: torch.Tensor, reducer: Reducer) -> torch.Tensor:
    """Reduce all elements to a tensor with a single number."""
    if reducer is Reducer.AVG:
        return values.mean()
    if reducer is Reducer.SUM:
        return values.sum()
    return values.max() if reducer is Reducer.MAX else values.min()


def reduce_values(reducer: Reducer, metrics: Any, num_batches: list[int] | None = None) -> float:
    """Reduce all values to a single number. AVG weighs the values by `num_batches` if given."""
    values = torch.as_tensor(metrics, dtype=torch.float64)
    if reducer is not Reducer.AVG or not num_batches:
        return float(_reduced_value(values, reducer))
    weights = torch.as_tensor(num_batches, dtype=torch.float64)
    return float((values * weights).sum() / weights.sum())


def _to_array(value: torch.Tensor) -> Any:
    """Return a tensor as a NumPy array; bfloat16 becomes single precision."""
    value = value.detach().cpu()
    # NumPy has no bfloat16.
    return (value.float() if value.dtype is torch.bfloat16 else value).numpy()


def to_double(value: object) -> torch.Tensor | None:
    """Convert numbers to a tensor in double precision. Return None if that is impossible.

    A single number in any depth of lists becomes a tensor without dimensions.
    """
    if isinstance(value, int | Real | Decimal):
        # torch would reject integers of more than 64 bits and read floats in single precision.
        return torch.tensor(to_float(value), dtype=torch.float64)
    try:
        number = torch.as_tensor(value).detach().to(torch.float64)
    except (TypeError, ValueError, RuntimeError):
        return None
    return number.reshape(()) if number.numel() == 1 else number
