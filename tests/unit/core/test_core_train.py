import math
from pathlib import Path
from typing import Any

import pytest

from detcloud import DetcloudError, core
from detcloud.core import EarlyExitReason, TrainContext
from detcloud.core.tensorboard import EventWriter
from detcloud.shared.trial_directory import Directives
from tests.unit.core.trial_files import enter, make_trial, reports


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)


class Train(TrainContext):
    def __init__(self, best: float | None = None, *, is_chief: bool = True) -> None:
        self.reports: list[dict[str, object]] = []
        directives = Directives(best_validation=best)
        # The writing thread may outlive the test and its working directory.
        events = EventWriter(Path("events").absolute(), "x")
        super().__init__(self._record, lambda: directives, events if is_chief else None)

    def _record(self, kind: str, **fields: object) -> None:
        self.reports.append({"kind": kind, **fields})


def test_metric_reports_contain_group_and_step() -> None:
    train = Train()
    train.report_training_metrics(5, {"loss": 1.0}, batches=5)
    train.report_validation_metrics(5, {"accuracy": 0.5, "raw": b"left out"})
    train.report_metrics("system", 6, {"load": [1, 2]})
    common = {"kind": "metrics"}
    assert train.reports == [
        {
            **common,
            "group": "training",
            "steps_completed": 5,
            "metrics": {"loss": 1.0},
            "batches": 5,
        },
        {**common, "group": "validation", "steps_completed": 5, "metrics": {"accuracy": 0.5}},
        {**common, "group": "system", "steps_completed": 6, "metrics": {"load": [1, 2]}},
    ]


@pytest.mark.parametrize("group", ["", "a.b"])
def test_group_names_must_not_have_a_dot(group: str) -> None:
    with pytest.raises(DetcloudError, match="metric group"):
        Train().report_metrics(group, 1, {})


@pytest.mark.parametrize("steps", [-1, 1.5, True, "1"])
def test_steps_must_be_a_whole_number(steps: Any) -> None:
    with pytest.raises(DetcloudError, match="steps_completed is"):
        Train().report_training_metrics(steps, {})


def test_a_metric_without_a_value_is_refused() -> None:
    with pytest.raises(DetcloudError, match="validation metric 'loss' at batch 3 is None"):
        Train().report_validation_metrics(3, {"loss": None})


def test_bytes_are_omitted_from_validation_metrics(
    capsys: pytest.CaptureFixture[str],
) -> None:
    train = Train()
    train.report_metrics("validation", 3, {"loss": 1.0, "raw": b"x", "more": bytearray(b"y")})
    assert train.reports[-1]["metrics"] == {"loss": 1.0}
    assert "at batch 3 are left out, since they are bytes: raw, more" in capsys.readouterr().out


def test_a_training_metric_may_have_no_average() -> None:
    train = Train()
    train.report_training_metrics(3, {"loss": 1.0, "words": None})
    assert train.reports[-1]["metrics"] == {"loss": 1.0, "words": None}


@pytest.mark.parametrize("progress", [-0.1, 1.1, math.nan, "1", None])
def test_progress_lies_between_0_and_1(progress: Any) -> None:
    with pytest.raises(DetcloudError, match="progress is"):
        Train().report_progress(progress)


@pytest.mark.parametrize("metrics", [None, [1.0], 0.5])
def test_metrics_must_be_a_mapping(metrics: Any) -> None:
    train = Train()
    for report in (train.report_training_metrics, train.report_validation_metrics):
        with pytest.raises(DetcloudError, match=r"metrics at batch 3 are .*: expected an object"):
            report(3, metrics)
    assert train.reports == []


def test_an_early_exit_has_a_known_reason() -> None:
    train = Train()
    train.report_early_exit("USER_REQUESTED_STOP")
    assert train.reports == [{"kind": "early_exit", "reason": "USER_REQUESTED_STOP"}]
    with pytest.raises(
        DetcloudError, match="'TIRED' is unknown; expected one of INVALID_HP, USER_REQUESTED_STOP"
    ):
        train.report_early_exit("TIRED")


