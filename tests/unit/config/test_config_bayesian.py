"""The bayesian searcher: fields, plan, preview, and a server without Optuna."""

import sys
from importlib.machinery import ModuleSpec
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

from control_plane.config.__main__ import main
from control_plane.config.preview import Bracket, Rung, preview_search
from control_plane.searchers import era_rules as rules
from control_plane.searchers.methods.bayesian import BayesianPlan
from tests.unit.config.samples import (
    LENGTH,
    STEP,
    change_fields,
    check_changed,
    find_messages,
    to_yaml,
)

IN_STEPS = {"name": "bayesian", "metric": "loss", "max_trials": 40, "max_steps": 5}
IN_EPOCHS = {"name": "bayesian", "metric": "loss", "max_trials": 40, "max_length": {"batches": 5}}


def test_defaults_are_16_concurrent_and_10_startup_trials() -> None:
    step, length = (
        check_changed(STEP, {"searcher": IN_STEPS}),
        check_changed(LENGTH, {"searcher": IN_EPOCHS}),
    )
    assert step.search_plan().method == BayesianPlan(5, 40, 16, 10, rules.STEP_ERA)
    assert length.search_plan().method == BayesianPlan(5, 40, 16, 10, rules.LENGTH_ERA)
    assert step.trials == length.trials == 40


@pytest.mark.parametrize("field", ["max_concurrent_trials", "startup_trials"])
def test_trial_limits_of_bayesian_search_are_positive(field: str) -> None:
    messages = find_messages(LENGTH, {"searcher": {**IN_EPOCHS, field: 0}})
    assert messages == {f"searcher.{field}": "must be at least 1, not 0"}


def test_bayesian_preview_counts_full_trials() -> None:
    preview = preview_search(check_changed(LENGTH, {"searcher": IN_EPOCHS}))
    assert preview.brackets == (Bracket((Rung(5, reached=40, stopped=40, expected=40),)),)
    assert (preview.batches, preview.is_example) == (200, False)


def run_summary(folder: Path, searcher: dict[str, Any]) -> int:
    file = folder / "config.yaml"
    file.write_text(to_yaml(change_fields(LENGTH, {"searcher": searcher})))
    return main([str(file)])


def test_summary_of_bayesian_search_has_the_total_length(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    package = ModuleType("optuna")
    package.__spec__ = ModuleSpec("optuna", None)
    monkeypatch.setitem(sys.modules, "optuna", package)
    assert run_summary(tmp_path, IN_EPOCHS) == 0
    lines = capsys.readouterr().out.splitlines()
    assert "total:           200 batches" in lines
    assert lines[-1] == "continuable:     no: pause the search to go on later"


def test_missing_optuna_is_reported_with_the_install_command(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "optuna", None)
    assert run_summary(tmp_path, IN_EPOCHS) == 1
    assert capsys.readouterr().out == (
        f"{tmp_path}/config.yaml: searcher.name: searcher bayesian needs Optuna, which is not"
        " installed on this server: pip install 'detcloud[optuna]'\n"
    )
    random = {**IN_EPOCHS, "name": "random"}
    assert run_summary(tmp_path, random) == 0
