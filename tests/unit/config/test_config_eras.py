from __future__ import annotations

from typing import Any

import pytest

from control_plane.config.check import check_config
from control_plane.config.experiment import ExperimentConfig
from control_plane.config.problems import ConfigInvalid
from tests.unit.config.samples import (
    ABSENT,
    LENGTH,
    STEP,
    change_fields,
    check_changed,
    find_problems,
    to_yaml,
)

NEUTRAL = change_fields(LENGTH, {"searcher.max_length": ABSENT})
STEP_MARKS = {
    "searcher.max_steps": 5,
    "searcher.target_trial_steps": 5,
    "searcher.step_budget": 5,
    "searcher.steps_per_round": 5,
    "batches_per_step": 5,
    "min_validation_period": 5,
    "min_checkpoint_period": 5,
}
LENGTH_MARKS = {
    "searcher.max_length": {"batches": 5},
    "searcher.max_time": 5,
    "records_per_epoch": 5,
    "scheduling_unit": 5,
    "min_validation_period": {"batches": 5},
    "min_checkpoint_period": {"epochs": 5},
}


@pytest.mark.parametrize("step", STEP_MARKS)
@pytest.mark.parametrize("length", LENGTH_MARKS)
def test_mixed_eras_are_a_single_problem_with_two_fields(step: str, length: str) -> None:
    if step == length:
        return
    text = to_yaml(change_fields(NEUTRAL, {step: STEP_MARKS[step], length: LENGTH_MARKS[length]}))
    (problem,) = find_problems(text)
    assert problem.path == length
    assert f"{step} counts steps, but {length} counts batches" in problem.message
    assert problem.line is not None


def test_template_of_the_wrong_era_is_refused() -> None:
    (problem,) = find_problems(to_yaml(STEP), template="scheduling_unit: 5")
    assert (problem.path, problem.line) == ("searcher.max_steps", 7)
    assert "scheduling_unit" in problem.message


def test_null_field_marks_no_era() -> None:
    assert check_changed(LENGTH, {"batches_per_step": None}).era == "length"
    assert check_changed(STEP, {"scheduling_unit": None}).era == "step"


def test_configuration_without_marks_has_the_length_era() -> None:
    custom = {"name": "custom", "metric": "loss"}
    config = check_changed(LENGTH, {"searcher": custom})
    assert (config.era, config.unit, config.workload_batches) == ("length", "batches", 100)


@pytest.mark.parametrize(
    ("changes", "unit", "length", "batches"),
    [
        ({"searcher.max_length": 500}, "batches", 500, 500),
        ({"searcher.max_length": {"batches": 500}}, "batches", 500, 500),
        ({"searcher.max_length": {"records": 1000}}, "records", 1000, 15),  # 1000 // 64
        ({"searcher.max_length": {"records": 10}}, "records", 10, 1),  # at least 1 batch
        ({"searcher.max_length": {"epochs": 3}}, "epochs", 3, 46),  # 3 * 1000 // 64
    ],
)
def test_lengths_are_converted_with_the_batch_size_of_the_trial(
    changes: dict[str, Any], unit: str, length: int, batches: int
) -> None:
    needed = {"hyperparameters.global_batch_size": 8, "records_per_epoch": 1000}
    config = check_changed(LENGTH, {**changes, **needed})
    assert config.unit == unit
    assert config.batches(length, {"global_batch_size": 64}) == batches


def test_steps_are_converted_with_batches_per_step() -> None:
    config = check_changed(STEP, {"batches_per_step": 30})
    assert (config.unit, config.workload_batches) == ("steps", 30)
    assert config.batches(7, {}) == 210
    assert config.units(45, {}) == 1.5


@pytest.mark.parametrize(
    ("max_length", "units"),
    [({"batches": 5}, 125.0), ({"records": 5}, 8000.0), ({"epochs": 5}, 8.0)],
)
def test_batches_are_converted_back_to_units(max_length: dict[str, int], units: float) -> None:
    needed = {"hyperparameters.global_batch_size": 64, "records_per_epoch": 1000}
    config = check_changed(LENGTH, {"searcher.max_length": max_length, **needed})
    assert config.units(125, {"global_batch_size": 64}) == units  # 125 * 64 = 8000 records


def test_trial_without_a_batch_size_cannot_convert_records() -> None:
    changes = {"searcher.max_length": {"records": 5}, "hyperparameters.global_batch_size": 64}
    config = check_changed(LENGTH, changes)
    with pytest.raises(ValueError, match="global_batch_size must be an integer of at least 1"):
        config.batches(5, {"global_batch_size": "64"})