def test_invalid_hp_replaces_an_earlier_early_exit(
    capsys: pytest.CaptureFixture[str],
) -> None:
    invalid, stop = EarlyExitReason.INVALID_HP, EarlyExitReason.USER_REQUESTED_STOP
    train = Train()
    for reason in (stop, stop, invalid, stop):
        train.report_early_exit(reason)
    assert [line["reason"] for line in train.reports] == [stop.value, stop.value, invalid.value]
    assert train.early_exit is invalid
    assert "the early exit for USER_REQUESTED_STOP is ignored" in capsys.readouterr().err


def test_a_second_value_of_a_metric_at_a_batch_is_refused() -> None:
    train = Train()
    train.report_metrics("system", 3, {"load": 1})
    train.report_metrics("system", 3, {"memory": 1})
    train.report_metrics("other", 3, {"load": 1})
    with pytest.raises(DetcloudError, match="system metrics at batch 3 were reported twice: load"):
        train.report_metrics("system", 3, {"load": 2, "more": 3})
    train.report_metrics("system", 4, {"load": 2})
    train.allow_repeats()
    train.report_metrics("system", 4, {"load": 2})


def test_experiment_best_validation_comes_from_the_directives() -> None:
    assert Train().get_experiment_best_validation() is None
    assert Train(best=0.25).get_experiment_best_validation() == 0.25


def test_tensorboard_folder_exists_and_is_empty() -> None:
    path = Train().get_tensorboard_path()
    assert path.is_dir()
    assert list(path.iterdir()) == []


def test_tensorboard_folder_of_a_worker_is_temporary() -> None:
    train = Train(is_chief=False)
    path = train.get_tensorboard_path()
    assert path.is_dir()
    assert train.get_tensorboard_path() == path
    train.close()
    assert not path.exists()


def test_trial_metadata_are_kept_for_the_next_run(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    trial = make_trial(tmp_path, metadata={"note": "of the run before"})
    enter(trial, monkeypatch)
    with core.init() as context:
        assert context.train.get_metadata() == {"note": "of the run before"}
        kept = context.train.set_metadata({"deep": {"x": [1, 2.5, None]}})
        assert kept == {"deep": {"x": [1, 2.5, None]}}
        context.train.get_metadata().clear()
        assert context.train.get_metadata() == {"deep": {"x": [1, 2.5, None]}}
        wrongs: list[Any] = [["x"], {"x": object()}, {"x": "y" * 20_000}]
        for wrong in wrongs:
            with pytest.raises(DetcloudError, match="metadata"):
                context.train.set_metadata(wrong)
    [line] = reports(trial, "trial_metadata")
    assert line["metadata"] == {"deep": {"x": [1, 2.5, None]}}


def test_a_worker_prints_once_that_its_reports_are_separate(
    capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    kept: list[object] = []

    def context(events: EventWriter | None) -> TrainContext:
        return TrainContext(lambda kind, **fields: kept.append(kind), Directives, events)

    worker, chief = context(None), context(EventWriter(tmp_path, "a"))
    for steps in (1, 2):
        worker.report_training_metrics(steps, {"loss": 1.0})
        chief.report_training_metrics(steps, {"loss": 1.0})
    chief.close()
    assert capsys.readouterr().out.count("is kept apart from the trial's own metrics") == 1
    assert kept == ["metrics"] * 4
    # Framework loops report identically in all processes.
    framework, shared = context(None), context(None)
    framework.report_new_metrics("training", 1, {"loss": 1.0})
    shared.allow_repeats()
    shared.report_validation_metrics(1, {"loss": 1.0})
    assert capsys.readouterr().out == ""
    assert kept == ["metrics"] * 4, "the chief reports identical metrics"
