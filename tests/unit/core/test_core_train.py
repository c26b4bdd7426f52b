import math
from typing import Any

import pytest

from detcloud import DetcloudError
from detcloud.core import TrainContext


class Train(TrainContext):
    def __init__(self) -> None:
        self.reports: list[dict[str, object]] = []
        super().__init__(self._record)

    def _record(self, kind: str, **fields: object) -> None:
        self.reports.append({"kind": kind, **fields})


def test_metrics_name_their_group_and_step() -> None:
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
def test_a_group_is_a_name_without_a_dot(group: str) -> None:
    with pytest.raises(DetcloudError, match="metric group"):
        Train().report_metrics(group, 1, {})


@pytest.mark.parametrize("steps", [-1, 1.5, True, "1"])
def test_steps_are_a_count(steps: Any) -> None:
    with pytest.raises(DetcloudError, match="steps_completed is"):
        Train().report_training_metrics(steps, {})


def test_a_metric_without_a_value_is_refused() -> None:
    with pytest.raises(DetcloudError, match="validation metric 'loss' at batch 3 is None"):
        Train().report_validation_metrics(3, {"loss": None})


@pytest.mark.parametrize("progress", [-0.1, 1.1, math.nan, "1", None])
def test_progress_lies_between_0_and_1(progress: Any) -> None:
    with pytest.raises(DetcloudError, match="progress is"):
        Train().report_progress(progress)


@pytest.mark.parametrize("metrics", [None, [1.0], 0.5])
def test_metrics_have_names(metrics: Any) -> None:
    train = Train()
    for report in (train.report_training_metrics, train.report_validation_metrics):
        with pytest.raises(DetcloudError, match=r"metrics at batch 3 are .*: an object"):
            report(3, metrics)
    assert train.reports == []


def test_an_early_exit_has_a_known_reason() -> None:
    train = Train()
    train.report_early_exit("USER_REQUESTED_STOP")
    assert train.reports == [{"kind": "early_exit", "reason": "USER_REQUESTED_STOP"}]
    with pytest.raises(DetcloudError, match="'TIRED' is none of INVALID_HP, USER_REQUESTED_STOP"):
        train.report_early_exit("TIRED")