def test_periods_may_have_different_units() -> None:
    config = check_changed(
        LENGTH,
        {
            "min_validation_period": {"epochs": 2},
            "min_checkpoint_period": {"batches": 7},
            "records_per_epoch": 1000,
            "hyperparameters.global_batch_size": 100,
        },
    )
    assert config.min_validation_batches({"global_batch_size": 100}) == 20
    assert config.min_checkpoint_batches({"global_batch_size": 100}) == 7
    step = check_changed(STEP, {"min_validation_period": 3})
    assert (step.min_validation_batches({}), step.min_checkpoint_batches({})) == (300, 0)


def test_zero_period_is_off() -> None:
    config = check_changed(
        LENGTH, {"min_validation_period": {"records": 0}, "hyperparameters.global_batch_size": 5}
    )
    assert config.min_validation_batches({"global_batch_size": 5}) == 0


def test_native_experiment_with_epochs_needs_records_per_epoch() -> None:
    native = {"entrypoint": None, "internal": {"native": {"command": ["train.py"]}}}
    text = to_yaml(change_fields(LENGTH, {**native, "min_validation_period": {"epochs": 1}}))
    assert [problem.path for problem in find_problems(text)] == ["records_per_epoch"]


def test_rejects_too_large_lengths() -> None:
    text = to_yaml(change_fields(STEP, {"searcher.max_steps": 2**52}))
    (problem,) = find_problems(text)
    assert problem.path == "searcher.max_steps"


@pytest.mark.parametrize("base", [STEP, LENGTH])
def test_stored_form_restores_the_configuration(base: dict[str, Any]) -> None:
    config = check_changed(base, {"hyperparameters.lr": 0.1, "data": {"a": None}, "labels": ["x"]})
    stored = config.to_json()
    assert ExperimentConfig.from_json(stored) == config
    assert ExperimentConfig.from_json(stored).to_json() == stored


@pytest.mark.parametrize("base", [STEP, LENGTH])
def test_masked_form_without_secrets_restores_the_configuration(base: dict[str, Any]) -> None:
    config = check_changed(
        base, {"resources.devices": ["/dev/a:/dev/b"], "hyperparameters.lr": 0.1}
    )
    assert check_config(to_yaml(config.masked_values())) == config


def test_rejects_stored_forms_of_unknown_versions() -> None:
    with pytest.raises(ValueError, match="must have version 1"):
        ExperimentConfig.from_json(b'{"version": 2}')


@pytest.mark.parametrize("config", ["[]", "null", '"text"', "5"])
def test_rejects_stored_forms_without_a_map(config: str) -> None:
    text = '{"version": 1, "era": "length", "config": %s}'
    with pytest.raises(ValueError, match="must be a map"):
        ExperimentConfig.from_json((text % config).encode())


def test_configuration_is_frozen() -> None:
    config = check_changed(STEP, {})
    with pytest.raises(ValueError, match="frozen"):
        setattr(config, "max_restarts", 1)  # noqa: B010


def test_default_seed_applies_without_a_configured_seed() -> None:
    text = to_yaml(LENGTH)
    assert check_config(text, seed_default=12).experiment_seed == 12
    assert check_config(text, seed_default=2**31 + 5).experiment_seed == 5
    assert check_config(text + "reproducibility: {experiment_seed: 3}", seed_default=12).name != ""
    assert check_config(text, seed_default=1).name != check_config(text, seed_default=2).name


def test_step_era_stores_the_generated_name_as_description() -> None:
    assert (check_changed(STEP, {}).description or "").startswith("Experiment (")
    assert check_changed(STEP, {"description": ""}).description == ""
    assert check_changed(LENGTH, {"name": "mine"}).name == "mine"


def test_step_period_with_a_length_hints_at_the_length_form() -> None:
    text = """
name: n
entrypoint: model_def:Trial
min_validation_period: 1
searcher: {name: single, metric: loss, max_length: {batches: 10}}
"""
    with pytest.raises(ConfigInvalid, match=r"use a length like \{batches: 100\} there, or"):
        check_config(text)


def test_trial_counts_epochs_without_records_per_epoch() -> None:
    own = {"searcher.max_length": {"epochs": 4}}
    assert check_changed(LENGTH, own).counts_epochs
    assert not check_changed(LENGTH, {**own, "records_per_epoch": 80}).counts_epochs
    mixed = {
        "min_validation_period": {"epochs": 2},
        "min_checkpoint_period": {"batches": 30},
        "records_per_epoch": 0,
    }
    config = check_changed(LENGTH, {**mixed, "searcher.max_length": {"batches": 80}})
    assert not config.counts_epochs
    assert config.trial_epochs("min_validation_period") == 2
    assert config.trial_epochs("min_checkpoint_period") == 0
    assert config.min_validation_batches({}) == 0
    assert config.min_checkpoint_batches({}) == 30
