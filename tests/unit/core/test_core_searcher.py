import threading
import time
from collections.abc import Callable
from typing import Any

import numpy
import pytest
import torch

from detcloud import DetcloudError
from detcloud.core import PreemptContext, SearcherContext
from detcloud.core.preempt import READ_SECONDS_MIN
from detcloud.core.searcher import Outcome
from detcloud.shared.trial_directory import ENDLESS, Directives, Preemption


class Cluster:
    """Searcher context over `directives`, which a test replaces; `reports` lists the reports."""

    def __init__(
        self, *, is_timed: bool = False, takes_values: bool = False, **directives: Any
    ) -> None:
        self.directives = Directives(**directives)
        self.reports: list[tuple[str, dict[str, object]]] = []
        self.preempt = PreemptContext(lambda: self.directives)
        self.searcher = SearcherContext(
            lambda: self.directives,
            self._report,
            self.preempt,
            on_cluster=True,
            is_timed=is_timed,
            takes_values=takes_values,
        )

    def _report(self, kind: str, **fields: object) -> None:
        self.reports.append((kind, fields))

    def run(self, react: Callable[[int], Directives | None] = lambda _length: None) -> list[int]:
        """Complete all operations and return their lengths.

        `react` returns the directives that follow the completion of a length, or None to keep
        the directives.
        """
        lengths = []
        for operation in self.searcher.operations():
            lengths.append(operation.length)
            operation.complete(0.5)
            self.directives = react(operation.length) or self.directives
        return lengths


def test_a_closed_operation_runs_once_and_completes_the_trial() -> None:
    cluster = Cluster(length=10, closed=True)
    assert cluster.run() == [10]
    assert cluster.searcher.outcome is Outcome.COMPLETED
    assert cluster.reports == [("completed", {"length": 10, "metric": 0.5})]


def test_an_operation_also_has_its_length_in_configured_units() -> None:
    operation = next(Cluster(length=24, length_units=3, closed=True).searcher.operations())
    assert (operation.length, operation.length_units) == (24, 3)
    operation = next(Cluster(length=24, closed=True).searcher.operations())
    assert operation.length_units == 24


def test_an_epoch_operation_reports_progress_in_epochs() -> None:
    cluster = Cluster(length=4, length_units=4, length_unit="epochs", closed=True)
    operation = next(cluster.searcher.operations())
    assert (operation.length, operation.unit, operation.goal) == (4, "epochs", "epoch 4")
    assert operation.counts_epochs
    operation.report_progress(1)
    operation.complete(0.5)
    expected = ("completed", {"length": 4, "metric": 0.5})
    assert cluster.reports == [("progress", {"value": 0.25}), expected]
    other = next(Cluster(length=4, closed=True).searcher.operations())
    assert (other.unit, other.goal, other.counts_epochs) == ("batches", "batch 4", False)


def test_a_longer_length_starts_the_next_operation() -> None:
    cluster = Cluster(length=10)
    following = {10: Directives(length=30, answered=10), 30: Directives(length=30, closed=True)}
    assert cluster.run(lambda length: following[length]) == [10, 30]
    assert cluster.searcher.outcome is Outcome.COMPLETED


def test_an_answer_without_a_longer_length_is_idle() -> None:
    cluster = Cluster(length=10)
    assert cluster.run(lambda length: Directives(length=length, answered=length)) == [10]
    assert cluster.searcher.outcome is Outcome.IDLE


def test_an_answered_length_is_not_repeated() -> None:
    cluster = Cluster(length=10, answered=10)
    assert cluster.run() == []
    assert cluster.searcher.outcome is Outcome.IDLE


def test_closing_after_the_answer_completes() -> None:
    cluster = Cluster(length=10, answered=10, closed=True)
    assert cluster.run() == []
    assert cluster.searcher.outcome is Outcome.COMPLETED


def test_searcher_waits_for_the_answer_to_a_completion() -> None:
    cluster = Cluster(length=10)
    timer = threading.Timer(
        0.1, lambda: setattr(cluster, "directives", Directives(length=10, answered=10))
    )
    started = time.monotonic()
    timer.start()
    assert cluster.run() == [10]
    assert time.monotonic() - started >= 0.1
    assert cluster.searcher.outcome is Outcome.IDLE
    timer.join()


def test_searcher_waits_for_the_first_length() -> None:
    cluster = Cluster()
    timer = threading.Timer(
        0.05, lambda: setattr(cluster, "directives", Directives(length=5, closed=True))
    )
    timer.start()
    assert cluster.run() == [5]
    timer.join()


def test_preemption_ends_the_waiting() -> None:
    cluster = Cluster(length=10, preempt=Preemption())
    assert cluster.run() == []
    assert cluster.searcher.outcome is Outcome.PREEMPTED


def test_a_preempted_trial_without_remaining_work_completes() -> None:
    cluster = Cluster(length=10, answered=10, closed=True, preempt=Preemption())
    assert cluster.run() == []
    assert cluster.searcher.outcome is Outcome.COMPLETED


def test_an_uncompleted_operation_is_an_error() -> None:
    cluster = Cluster(length=10)
    with pytest.raises(DetcloudError, match="length 10 was left without its metric"):
        list(cluster.searcher.operations())


def test_an_operation_is_completed_once_and_with_a_number() -> None:
    cluster = Cluster(length=10, closed=True)
    operation = next(cluster.searcher.operations())
    with pytest.raises(DetcloudError, match=r"is \[1\]: it must be one number"):
        operation.complete([1])
    operation.complete(1)
    with pytest.raises(DetcloudError, match="completed twice"):
        operation.complete(1)


