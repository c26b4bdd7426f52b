"""Determined's writers of event files, and the `metric_writer` of trial controllers."""

from pathlib import Path
from typing import Any, ClassVar

import numpy as np
import pytest

from detcloud import pytorch
from detcloud.compatibility import metric_writers
from detcloud.compatibility.controller_loop import init
from detcloud.compatibility.metric_writers import BatchMetricWriter, MetricWriter
from detcloud.compatibility.modules import install_modules
from detcloud.pytorch.event_files import TorchWriter
from tests.unit.compatibility.test_compatibility_trial_controller import (
    SPEC,
    Counting,
    Looping,
    train,
)
from tests.unit.compatibility.test_compatibility_trial_controller import CountingTrial as Base
from tests.unit.core.trial_files import direct, enter, make_trial, reports


class Recorder(MetricWriter):
    """Metric writer as of 0.18.3, without `flush`."""

    def __init__(self) -> None:
        self.points: list[tuple[str, Any, int]] = []
        self.resets = 0

    def add_scalar(self, name: str, value: Any, step: int) -> None:
        self.points.append((name, value, step))

    def reset(self) -> None:
        self.resets += 1


def test_batch_writer_writes_numbers_under_determineds_tags() -> None:
    recorder = Recorder()
    writer = BatchMetricWriter(recorder)
    batches: list[dict[str, Any]] = [{"loss": 3.0, "text": "x"}, {"loss": 1.0}]
    writer.on_train_step_end(10, {"loss": 2.0, "mean": np.float32(0.5)}, batches)
    writer.on_validation_step_end(10, {"loss": 0.5, "val_acc": 1, "list": [1]})
    # The two batches before step 10 are batches 8 and 9.
    assert recorder.points == [
        ("Determined/loss", 3.0, 8),
        ("Determined/loss", 1.0, 9),
        ("Determined/mean", 0.5, 10),
        ("Determined/val_loss", 0.5, 10),
        ("Determined/val_acc", 1, 10),
    ]


def test_batch_writer_starts_a_new_file_in_a_later_second(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    now = [100.0]
    monkeypatch.setattr("detcloud.compatibility.metric_writers.time.time", lambda: now[0])
    recorder = Recorder()
    writer = BatchMetricWriter(recorder)
    for moment in (100.0, 100.9, 101.0):
        now[0] = moment
        writer.on_train_step_end(1, {"loss": 1.0})
    assert recorder.resets == 1


def test_writers_must_have_the_methods_of_the_base_class() -> None:
    class Half(MetricWriter):
        def reset(self) -> None: ...

    with pytest.raises(TypeError, match="add_scalar"):
        Half()  # type: ignore[abstract]
    assert issubclass(TorchWriter, MetricWriter)


RECORDER = Recorder()


class Writing(Looping):
    """Controller as of 0.18.3 to 0.37 that writes through `metric_writer`."""

    @staticmethod
    def from_trial(trial_inst: Any, *args: Any, **options: Any) -> "Writing":
        controller: Writing = trial_inst.adopt(Writing(*args, **options))
        return controller

    @classmethod
    def create_metric_writer(cls) -> BatchMetricWriter:
        return BatchMetricWriter(RECORDER)

    def train_for_step(self, step_id: int, num_batches: int) -> dict[str, Any]:
        answer = super().train_for_step(step_id, num_batches)
        self.metric_writer.on_train_step_end(step_id, answer["metrics"]["avg_metrics"])
        return answer


class WritingTrial(Base):
    trial_controller_class: ClassVar[Any] = Writing


def test_controller_writes_through_its_created_metric_writer(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    trial = make_trial(tmp_path, **SPEC)
    enter(trial, monkeypatch)
    direct(trial, revision=1, length=12, closed=True)
    controller = train(WritingTrial)
    assert RECORDER.points == [
        ("Determined/loss", 0.5, 1),
        ("Determined/loss", 0.25, 2),
        ("Determined/loss", 0.125, 3),
    ]
    assert controller.scheduling_unit == 5
    assert controller.supports_mixed_precision() is False
    assert reports(trial, "exit")[0]["reason"] == "completed"


def test_controller_has_a_default_metric_writer(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    trial = make_trial(tmp_path, **SPEC)
    enter(trial, monkeypatch)
    direct(trial, revision=1, length=5, closed=True)
    controller = train(Base)
    assert isinstance(controller, Counting)
    controller.metric_writer.on_validation_step_end(5, {"loss": 1.0})


def test_base_path_is_the_folder_of_the_trials_event_files(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    enter(make_trial(tmp_path, **SPEC), monkeypatch)
    with init() as context:
        assert metric_writers.get_base_path({}) == context.core.train.get_tensorboard_path()


@pytest.mark.parametrize(
    "line",
    [
        "from determined.tensorboard import BatchMetricWriter, MetricWriter, get_base_path",
        "from determined.tensorboard.metric_writers import BatchMetricWriter, MetricWriter",
        "from determined.tensorboard.metric_writers.base import MetricWriter",
        "from determined.tensorboard.metric_writers.callback import BatchMetricWriter",
        "from determined.tensorboard.metric_writers.pytorch import TorchWriter",
        "from determined.pytorch.tensorboard_writer import TorchWriter",
        "from determined.tensorboard.metric_writers.tensorflow import TFWriter",
        "from determined.tensorboard.metric_writers.util import is_numerical_scalar",
        "from determined.tensorboard.build import get_base_path",
    ],
)
def test_metric_writers_are_importable_from_determineds_modules(
    line: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    import sys

    install_modules()
    monkeypatch.setitem(sys.modules, "determined", __import__("detcloud"))
    monkeypatch.setitem(sys.modules, "determined.pytorch", pytorch)
    for name in [module for module in sys.modules if module.startswith("determined.")]:
        monkeypatch.delitem(sys.modules, name)
    exec(line, {})
