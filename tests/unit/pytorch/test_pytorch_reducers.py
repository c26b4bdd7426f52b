from pathlib import Path
from typing import Any

import pytest
import torch

from detcloud import DetcloudError, pytorch
from detcloud.pytorch.reducers import FunctionReducer, Reducers
from tests.unit.core.trial_files import reports
from tests.unit.pytorch.line_trial import Cluster, LineTrial


class Spread(pytorch.MetricReducer):
    """Reducer to the smallest and the largest value."""

    def __init__(self) -> None:
        self.values: list[float] = []
        self.resets = 0

    def update(self, value: float) -> None:
        self.values.append(value)

    def reset(self) -> None:
        self.values, self.resets = [], self.resets + 1

    def per_slot_reduce(self) -> list[float]:
        return [min(self.values), max(self.values)]

    def cross_slot_reduce(self, per_slot_metrics: list[Any]) -> dict[str, Any]:
        lows, highs = zip(*per_slot_metrics, strict=True)
        return {"low": torch.tensor([min(lows)]), "high": max(highs)}


class Slots:
    """Exchange of the chief with a second process that has identical values."""

    size, can_exchange = 2, True

    def gather(self, value: Any) -> list[Any]:
        return [value, value]

    def broadcast(self, value: Any) -> Any:
        return value


def test_reducers_see_the_values_of_all_processes() -> None:
    reducers = Reducers()
    spread = reducers.wrap(Spread, None, True, True)
    count = reducers.wrap(len, "count", True, False)
    assert isinstance(spread, Spread)
    assert isinstance(count, FunctionReducer)
    for value in (3.0, 1.0):
        spread.update(value)
        count.update(value)
    slots: Any = Slots()
    assert reducers.reduce(slots, training=True) == {"low": 1.0, "high": 3.0, "count": 4}
    # Only for training: the count is no metric of a validation.
    assert reducers.reduce(slots, training=False) == {"low": 1.0, "high": 3.0}
    reducers.reset()
    assert (spread.values, count.per_slot_reduce()) == ([], [])


def test_a_function_gets_values_in_the_order_of_batches() -> None:
    reducer = FunctionReducer(list)
    # Rank 0 had batches 0, 2 and 4, rank 1 had batches 1 and 3; None is a value.
    assert reducer.cross_slot_reduce([[0, None, 4], [1, 3]]) == [0, 1, None, 3, 4]


@pytest.mark.parametrize(
    ("reducer", "name", "message"),
    [
        (sum, None, "a reducer without a name gave an int: expected a dict"),
        (lambda _values: {"a": 1}, "a", "the reducer named 'a' gave a dict: expected one metric"),
        (3, "a", "wrap_reducer got 3: expected a function"),
    ],
)
def test_reducer_results_must_match_the_name(reducer: Any, name: str | None, message: str) -> None:
    def reduce_nothing(slots: Any) -> None:
        reducers = Reducers()
        reducers.wrap(reducer, name, True, True)
        reducers.reduce(slots, training=True)

    with pytest.raises(DetcloudError, match=message):
        reduce_nothing(Slots())


COMMON = ("loss", "batches", "epochs")


class CountingTrial(LineTrial):
    """Trial with reducers: `records` counts records, and `spread` tracks training batches."""

    def __init__(self, context: pytorch.PyTorchTrialContext) -> None:
        super().__init__(context)
        self.records: Any = context.wrap_reducer(sum, name="records")
        self.spread: Any = context.experimental.wrap_reducer(Spread(), for_validation=False)

    def train_batch(self, batch: Any, epoch_idx: int, batch_idx: int) -> torch.Tensor:
        self.records.update(len(batch[0]))
        self.spread.update(float(batch_idx))
        return super().train_batch(batch, epoch_idx, batch_idx)

    def evaluate_batch(self, batch: Any) -> dict[str, Any]:
        self.records.update(len(batch[0]))
        return {"loss": [[1.0]]}


def test_reports_of_workloads_contain_reducer_metrics(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    cluster = Cluster(tmp_path, monkeypatch, CountingTrial)
    cluster.direct(revision=1, length=8, closed=True)
    cluster.run()
    reduced = [
        {name: value for name, value in line["metrics"].items() if name not in COMMON}
        for line in reports(cluster.trial, "metrics")
    ]
    # Batches of 3 records, in workloads of 5 batches and of 3; the validation set has 12 records.
    assert reduced == [
        {"records": 15, "low": 0.0, "high": 4.0},
        {"records": 9, "low": 5.0, "high": 7.0},
        {"records": 12},
    ]
    assert reports(cluster.trial, "metrics")[-1]["metrics"]["loss"] == 1.0


class WholeCountingTrial(LineTrial):
    evaluate_batch = pytorch.PyTorchTrial.evaluate_batch

    def __init__(self, context: pytorch.PyTorchTrialContext) -> None:
        super().__init__(context)
        self.records: Any = context.wrap_reducer(sum, "records", for_training=False)

    def evaluate_full_dataset(self, data_loader: Any) -> dict[str, Any]:
        for inputs, _ in data_loader:
            self.records.update(len(inputs))
        return {"loss": torch.tensor([0.5])}


def test_evaluate_full_dataset_may_update_reducers(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    cluster = Cluster(tmp_path, monkeypatch, WholeCountingTrial)
    cluster.direct(revision=1, length=5, closed=True)
    cluster.run()
    metrics = reports(cluster.trial, "metrics")[-1]["metrics"]
    # An epoch has 4 batches.
    assert metrics == {"loss": 0.5, "records": 12, "batches": 5, "epochs": 1}