@pytest.mark.parametrize("metric", [numpy.array([1.0, 2.0]), torch.ones(2), True, "1"])
def test_a_non_scalar_metric_is_refused(metric: Any) -> None:
    cluster = Cluster(length=10, closed=True)
    operation = next(cluster.searcher.operations())
    with pytest.raises(DetcloudError, match="it must be one number"):
        operation.complete(metric)
    assert cluster.reports == []


def test_an_operation_may_be_completed_by_determineds_name() -> None:
    cluster = Cluster(length=10, closed=True)
    metric: Any = torch.tensor([2.0])
    next(cluster.searcher.operations()).report_completed(metric)
    assert cluster.reports == [("completed", {"length": 10, "metric": 2.0})]


def test_leaving_the_loop_after_the_last_operation_is_finished() -> None:
    cluster = Cluster(length=10, closed=True)
    operation = next(cluster.searcher.operations())
    assert not cluster.searcher.is_finished()
    operation.complete(1)
    assert cluster.searcher.is_finished()


def test_progress_is_a_share_of_the_length() -> None:
    cluster = Cluster(length=10, closed=True)
    operation = next(cluster.searcher.operations())
    operation.report_progress(4)
    operation.report_progress(11)
    assert cluster.reports == [("progress", {"value": 0.4}), ("progress", {"value": 1.0})]


def test_without_a_cluster_a_single_operation_is_given() -> None:
    def ignore(kind: str, **fields: object) -> None:
        pass

    preempt = PreemptContext(Directives)
    searcher = SearcherContext(Directives, ignore, preempt, on_cluster=False)
    lengths = []
    # Each call is a separate run.
    for length in (7, 7, 3):
        for operation in searcher.operations(length):
            lengths.append(operation.length)
            operation.complete(1)
    assert lengths == [7, 7, 3]


def test_completing_an_endless_operation_completes_the_trial() -> None:
    cluster = Cluster(length=ENDLESS, is_timed=True)
    assert not cluster.searcher.outcome
    assert cluster.run() == [ENDLESS]
    assert cluster.searcher.outcome is Outcome.COMPLETED
    # The trained length of a timed trial is not reported.
    assert cluster.reports == []


def test_endless_operation_needs_no_metric() -> None:
    cluster = Cluster(length=ENDLESS, is_timed=True)
    for operation in cluster.searcher.operations():
        operation.complete(None)
    assert cluster.searcher.outcome is Outcome.COMPLETED
    assert cluster.reports == []


def test_leaving_an_endless_operation_is_finished() -> None:
    cluster = Cluster(length=ENDLESS, is_timed=True)
    operation = next(cluster.searcher.operations())
    assert operation.is_endless
    operation.report_progress(10)
    assert cluster.reports == []
    assert cluster.searcher.is_finished()
    cluster.directives = Directives(length=ENDLESS, closed=True, preempt=Preemption())
    assert not cluster.searcher.is_finished()


def test_a_stopped_search_ends_an_endless_operation_by_preemption() -> None:
    cluster = Cluster(length=ENDLESS, is_timed=True)
    for _ in cluster.searcher.operations():
        cluster.directives = Directives(length=ENDLESS, closed=True, preempt=Preemption())
        time.sleep(READ_SECONDS_MIN)
    assert cluster.searcher.outcome is Outcome.PREEMPTED


def test_code_may_give_the_length_of_an_endless_operation() -> None:
    cluster = Cluster(length=ENDLESS, closed=True)
    lengths = []
    for operation in cluster.searcher.operations(40):
        lengths.append(operation.length)
        operation.report_progress(10)
        operation.complete(0.5)
    assert lengths == [40]
    assert cluster.searcher.outcome is Outcome.COMPLETED
    assert cluster.reports[0] == ("progress", {"value": 0.25})


@pytest.mark.parametrize("length", [None, ENDLESS])
def test_operations_without_any_length_are_refused(length: int | None) -> None:
    cluster = Cluster(length=ENDLESS, closed=True)
    with pytest.raises(DetcloudError, match=r"give searcher\.max_length in the configuration"):
        next(cluster.searcher.operations(length))


@pytest.mark.parametrize(
    ("value", "reported"),
    [
        ({"loss": torch.tensor(0.5), "nan": float("nan")}, {"loss": 0.5, "nan": "NaN"}),
        ([1, 2], [1, 2]),
        ("good", "good"),
        (numpy.array([1.0, 2.0]), [1.0, 2.0]),
    ],
)
def test_a_custom_search_accepts_any_json_value(value: Any, reported: Any) -> None:
    cluster = Cluster(length=10, closed=True, takes_values=True)
    next(cluster.searcher.operations()).complete(value)
    assert cluster.reports == [("completed", {"length": 10, "metric": None, "value": reported})]


def test_a_custom_search_gets_numbers_as_the_metric() -> None:
    for metric in (0.5, torch.tensor([0.5])):
        cluster = Cluster(length=10, closed=True, takes_values=True)
        next(cluster.searcher.operations()).complete(metric)
        assert cluster.reports == [("completed", {"length": 10, "metric": 0.5})]


@pytest.mark.parametrize(
    ("value", "problem"),
    [
        (None, "it must be one number"),
        ("x" * 8191, "has 8193 bytes as JSON; expected at most 8192"),
        ({1: 2}, "keys must be strings"),
        (object(), "metric is an object"),
    ],
)
def test_invalid_values_for_a_custom_search_are_refused(value: Any, problem: str) -> None:
    cluster = Cluster(length=10, closed=True, takes_values=True)
    with pytest.raises(DetcloudError, match=problem):
        next(cluster.searcher.operations()).complete(value)
    assert cluster.reports == []
