"""Metrics of many batches: averages over a training workload, reductions over a validation."""

from __future__ import annotations

import inspect
from itertools import zip_longest
from typing import Any, TypeVar

import torch

from detcloud.core import DistributedContext
from detcloud.pytorch.former_trial import FormerTrial
from detcloud.pytorch.hooks import bind_names
from detcloud.pytorch.trial import PyTorchTrial, Reducer
from detcloud.shared.errors import DetcloudError, InvalidType, InvalidValue

Item = TypeVar("Item")


class MetricAverage:
    """The averages of training metrics over batches, summed so that no batch waits for its metrics.

    An array counts as its mean, so that a metric is one number; what cannot be averaged, or has
    another shape than in a batch before, is None. Sums are in double precision: of numbers on the
    CPU as Python floats, which have the same bits as torch's, and of tensors elsewhere on their
    device, with one operation.
    """

    def __init__(self) -> None:
        self._sums: dict[str, torch.Tensor | float] = {}
        self._counts: dict[str, int] = {}
        # Of the metrics that are not always one number; None where there is no average.
        self._shapes: dict[str, list[int] | None] = {}

    def add(self, metrics: torch.Tensor | dict[str, Any]) -> None:
        """Add one batch's metrics; the batch has none of those that are None."""
        sums, counts = self._sums, self._counts
        named = metrics if type(metrics) is dict else named_metrics(metrics)
        for name, value in named.items():
            if value is None:
                continue
            if isinstance(value, torch.Tensor) and _is_cpu_scalar(value):
                value = value.item()
            total = sums.get(name)
            if type(value) is float and type(total) is float and name not in self._shapes:
                # Of nearly every metric and batch.
                sums[name] = total + value
            else:
                sums[name] = self._add_to_total(name, value)
            counts[name] = counts.get(name, 0) + 1

    def average(self) -> dict[str, Any]:
        """The mean of each metric over the batches that had it; None where there is none."""
        return {name: self._mean(name) for name in self._sums}

    def state_dict(self) -> dict[str, Any]:
        sums, counts, shapes = dict(self._sums), dict(self._counts), dict(self._shapes)
        return {"sums": sums, "counts": counts, "shapes": shapes}

    def over_all_processes(self, distributed: DistributedContext) -> MetricAverage:
        """The average over the batches of all processes, on each of them."""
        if distributed.size == 1 or not distributed.can_exchange:
            return self
        state = {**self.state_dict(), "sums": _on_cpu(self._sums)}
        whole = MetricAverage()
        for other in distributed.allgather(state):
            for name, total in other["sums"].items():
                whole._note_shape(name, other["shapes"].get(name, []))
                before = whole._sums.get(name)
                whole._sums[name] = total if before is None else before + total
                whole._counts[name] = whole._counts.get(name, 0) + other["counts"][name]
        return whole

    def load_state_dict(self, state: dict[str, Any], device: torch.device) -> None:
        self._sums = {
            name: total.mean().to(device) if isinstance(total, torch.Tensor) else total
            for name, total in state["sums"].items()
        }
        self._counts = dict(state["counts"])
        self._shapes = dict(state.get("shapes", {}))

    def _mean(self, name: str) -> float | None:
        if self._shapes.get(name, ()) is None:
            return None
        mean = self._sums[name] / self._counts[name]
        return float(mean)

    def _add_to_total(self, name: str, value: object) -> torch.Tensor | float:
        """The total of a metric with one more value; a tensor is changed in place."""
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
        # A tensor in double precision is still the trial's own.
        mean = number.mean() if number.dim() else number.clone()
        return mean if total is None else total + mean

    def _note_shape(self, name: str, shape: list[int] | None) -> None:
        """Keep the shape of a metric's value, or that it has no average."""
        former = self._shapes.get(name, []) if name in self._sums else shape
        if shape is None or shape != former:
            self._shapes[name] = None
        elif shape:
            self._shapes[name] = shape


def named_metrics(metrics: object) -> dict[str, Any]:
    """The metrics that train_batch returned, by their names; InvalidType for what has none."""
    named = {"loss": metrics} if isinstance(metrics, torch.Tensor) else metrics
    if not isinstance(named, dict):
        raise InvalidType(
            f"train_batch returned a {type(metrics).__name__}: a tensor or a dict of metrics was "
            "expected"
        )
    return named


