import math
from decimal import Decimal
from types import SimpleNamespace
from typing import Any

import numpy
import pytest
import torch

from detcloud import DetcloudError
from detcloud.pytorch import Reducer
from detcloud.pytorch.metrics import BatchMetrics, MetricAverage, PartialMetricNotice
from tests.unit.pytorch.line_trial import LineTrial


class MeanLossTrial(LineTrial):
    """Trial that evaluates a batch to the mean of the batch."""

    def __init__(self, reducer: Reducer | dict[str, Reducer]) -> None:
        self.reducer = reducer

    def evaluation_reducer(self) -> Reducer | dict[str, Reducer]:
        return self.reducer

    def evaluate_batch(self, batch: Any) -> dict[str, Any]:
        return {"loss": batch.double().mean()}


BATCHES = [torch.tensor([1.0, 1.0, 1.0]), torch.tensor([5.0])]


@pytest.mark.parametrize(
    ("reducer", "expected"),
    [
        # The batches have 3 records and 1 record, with equal weights: (1 + 5) / 2.
        (Reducer.AVG, 3.0),
        (Reducer.SUM, 6.0),
        (Reducer.MAX, 5.0),
        (Reducer.MIN, 1.0),
        ({"loss": Reducer.MAX}, 5.0),
    ],
)
def test_reducers_combine_batch_metrics(reducer: Reducer, expected: float) -> None:
    metrics = BatchMetrics(MeanLossTrial(reducer))
    for index, batch in enumerate(BATCHES):
        metrics.add(batch, index)
    assert metrics.reduce() == {"loss": expected}


def test_a_metric_without_a_reducer_is_named() -> None:
    metrics = BatchMetrics(MeanLossTrial({"accuracy": Reducer.AVG}))
    with pytest.raises(DetcloudError, match="evaluation_reducer gives None for metric 'loss'"):
        metrics.add(BATCHES[0], 0)


class EachRecordTrial(MeanLossTrial):
    """Trial that evaluates a batch to an array with a number per record."""

    def evaluate_batch(self, batch: Any) -> dict[str, Any]:
        return {"loss": batch}


@pytest.mark.parametrize(
    ("reducer", "expected"),
    [
        # (1 + 2 + 3 + 6) / 4; 1 + 2 + 3 + 6.
        (Reducer.AVG, 3.0),
        (Reducer.SUM, 12.0),
        (Reducer.MAX, 6.0),
        (Reducer.MIN, 1.0),
    ],
)
def test_arrays_are_reduced_to_a_number(reducer: Reducer, expected: float) -> None:
    metrics = BatchMetrics(EachRecordTrial(reducer))
    metrics.add(torch.tensor([1.0, 2.0]), 0)
    metrics.add(torch.tensor([3.0, 6.0]), 1)
    assert metrics.reduce() == {"loss": expected}


def test_arrays_of_different_shapes_are_no_validation_metric() -> None:
    metrics = BatchMetrics(EachRecordTrial(Reducer.AVG))
    metrics.add(BATCHES[0], 0)
    message = r"validation metric 'loss' has the shape \[2\] and had \[3\]"
    with pytest.raises(DetcloudError, match=message):
        metrics.add(torch.ones(2), 1)


def test_evaluate_batch_may_take_the_batch_index() -> None:
    class BatchIndexTrial(MeanLossTrial):
        def evaluate_batch(self, batch: Any, batch_idx: int = -1) -> dict[str, Any]:
            return {"index": batch_idx}

    metrics = BatchMetrics(BatchIndexTrial(Reducer.SUM))
    metrics.add(BATCHES[0], 3)
    metrics.add(BATCHES[0], 4)
    assert metrics.reduce() == {"index": 7.0}


@pytest.mark.parametrize(
    ("batch", "length"),
    [
        (torch.zeros(5, 2), 5),
        ([torch.zeros(4), torch.zeros(9)], 4),
        ({"images": (torch.zeros(3),)}, 3),
    ],
)
def test_get_batch_length_returns_the_length_of_the_first_tensor(batch: Any, length: int) -> None:
    assert MeanLossTrial(Reducer.AVG).get_batch_length(batch) == length


@pytest.mark.parametrize("batch", ["text", [], torch.tensor(1.0)])
def test_unknown_batch_length_is_an_error(batch: Any) -> None:
    with pytest.raises(DetcloudError, match="override get_batch_length"):
        MeanLossTrial(Reducer.AVG).get_batch_length(batch)


def test_an_average_counts_only_batches_with_the_metric() -> None:
    average = MetricAverage()
    average.add(torch.tensor(1.0))
    average.add({"loss": 3, "extra": torch.tensor([1.0, 2.0])})
    # loss: (1 + 3) / 2; extra, reported once: (1 + 2) / 2.
    assert average.average() == {"loss": 2.0, "extra": 1.5}


def test_an_average_continues_after_a_restart() -> None:
    average, restarted = MetricAverage(), MetricAverage()
    average.add({"loss": 1.0})
    restarted.load_state_dict(average.state_dict(), torch.device("cpu"))
    restarted.add({"loss": 2.0})
    assert restarted.average() == {"loss": 1.5}


