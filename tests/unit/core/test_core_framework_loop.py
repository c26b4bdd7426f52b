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
    """Return a context manager that starts a trial and yields the trial's folder and context."""

    @contextmanager
    def run(directives: dict[str, Any], **spec: Any) -> Iterator[tuple[Path, core.Context]]:
        trial = make_trial(tmp_path, metric="loss", **spec)
        direct(trial, revision=1, **directives)
        enter(trial, monkeypatch)
        with core.init() as context:
            yield trial, context

    return run


def test_without_a_length_the_code_decides_the_length(start: Start) -> None:
    with start({"length": ENDLESS}) as (trial, context):
        loop = FrameworkLoop(context)
        assert loop.operation is None
        assert not loop.has_ended
        assert not loop.is_due(10**9, 10**9)
        # 1 and 2 of 300 batches are both 0 %; batch 3 is the first percent.
        for steps in (1, 2, 3):
            loop.report_progress(steps, 0, steps / 300)
    assert [line["value"] for line in reports(trial, "progress")] == [1 / 300, 3 / 300]
    assert reports(trial, "exit")[0]["reason"] == "completed"


def test_a_batch_operation_is_due_at_its_length_and_completed_with_the_metric(
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


# 15 epochs of 1437 records are 15 * 1437 // 64 = 336 batches of 64, and 5 epochs are 112 batches,
# although the framework's epochs have ceil(1437 / 64) = 23 batches. Without a batch size, 7185
# batches are 5 epochs.
@pytest.mark.parametrize(
    ("length", "hparams", "epochs"),
    [
        (336, {"global_batch_size": 64}, 15),
        (112, {"global_batch_size": 64}, 5),
        (7185, {}, 5),
        # A batch of 5000 records is ceil(5000 / 1437) epochs.
        (1, {"global_batch_size": 5000}, 4),
    ],
)
def test_an_epoch_operation_is_due_after_the_frameworks_epochs(
    start: Start, length: int, hparams: dict[str, Any], epochs: int
) -> None:
    with start({"length": length, "closed": True}, config=EPOCHS, hparams=hparams) as (_, context):
        loop = FrameworkLoop(context)
        assert loop.counts_epochs
        assert not loop.is_due(10**9, epochs - 0.01)
        assert loop.is_due(1, float(epochs))
        loop.complete({"loss": 1.0})


def test_epochs_of_an_operation_are_counted_only_by_the_framework(start: Start) -> None:
    config = {"searcher": {"max_length": {"epochs": 5}}}
    directives = {"length": 5, "length_unit": "epochs", "closed": True}
    with start(directives, version=2, config=config) as (trial, context):
        loop = FrameworkLoop(context)
        assert loop.counts_epochs
        assert [loop.is_due(10**9, epochs) for epochs in (4.99, 5.0, 5.5)] == [False, True, True]
        loop.report_progress(123, 2.5, 0.9)
        assert not loop.complete({"loss": 0.5})
        assert loop.counts_epochs
        # The share 0.9 of the framework's own length must not be reported as the searcher's.
        loop.report_progress(250, 5.0, 0.9)
    assert [line["value"] for line in reports(trial, "progress")] == [0.5]
    (answer,) = reports(trial, "completed")
    assert (answer["length"], answer["metric"]) == (5, 0.5)


def test_error_for_a_missing_metric_names_the_existing_metrics(start: Start) -> None:
    with (
        pytest.raises(DetcloudError, match=r"batch 10 lacks .* 'loss'; it has: accuracy, time"),
        start({"length": 10, "closed": True}) as (_, context),
    ):
        FrameworkLoop(context).complete({"time": 1.0, "accuracy": 0.5})


def test_a_trial_that_awaits_a_longer_length_is_unfinished(start: Start) -> None:
    with start({"length": 10}) as (trial, context):
        loop = FrameworkLoop(context)
        # The cluster writes these directives after receiving the metric.
        direct(trial, revision=2, length=10, answered=10)
        assert not loop.complete({"loss": 0.5})
        assert loop.has_ended
        assert loop.is_unfinished
    assert reports(trial, "exit")[0]["reason"] == "idle"


def test_a_preempted_trial_is_unfinished(start: Start) -> None:
    with start({"length": ENDLESS}) as (_, context):
        loop = FrameworkLoop(context)
        assert not loop.is_unfinished
        context.preempt.request(Preemption(None, "test"))
        assert context.preempt.should_preempt()
        assert loop.is_unfinished


# The best loss of the experiment is 4. Of the losses 5, 3, 3 and 2, the first 3 and the 2 are
# better than all earlier losses.
@pytest.mark.parametrize(
    ("policy", "expected"),
    [
        ("best", [False, True, False, True]),
        ("all", [True, True, True, True]),
        ("none", [False, False, False, False]),
    ],
)
def test_checkpoint_policy_selects_saved_validations(
    start: Start, policy: str, expected: list[bool]
) -> None:
    directives = {"length": ENDLESS, "best_validation": 4.0}
    with start(directives, checkpoint_policy=policy) as (_, context):
        loop = FrameworkLoop(context)
        losses = enumerate((5.0, 3.0, 3.0, 2.0))
        assert [loop.report_validation(step, {"loss": loss}) for step, loss in losses] == expected


def test_repeated_metrics_are_reported_once(start: Start) -> None:
    with start({"length": ENDLESS}) as (trial, context):
        context.train.report_new_metrics("training", 5, {"loss": 1.0, "epoch": 1, "note": None})
        context.train.report_new_metrics("training", 5, {"accuracy": 0.5, "epoch": 1})
        context.train.report_new_metrics("training", 5, {"epoch": 1})
        context.train.report_new_metrics("training", 6, {"epoch": 1})
    lines = [(report["steps_completed"], report["metrics"]) for report in reports(trial, "metrics")]
    assert lines == [(5, {"loss": 1.0, "epoch": 1}), (5, {"accuracy": 0.5}), (6, {"epoch": 1})]


def test_ranks_learn_from_the_chief_whether_lengths_exist(
    run_ranks: Callable[[Callable[[DistributedContext], Any]], list[Any]],
) -> None:
    def ask(ranks: DistributedContext) -> bool:
        # The workers' directives may arrive later than the chief's.
        directives = Directives(1, 10, True) if ranks.rank == 0 else Directives()
        preempt = PreemptContext(lambda: directives)
        report: Any = print
        searcher = SearcherContext(
            lambda: directives, report, preempt, on_cluster=True, distributed=ranks
        )
        return searcher.gives_lengths()

    assert run_ranks(ask) == [True, True, True]