def evaluates_batches(trial: PyTorchTrial) -> bool:
    """Whether the trial defines evaluate_batch rather than evaluate_full_dataset.

    Raises DetcloudError where it defines both or neither.
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
    """The metrics that an evaluation returned; InvalidType, naming `method`, if no dict."""
    if not isinstance(metrics, dict):
        raise InvalidType(
            f"{method} returned a {type(metrics).__name__}: expected a dict of metrics"
        )
    return metrics


def array_metrics(metrics: dict[str, Any]) -> dict[str, Any]:
    """The metrics with NumPy arrays in the place of tensors, as callbacks get those of a batch."""
    return {
        name: _to_array(value) if isinstance(value, torch.Tensor) else value
        for name, value in metrics.items()
    }


class BatchMetrics:
    """The metrics of one validation, collected batch by batch and reduced as the trial says.

    All batches have the same metrics. Arrays of one metric have one shape; the reducer makes one
    number of all their elements.
    """

    def __init__(self, trial: PyTorchTrial) -> None:
        self._reducer = trial.evaluation_reducer()
        parameters = inspect.signature(trial.evaluate_batch).parameters
        names = ["batch", "batch_idx"] if "batch_idx" in parameters else ["batch"]
        self._takes_batch_idx = "batch_idx" in parameters
        self._evaluate = bind_names(trial.evaluate_batch, *names)
        self._values: dict[str, list[torch.Tensor]] = {}
        self._shapes: dict[str, list[int]] = {}
        self._batches: list[dict[str, Any]] = []

    def add(self, batch: Any, batch_idx: int) -> None:
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
        """The metrics of each batch of this process, with arrays."""
        return [array_metrics(one) for one in self._batches]

    def merge(self, distributed: DistributedContext) -> None:
        """Take in the other processes' batches, in the order that a process alone has them in."""
        ours = {name: [value.cpu() for value in values] for name, values in self._values.items()}
        everybody = distributed.allgather(ours)
        names = dict.fromkeys(name for values in everybody for name in values)
        self._values = {n: _interleave([values.get(n, []) for values in everybody]) for n in names}

    def reduce(self) -> dict[str, Any]:
        return {name: self._reduced_metric(name).tolist() for name in self._values}

    def _reduced_metric(self, name: str) -> torch.Tensor:
        """The metric over all batches; the mean is that of batches, however long each of them is,
        as in Determined.
        """
        return _reduced_value(torch.stack(self._values[name]), self._reducer_of(name))

    def _checked_number(self, name: str, value: object) -> torch.Tensor:
        """The value in double precision; DetcloudError unless it fits the batches before."""
        place, number = f"validation metric {name!r}", to_double(value)
        if number is None:
            raise DetcloudError(
                f"{place} is a {type(value).__name__}: expected a number or a tensor"
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
        reducer = self._reducer
        chosen = reducer.get(name) if isinstance(reducer, dict) else reducer
        if not isinstance(chosen, Reducer):
            raise DetcloudError(
                f"evaluation_reducer gives {chosen!r} for metric {name!r}: a "
                "detcloud.pytorch.Reducer was expected"
            )
        return chosen


def _interleave(columns: list[list[Item]]) -> list[Item]:
    """The first item of each column, then the second of each, and so on."""
    rows = zip_longest(*columns, fillvalue=None)
    return [item for row in rows for item in row if item is not None]


def _on_cpu(sums: dict[str, torch.Tensor | float]) -> dict[str, torch.Tensor | float]:
    return {
        name: total.cpu() if isinstance(total, torch.Tensor) else total
        for name, total in sums.items()
    }


def _is_cpu_scalar(value: torch.Tensor) -> bool:
    """Whether the tensor is one number that can be read without waiting for a device."""
    return value.is_cpu and value.dim() == 0 and value.is_floating_point()


def _reduced_value(values: torch.Tensor, reducer: Reducer) -> torch.Tensor:
    """One number of all elements."""
    if reducer is Reducer.AVG:
        return values.mean()
    if reducer is Reducer.SUM:
        return values.sum()
    return values.max() if reducer is Reducer.MAX else values.min()


def reduce_values(reducer: Reducer, metrics: Any, num_batches: list[int] | None = None) -> float:
    """One number of all values; AVG weighs them by `num_batches`, if that is given."""
    values = torch.as_tensor(metrics, dtype=torch.float64)
    if reducer is not Reducer.AVG or not num_batches:
        return float(_reduced_value(values, reducer))
    weights = torch.as_tensor(num_batches, dtype=torch.float64)
    return float((values * weights).sum() / weights.sum())


def _to_array(value: torch.Tensor) -> Any:
    value = value.detach().cpu()
    # NumPy has no such numbers.
    return (value.float() if value.dtype is torch.bfloat16 else value).numpy()


def to_double(value: object) -> torch.Tensor | None:
    """The numbers of a value in double precision; None where it has no numbers in a regular shape.

    One number is a number, in however many lists.
    """
    try:
        number = torch.as_tensor(value).detach().to(torch.float64)
    except (TypeError, ValueError, RuntimeError):
        return None
    return number.reshape(()) if number.numel() == 1 else number