@pytest.mark.parametrize(
    "values",
    [
        ["low", "high"],
        [torch.ones(3), torch.ones(2)],
        [1.0, torch.ones(2)],
        [torch.ones(2), 1.0, torch.ones(2)],
        [[[1.0], [1.0, 2.0]]],
    ],
)
def test_metrics_without_an_average_are_none(values: list[Any]) -> None:
    average = MetricAverage()
    for value in values:
        average.add({"loss": value, "other": 1.0})
    assert average.average() == {"loss": None, "other": 1.0}


def test_metrics_without_names_are_refused() -> None:
    with pytest.raises(DetcloudError, match="was expected"):
        MetricAverage().add(3)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("values", "expected"),
    [
        (
            [torch.tensor(0.1), torch.tensor(0.2)],
            (float(torch.tensor(0.1)) + float(torch.tensor(0.2))) / 2,
        ),
        ([0.5, 1, torch.tensor(3.0)], 1.5),
        # (1 + 2 + 3 + 6) / 4.
        ([torch.tensor([1.0, 2.0]), torch.tensor([3.0, 6.0])], 3.0),
        ([torch.tensor(2), 1.0], 1.5),
        ([torch.ones(1), numpy.full((1, 1), 3.0), [5.0]], 3.0),
    ],
)
def test_a_training_metric_is_averaged_in_double_precision(
    values: list[Any], expected: Any
) -> None:
    average = MetricAverage()
    for value in values:
        average.add({"loss": value})
    assert average.average() == {"loss": expected}


def test_a_refilled_tensor_is_averaged_by_value() -> None:
    average, buffer = MetricAverage(), torch.zeros(2, dtype=torch.float64)
    for value in (1.0, 3.0):
        average.add({"loss": buffer.fill_(value)})
    assert average.average() == {"loss": 2.0}
    assert buffer.tolist() == [3.0, 3.0]


def test_saved_sums_of_arrays_continue() -> None:
    average, later = MetricAverage(), MetricAverage()
    average.add({"loss": torch.tensor(1.0), "rates": torch.tensor([1.0, 2.0]), "odd": [1.0, 2.0]})
    later.load_state_dict(average.state_dict(), torch.device("cpu"))
    later.add({"loss": torch.tensor(2.0), "rates": torch.tensor([3.0, 4.0]), "odd": [1.0]})
    # rates: (1 + 2 + 3 + 4) / 4; the shape of odd has changed.
    assert later.average() == {"loss": 1.5, "rates": 2.5, "odd": None}


class Rank:
    """Rank 0 of two processes; `other` is the average of rank 1."""

    size, can_exchange, rank = 2, True, 0

    def __init__(self, other: MetricAverage) -> None:
        self._other = other

    def allgather(self, ours: dict[str, Any]) -> list[dict[str, Any]]:
        return [ours, self._other.state_dict()]


def test_arrays_of_all_processes_are_averaged_to_a_number() -> None:
    ours, theirs = MetricAverage(), MetricAverage()
    ours.add({"rates": torch.tensor([1.0, 2.0]), "odd": torch.ones(2)})
    theirs.add({"rates": torch.tensor([3.0, 6.0]), "odd": torch.ones(3)})
    rank: Any = Rank(theirs)
    assert ours.over_all_processes(rank).average() == {"rates": 3.0, "odd": None}


def test_mean_over_ranks_weights_all_batches_equally() -> None:
    metrics = BatchMetrics(MeanLossTrial(Reducer.AVG))
    for index, value in enumerate((1.0, 2.0, 3.0)):
        metrics.add(torch.tensor([value]), index)
    # The second rank had a single batch: (1 + 2 + 3 + 10) / 4, not the mean of both means, 6.
    other = {"loss": [torch.tensor(10.0, dtype=torch.float64)]}
    ranks: Any = SimpleNamespace(allgather=lambda ours: [ours, other])
    metrics.merge(ranks)
    assert metrics.reduce() == {"loss": 4.0}


def test_metrics_of_only_some_ranks_are_printed_once(capsys: pytest.CaptureFixture[str]) -> None:
    theirs, notice = MetricAverage(), PartialMetricNotice()
    theirs.add({"loss": 1.0, "rare": 2.0})
    rank: Any = Rank(theirs)
    for _ in range(2):
        ours = MetricAverage()
        ours.add({"loss": 3.0})
        assert ours.over_all_processes(rank, notice).average() == {"loss": 2.0, "rare": 2.0}
    # A rank without a batch lacks no metric.
    MetricAverage().over_all_processes(rank, notice)
    metrics = BatchMetrics(MeanLossTrial(Reducer.AVG))
    metrics.add(torch.tensor([1.0]), 0)
    ten = torch.tensor(10.0, dtype=torch.float64)
    ranks: Any = SimpleNamespace(
        allgather=lambda own: [own, {"loss": [ten], "f1": [ten]}, {}], rank=0
    )
    metrics.merge(ranks, notice)
    lines = capsys.readouterr().out.splitlines()
    assert lines == [
        "[detcloud] only 1 of 2 processes have the training metric 'rare' (ranks 1): it is that of"
        " their batches alone",
        "[detcloud] only 1 of 3 processes have the validation metric 'f1' (ranks 1): it is that of"
        " their batches alone",
    ]


@pytest.mark.parametrize("number", [10**39, 10**400, Decimal("1e39"), numpy.longdouble("1e39")])
def test_average_takes_numbers_of_more_than_64_bits(number: Any) -> None:
    average = MetricAverage()
    average.add({"n": number})
    average.add({"n": number})
    assert average.average() == {"n": math.inf if number == 10**400 else 1e39}
