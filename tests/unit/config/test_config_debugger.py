"""The section `debugger`: only a search with a single trial may wait for a debugger."""

from __future__ import annotations

from typing import Any

import pytest

from control_plane.config.command import COMMAND_SECTIONS
from tests.unit.config.samples import LENGTH, STEP, check_changed, find_messages

GRID = {"name": "grid", "metric": "loss", "max_length": {"batches": 9}}
RANDOM = {"name": "random", "metric": "loss", "max_length": {"batches": 9}, "max_trials": 2}
ONE_POINT = {"lr": {"type": "categorical", "vals": [0.1]}}


@pytest.mark.parametrize(
    ("base", "changes"),
    [
        (STEP, {}),
        (LENGTH, {}),
        (LENGTH, {"searcher": {**RANDOM, "max_trials": 1}}),
        (LENGTH, {"searcher": GRID, "hyperparameters": ONE_POINT}),
        (LENGTH, {"debugger.attach_timeout": 60}),
    ],
)
def test_single_trial_may_wait_for_a_debugger(
    base: dict[str, Any], changes: dict[str, Any]
) -> None:
    config = check_changed(base, {"debugger.enabled": True, **changes})
    assert config.debugger.enabled
    assert not check_changed(base, changes).debugger.enabled


@pytest.mark.parametrize("searcher", [RANDOM, {"name": "custom", "metric": "loss"}])
def test_search_with_several_trials_is_refused(searcher: dict[str, Any]) -> None:
    changes = {"debugger": {"enabled": True}, "searcher": searcher}
    assert find_messages(LENGTH, changes) == {
        "debugger.enabled": "is for a single trial, but the "
        f"{searcher['name']} searcher may create several"
    }


def test_wait_has_an_end() -> None:
    changes = {"debugger": {"enabled": True, "attach_timeout": 0}}
    assert find_messages(LENGTH, changes) == {
        "debugger.attach_timeout": "must be at least 1, not 0"
    }
    assert "debugger" not in COMMAND_SECTIONS
