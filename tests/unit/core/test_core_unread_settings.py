"""Settings that a training loop does not read are named once in the log of a run."""

from pathlib import Path
from typing import Any

import pytest

from detcloud import core, pytorch
from detcloud.core.framework_loop import FrameworkLoop
from detcloud.shared.training_settings import TRAINING_SETTINGS, LoopOfTrial, TrainingLoop
from detcloud.shared.trial_directory import ENDLESS
from tests.unit.core.trial_files import direct, enter, make_trial

ALL: dict[str, Any] = {
    "optimizations": {
        "mixed_precision": "O1",
        "aggregation_frequency": 2,
        "average_aggregated_gradients": False,
        "average_training_metrics": False,
        "gradient_compression": True,
        "tensor_fusion_threshold": 32,
        "asynchronous_checkpoints": True,
    },
    "min_validation_period": {"batches": 10},
    "min_checkpoint_period": {"epochs": 1},
    "perform_initial_validation": True,
    "scheduling_unit": 7,
    "checkpoint_policy": "all",
}
NAMES = [".".join(setting.path) for setting in TRAINING_SETTINGS]
DEFAULTS: dict[str, Any] = {
    "optimizations": {
        "mixed_precision": "O0",
        "aggregation_frequency": 1,
        "average_aggregated_gradients": True,
        "average_training_metrics": True,
        "gradient_compression": False,
        "tensor_fusion_threshold": 64,
        "asynchronous_checkpoints": None,
    },
    "min_validation_period": None,
    "min_checkpoint_period": {"batches": 0},
    "perform_initial_validation": False,
    "scheduling_unit": 100,
    "checkpoint_policy": "best",
}


def unread(kind: TrainingLoop, config: dict[str, Any] = ALL) -> list[str]:
    """Return the settings for which the loop prints a notice, in order."""
    return [notice.split()[0] for notice in LoopOfTrial(kind).unread_setting_notices(config)]


def test_training_loops_name_unread_settings() -> None:
    assert unread(TrainingLoop.TRAINER) == []
    assert unread(TrainingLoop.SCRIPT) == NAMES
    assert unread(TrainingLoop.DEEPSPEED) == [
        f"optimizations.{name}"
        for name in (
            "average_aggregated_gradients",
            "gradient_compression",
            "tensor_fusion_threshold",
        )
    ]
    read_by_frameworks = {"optimizations.asynchronous_checkpoints", "checkpoint_policy"}
    assert unread(TrainingLoop.FRAMEWORK) == [
        text for text in NAMES if text not in read_by_frameworks
    ]


@pytest.mark.parametrize("kind", TrainingLoop)
def test_default_settings_have_no_unread_notice(kind: TrainingLoop) -> None:
    assert unread(kind, DEFAULTS) == []
    assert unread(kind, {}) == []


@pytest.fixture
def trial(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    made = make_trial(tmp_path, config=ALL, metric="loss")
    direct(made, revision=1, length=ENDLESS)
    enter(made, monkeypatch)
    return made


def told_names(capsys: pytest.CaptureFixture[str]) -> list[str]:
    lines = capsys.readouterr().out.splitlines()
    return [line.split()[1] for line in lines if " is not used: " in line]


def test_unread_settings_are_printed_once_at_the_first_report(
    trial: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    with core.init() as context:
        assert told_names(capsys) == []
        context.train.report_training_metrics(1, {"loss": 1.0})
        assert told_names(capsys) == NAMES
        context.train.report_validation_metrics(1, {"loss": 1.0})
    assert told_names(capsys) == []


def test_settings_read_by_an_adapter_have_no_notice(
    trial: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    with core.init() as context:
        FrameworkLoop(context, saves_by_policy=False).report_progress(1, 0.5, 0.5)
    lines = told_names(capsys)
    assert "checkpoint_policy" in lines
    assert "optimizations.asynchronous_checkpoints" not in lines


def test_trainer_prints_no_unread_settings(trial: Path, capsys: pytest.CaptureFixture[str]) -> None:
    with pytorch.init() as context:
        context.core.train.report_training_metrics(1, {"loss": 1.0})
    assert told_names(capsys) == []
