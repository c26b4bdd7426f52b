"""Searches without a length, for entrypoints that decide the length of training."""

from typing import Any

import pytest

from control_plane.config.advice import config_warnings
from control_plane.searchers.era_rules import LENGTH_ERA
from control_plane.searchers.method import ENDLESS
from control_plane.searchers.methods.grid import GridPlan
from control_plane.searchers.methods.random import RandomPlan
from control_plane.searchers.methods.single import SinglePlan
from tests.unit.config.samples import LENGTH, check_changed, find_messages

OPEN_ENDED = [
    ({"name": "single"}, SinglePlan(ENDLESS, LENGTH_ERA)),
    ({"name": "random", "max_trials": 5}, RandomPlan(ENDLESS, 5, 16, LENGTH_ERA)),
    ({"name": "grid", "max_concurrent_trials": 2}, GridPlan(ENDLESS, 2, LENGTH_ERA)),
]


@pytest.mark.parametrize(("searcher", "method"), OPEN_ENDED)
@pytest.mark.parametrize(
    "entrypoint",
    ["python3 train.py", ["python3", "-m", "determined.launch.horovod", "x"]],
)
def test_command_entrypoint_needs_no_length(
    searcher: dict[str, Any], method: object, entrypoint: object
) -> None:
    space = {"x": {"type": "categorical", "vals": [1, 2]}}
    changes = {"searcher": {"metric": "loss", **searcher}, "hyperparameters": space}
    config = check_changed(LENGTH, {**changes, "entrypoint": entrypoint})
    assert config.search_plan().method == method
    assert config.searcher.is_open_ended


@pytest.mark.parametrize(
    "entrypoint",
    [
        "model_def:Trial",
        "python3 -m determined.launch.torch_distributed --trial model_def:Trial",
        ["python3", "-m", "detcloud.launch.horovod", "--trial=a.b:C"],
    ],
)
def test_trial_class_needs_a_length(entrypoint: object) -> None:
    changes = {"searcher": {"name": "single", "metric": "loss"}, "entrypoint": entrypoint}
    message = find_messages(LENGTH, changes)["searcher.max_length"]
    assert message.startswith("is required, since ")
    assert ":" in message


@pytest.mark.parametrize("searcher", [{"name": "bayesian", "max_trials": 3}, {"name": "asha"}])
def test_bayesian_and_asha_searches_need_a_length(searcher: dict[str, Any]) -> None:
    changes = {"searcher": {"metric": "loss", **searcher}, "entrypoint": "python3 train.py"}
    assert find_messages(LENGTH, changes)


@pytest.mark.parametrize(
    ("entrypoint", "time_metric", "count"),
    [
        ("model_def:Trial", "seconds", 1),
        ("model_def:Trial", "epochs", 0),
        ("python3 train.py", "seconds", 0),
    ],
)
def test_warns_of_time_metrics_that_trial_classes_must_return(
    entrypoint: str, time_metric: str, count: int
) -> None:
    searcher = {"name": "adaptive_asha", "metric": "loss", "max_trials": 4, "max_time": 16}
    changes = {"entrypoint": entrypoint, "searcher": {**searcher, "time_metric": time_metric}}
    warnings = list(config_warnings(check_changed(LENGTH, changes)))
    assert (
        len([warning for warning in warnings if warning.startswith("searcher.time_metric: ")])
        == count
    )
