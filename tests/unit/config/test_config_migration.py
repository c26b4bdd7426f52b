from __future__ import annotations

from typing import Any

import pytest

from control_plane.config.check import check_config
from control_plane.config.migration import migrate_config
from control_plane.config.problems import ConfigInvalid
from control_plane.config.yaml_document import parse_document
from tests.unit.config.samples import LENGTH, STEP, change_fields, to_yaml
from tests.unit.config.test_config_searchers import STEP_SEARCHERS, searcher_changes

RENAMED = {
    "max_steps": "max_length",
    "target_trial_steps": "max_length",
    "step_budget": "budget",
    "steps_per_round": "length_per_round",
}


@pytest.mark.parametrize("searcher", STEP_SEARCHERS)
@pytest.mark.parametrize("batches_per_step", [None, 30])
def test_migration_keeps_the_batches_of_lengths(
    searcher: dict[str, Any], batches_per_step: int | None
) -> None:
    changes = {"batches_per_step": batches_per_step, "min_validation_period": 4}
    text = to_yaml(change_fields(STEP, {**searcher_changes(searcher), **changes}))
    before, after = check_config(text), check_config(migrate_config(text))
    assert (after.era, after.unit) == ("length", "batches")
    lengths = after.searcher.lengths()
    for name, length in before.searcher.lengths().items():
        expected = length.count * (batches_per_step or 100)
        assert before.batches(length.count, {}) == expected
        assert after.batches(lengths[RENAMED[name]].count, {}) == expected
    assert after.min_validation_batches({}) == before.min_validation_batches({})
    assert after.min_checkpoint_batches({}) == 0
    assert after.workload_batches == before.workload_batches
    if "step_budget" not in searcher:
        # Without rounding rungs down to whole steps, a budget may be enough for more trials.
        assert after.trials == before.trials


def test_migration_writes_defaults_that_differ_between_eras() -> None:
    searcher = {"name": "random", "max_steps": 1, "max_trials": 50}
    after = check_config(migrate_config(to_yaml(change_fields(STEP, searcher_changes(searcher)))))
    assert after.masked_values()["searcher"]["max_concurrent_trials"] == 0
    assert after.optimizations.average_training_metrics is False
    assert after.optimizations.tensor_fusion_cycle_time == 5


def test_migration_keeps_the_values_of_integers() -> None:
    spaces = {
        "wide": {"type": "int", "minval": 1, "maxval": 9},
        "narrow": {"type": "int", "minval": 1, "maxval": 2},
    }
    hyperparameters = {"global_batch_size": 8, **spaces}
    random = searcher_changes({"name": "random", "max_steps": 1, "max_trials": 1})
    after = parse_document(
        migrate_config(to_yaml(change_fields(STEP, {**random, "hyperparameters": hyperparameters})))
    )
    assert isinstance(after.tree, dict)
    migrated = after.tree["hyperparameters"]
    # The step era drew from [1, 9) and [1, 2); maxval is inclusive in the length era.
    assert migrated["wide"] == {"type": "int", "minval": 1, "maxval": 8}
    assert migrated["narrow"] == {"type": "const", "val": 1}


def test_migration_keeps_the_grid_points() -> None:
    axis = {"type": "int", "minval": 1, "maxval": 9, "count": 5}
    grid = {**searcher_changes({"name": "grid", "max_steps": 1}), "hyperparameters.x": axis}
    text = to_yaml(change_fields(STEP, grid))
    assert (
        check_config(migrate_config(text)).search_plan().space
        == check_config(text).search_plan().space
    )


def test_migration_keeps_numeric_text_as_text() -> None:
    data: dict[str, object] = {
        "a": "1e-3",
        "b": "010",
        "c": "on",
        "d": "2020-01-01",
        "e": "1.5",
        "f": None,
        "g": "~",
    }
    data |= {"h": "0o7", "i": ".inf", "j": "<<", "k": "ü", "l": 1e-7, "m": 10**18}
    text = (
        to_yaml(change_fields(STEP, {"data": data}))
        .replace("1e-3", "'1e-3'")
        .replace("0o7", "'0o7'")
    )
    text = text.replace("''", "'")
    assert check_config(text).data == data
    assert check_config(migrate_config(text)).data == data


def test_migration_expands_anchors() -> None:
    text = to_yaml(STEP) + "data: {a: &x {b: 1}, c: *x, d: {<<: *x}}\n"
    assert "&" not in migrate_config(text)
    assert check_config(migrate_config(text)).data == {"a": {"b": 1}, "c": {"b": 1}, "d": {"b": 1}}


def test_migration_keeps_length_era_configurations() -> None:
    text = to_yaml(change_fields(LENGTH, {"searcher.max_length": {"records": 10}}))
    text += "hyperparameters: {global_batch_size: 2}\n"
    assert parse_document(migrate_config(text)).tree == parse_document(text).tree


def test_configuration_with_problems_is_not_migrated() -> None:
    with pytest.raises(ConfigInvalid):
        migrate_config(to_yaml(change_fields(STEP, {"searcher.max_steps": 0})))


def test_overrides_are_migrated_too() -> None:
    after = check_config(migrate_config(to_yaml(STEP), overrides=["searcher.max_steps=7"]))
    assert after.batches(700, {}) == 700
    assert [length.count for length in after.searcher.lengths().values()] == [700]
