"""The getters of an experiment's configuration."""

from typing import Any

import pytest

from detcloud.shared.experiment_config import ExperimentConfig


@pytest.mark.parametrize(
    ("config", "slots"),
    [
        ({}, 1),
        ({"resources": None}, 1),
        ({"resources": {"slots_per_trial": None}}, 1),
        ({"resources": {"slots_per_trial": 0}}, 0),
        ({"resources": {"slots_per_trial": 4}}, 4),
    ],
)
def test_missing_or_null_slots_are_one_slot(config: dict[str, Any], slots: int) -> None:
    assert ExperimentConfig(config).slots_per_trial() == slots
