from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from detcloud import DetcloudError, core
from detcloud.core.distributed_context import DistributedContext
from detcloud.core.framework_loop import FrameworkLoop
from detcloud.core.preempt import PreemptContext
from detcloud.core.searcher import SearcherContext
from detcloud.shared.trial_directory import ENDLESS, Directives, Preemption
from tests.unit.core.trial_files import direct, enter, make_trial, reports

Start = Callable[..., Any]
EPOCHS = {"searcher": {"max_length": {"epochs": 15}}, "records_per_epoch": 1437}


@pytest.fixture
def start(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Start:
    """Opens a trial with some directives; the trial's folder and its context."""

    @contextmanager
    def run(directives: dict[str, Any], **spec: Any) -> Iterator[tuple[Path, core.Context]]:
        trial = make_trial(tmp_path, metric="loss", **spec)
        direct(trial, revision=1, **directives)
        enter(trial, monkeypatch)
        with core.init() as context:
            yield trial, context

    return run


def test_without_a_length_the_code_says_how_long(start: Start) -> None:
    with start({"length": ENDLESS}) as (trial, context):
        loop = FrameworkLoop(context)
        assert loop.operation is None
        assert not loop.has_ended
        assert not loop.is_due(10**9, 10**9)
        # 1 and 2 of 300 batches are both 0 %, the third is the first percent.
        for steps in (1, 2, 3):
            loop.report_progress(steps, 0, steps / 300)
    assert [line["value"] for line in reports(trial, "progress")] == [1 / 300, 3 / 300]
    assert reports(trial, "exit")[0]["reason"] == "completed"


def test_an_operation_of_batches_is_due_at_its_length_and_answered_with_the_metric(
    start: Start,
) -> None:
    with start({"length": 10, "closed": True}) as (trial, context):
        loop = FrameworkLoop(context)
        assert [loop.is_due(steps, 99.0) for steps in (9, 10, 11)] == [False, True, True]
        loop.report_progress(5, 9, 0.0)
        assert not loop.complete({"loss": 0.5, "accuracy": 1.0})
        assert loop.has_ended
        assert not loop.is_unfinished
    assert reports(trial, "progress")[0]["value"] == 0.5
    (answer,) = reports(trial, "completed")
    assert (answer["length"], answer["metric"]) == (10, 0.5)


# 15 epochs of 1437 records are 15 * 1437 // 64 = 336 batches of 64, and 5 of them 112, though the
# framework's epochs have ceil(1437 / 64) = 23; without a batch size 7185 batches are 5 epochs.
@pytest.mark.parametrize(
    ("length", "hparams", "epochs"),
    [
        (336, {"global_batch_size": 64}, 15),
        (112, {"global_batch_size": 64}, 5),
        (7185, {}, 5),
        # One batch of 5000 records is ceil(5000 / 1437) epochs.
        (1, {"global_batch_size": 5000}, 4),
    ],
)
def test_an_operation_of_epochs_is_due_after_those_of_the_framework(
    start: Start, length: int, hparams: dict[str, Any], epochs: int
) -> None:
    with start({"length": length, "closed": True}, config=EPOCHS, hparams=hparams) as (_, context):
        loop = FrameworkLoop(context)
        assert loop.counts_epochs
        assert not loop.is_due(10**9, epochs - 0.01)
        assert loop.is_due(1, float(epochs))
        loop.complete({"loss": 1.0})


def test_an_operation_in_epochs_is_counted_by_the_framework_alone(start: Start) -> None:
    config = {"searcher": {"max_length": {"epochs": 5}}}
    directives = {"length": 5, "length_unit": "epochs", "closed": True}
    with start(directives, version=2, config=config) as (trial, context):
        loop = FrameworkLoop(context)
        assert loop.counts_epochs
        assert [loop.is_due(10**9, epochs) for epochs in (4.99, 5.0, 5.5)] == [False, True, True]
        loop.report_progress(123, 2.5, 0.9)
        assert not loop.complete({"loss": 0.5})
        assert loop.counts_epochs
        # Of the framework's own length, which would be taken for the searcher's.
        loop.report_progress(250, 5.0, 0.9)
    assert [line["value"] for line in reports(trial, "progress")] == [0.5]
    (answer,) = reports(trial, "completed")
    assert (answer["length"], answer["metric"]) == (5, 0.5)


def test_a_metric_that_is_missing_is_an_error_that_names_what_there_is(start: Start) -> None:
    with (
        pytest.raises(DetcloudError, match=r"batch 10 lacks .* 'loss'; it has: accuracy, time"),
        start({"length": 10, "closed": True}) as (_, context),
    ):
        FrameworkLoop(context).complete({"time": 1.0, "accuracy": 0.5})


def test_a_trial_that_waits_for_a_longer_length_leaves_unfinished(start: Start) -> None:
    with start({"length": 10}) as (trial, context):
        loop = FrameworkLoop(context)
        # What the cluster writes once it has heard of the metric.
        direct(trial, revision=2, length=10, answered=10)
        assert not loop.complete({"loss": 0.5})
        assert loop.has_ended
        assert loop.is_unfinished
    assert reports(trial, "exit")[0]["reason"] == "idle"


def test_a_trial_that_is_preempted_leaves_unfinished(start: Start) -> None:
    with start({"length": ENDLESS}) as (_, context):
        loop = FrameworkLoop(context)
        assert not loop.is_unfinished
        context.preempt.request(Preemption(None, "test"))
        assert context.preempt.should_preempt()
        assert loop.is_unfinished


# Losses of 5, 3, 3 and 2: of those that are below 4, the best of the experiment, 3 and 2 are
# better than all before.
@pytest.mark.parametrize(
    ("policy", "expected"),
    [
        ("best", [False, True, False, True]),
        ("all", [True, True, True, True]),
        ("none", [False, False, False, False]),
    ],
)
def test_the_policy_says_which_validations_are_saved(
    start: Start, policy: str, expected: list[bool]
) -> None:
    directives = {"length": ENDLESS, "best_validation": 4.0}
    with start(directives, checkpoint_policy=policy) as (_, context):
        loop = FrameworkLoop(context)
        losses = enumerate((5.0, 3.0, 3.0, 2.0))
        assert [loop.report_validation(step, {"loss": loss}) for step, loss in losses] == expected


def test_what_is_logged_twice_is_reported_once(start: Start) -> None:
    with start({"length": ENDLESS}) as (trial, context):
        context.train.report_new_metrics("training", 5, {"loss": 1.0, "epoch": 1, "note": None})
        context.train.report_new_metrics("training", 5, {"accuracy": 0.5, "epoch": 1})
        context.train.report_new_metrics("training", 5, {"epoch": 1})
        context.train.report_new_metrics("training", 6, {"epoch": 1})
    lines = [(report["steps_completed"], report["metrics"]) for report in reports(trial, "metrics")]
    assert lines == [(5, {"loss": 1.0, "epoch": 1}), (5, {"accuracy": 0.5}), (6, {"epoch": 1})]


def test_all_ranks_hear_from_the_chief_whether_there_are_lengths(
    run_ranks: Callable[[Callable[[DistributedContext], Any]], list[Any]],
) -> None:
    def ask(ranks: DistributedContext) -> bool:
        # The other nodes' directives may come later than the chief's.
        directives = Directives(1, 10, True) if ranks.rank == 0 else Directives()
        preempt = PreemptContext(lambda: directives)
        report: Any = print
        searcher = SearcherContext(
            lambda: directives, report, preempt, on_cluster=True, distributed=ranks
        )
        return searcher.gives_lengths()

    assert run_ranks(ask) == [True, True, True]
