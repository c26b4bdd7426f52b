from __future__ import annotations

from typing import Any

import pytest

from control_plane.actors.lengths import Unit
from control_plane.searchers.era_rules import LENGTH_ERA, STEP_ERA, SearchRules
from control_plane.searchers.exploration import Exploration
from control_plane.searchers.halving.asynchronous import HalvingPlan
from control_plane.searchers.halving.multi_bracket import MultiBracketPlan
from control_plane.searchers.halving.synchronous import SyncHalvingPlan
from control_plane.searchers.method import MethodPlan
from control_plane.searchers.methods.custom import CustomPlan
from control_plane.searchers.methods.grid import GridPlan
from control_plane.searchers.methods.pbt import PopulationPlan
from control_plane.searchers.methods.random import RandomPlan
from control_plane.searchers.methods.single import SinglePlan
from control_plane.searchers.registry import searcher_specs
from tests.unit.config.samples import (
    LENGTH,
    STEP,
    change_fields,
    check_changed,
    find_messages,
    find_problems,
    to_yaml,
)

PBT = {
    "name": "pbt",
    "population_size": 10,
    "num_rounds": 3,
    "replace_function": {"truncate_fraction": 0.2},
    "explore_function": {"resample_probability": 0.2, "perturb_factor": 0.2},
}
STEP_SEARCHERS: list[dict[str, Any]] = [
    {"name": "single", "max_steps": 5, "source_trial_id": 3},
    {"name": "single", "max_steps": 5, "source_checkpoint_uuid": "abc"},
    {"name": "single", "max_steps": 5, "source_trial_id": 3, "source_checkpoint_uuid": "abc"},
    {"name": "random", "max_steps": 10, "max_trials": 5, "smaller_is_better": False},
    {"name": "grid", "max_steps": 5},
    {"name": "bayesian", "max_steps": 5, "max_trials": 9, "max_concurrent_trials": 1},
    {"name": "sync_halving", "num_rungs": 3, "target_trial_steps": 9, "step_budget": 100},
    {"name": "async_halving", "num_rungs": 3, "target_trial_steps": 9, "max_trials": 10},
    {"name": "adaptive", "target_trial_steps": 10, "step_budget": 50000, "mode": "aggressive"},
    {"name": "adaptive", "target_trial_steps": 10, "step_budget": 11, "bracket_rungs": [3, 2]},
    {"name": "adaptive_simple", "max_steps": 10, "max_trials": 2000, "divisor": 3},
    {"name": "adaptive_asha", "target_trial_steps": 10, "max_trials": 20},
    {"name": "adaptive_asha", "target_trial_steps": 1, "max_trials": 2, "max_concurrent_trials": 1},
    {**PBT, "steps_per_round": 5},
]
TEN = {"batches": 10}
LENGTH_SEARCHERS: list[dict[str, Any]] = [
    {"name": "single", "max_length": 100},
    {"name": "random", "max_length": {"records": 5}, "max_trials": 5, "max_concurrent_trials": 0},
    {"name": "grid", "max_length": {"epochs": 5}, "max_concurrent_trials": 2},
    {"name": "bayesian", "max_length": TEN, "max_trials": 9, "startup_trials": 1},
    {"name": "sync_halving", "num_rungs": 3, "max_length": TEN, "budget": {"batches": 100}},
    {"name": "async_halving", "num_rungs": 3, "max_length": TEN, "max_trials": 9},
    {"name": "adaptive", "max_length": TEN, "budget": {"batches": 11}},
    {"name": "adaptive_simple", "max_length": TEN, "max_trials": 10},
    {"name": "adaptive_asha", "max_length": TEN, "max_trials": 10, "stop_once": True},
    {"name": "adaptive_asha", "max_time": 10, "time_metric": "batches", "max_trials": 10},
    {**PBT, "length_per_round": TEN},
    {"name": "custom", "unit": "epochs", "anything": {"else": 1}},
]
BRACKETED = {"name": "adaptive_asha", "max_length": 10, "max_trials": 9}
NAMES = ", ".join(sorted({searcher["name"] for searcher in STEP_SEARCHERS}))

REFUSED: list[tuple[dict[str, Any], str, str]] = [
    ({"name": "single"}, "searcher.max_steps", "is required"),
    ({"name": "grid"}, "searcher.max_steps", "is required"),
    ({"name": "random", "max_steps": 0, "max_trials": 1}, "searcher.max_steps", "at least 1"),
    ({"name": "random", "max_steps": 1}, "searcher.max_trials", "is required"),
    ({"name": "random", "max_steps": 1, "max_trials": 0}, "searcher.max_trials", "at least 1"),
    ({"name": "random", "max_steps": 1, "max_trials": 10**6 + 1}, "searcher.max_trials", "1000000"),
    ({"name": "random", "max_steps": 1, "max_trials": 1.5}, "searcher.max_trials", "an integer"),
    ({"name": "rando", "max_steps": 1}, "searcher.name", f"must be one of {NAMES}, not"),
    ({"name": ["random"], "max_steps": 1}, "searcher.name", "not a list"),
    ({"max_steps": 1}, "searcher.name", "is required"),
    ({"name": "custom", "max_steps": 1}, "searcher.name", "must be one of"),
    ({"name": "single", "max_steps": {"batches": 1}}, "searcher.max_steps", "a number of steps"),
    ({"name": "single", "max_steps": 1, "metric": ""}, "searcher.metric", "must not be empty"),
    (
        {"name": "random", "max_steps": 1, "max_trials": 1, "max_concurrent_trials": 4},
        "searcher.max_concurrent_trials",
        "is not a known field",
    ),
    (
        {"name": "adaptive", "target_trial_steps": 10, "step_budget": 10},
        "searcher.step_budget",
        "must be greater than target_trial_steps (10), not 10",
    ),
    (
        {"name": "adaptive", "target_trial_steps": 10, "step_budget": 50001},
        "searcher.step_budget",
        "must be at most 50000, not 50001",
    ),
    (
        {"name": "adaptive", "target_trial_steps": 10, "step_budget": 50, "divisor": 1},
        "searcher.divisor",
        "must be greater than 1",
    ),
    (
        {"name": "adaptive", "target_trial_steps": 10, "step_budget": 50, "mode": "wild"},
        "searcher.mode",
        "must be 'aggressive', 'standard' or 'conservative'",
    ),
    (
        {"name": "adaptive", "target_trial_steps": 10, "step_budget": 50, "max_rungs": 0},
        "searcher.max_rungs",
        "must be at least 1",
    ),
    (
        # Rungs of 4 and 1 trials train 4 * 2 + 1 * 6 = 14 steps: int(3 / 14 * 4) = 0 trials.
        {"name": "sync_halving", "target_trial_steps": 8, "num_rungs": 2, "step_budget": 3},
        "searcher.step_budget",
        "is too small: no trial would be made",
    ),
    (
        # A single rung of 2 steps: 2000002 steps are 1000001 trials.
        {"name": "sync_halving", "target_trial_steps": 2, "num_rungs": 1, "step_budget": 2000002},
        "searcher.step_budget",
        "makes 1000001 trials, at most 1000000 are allowed",
    ),
    (
        {"name": "adaptive_simple", "max_steps": 10, "max_trials": 2001},
        "searcher.max_trials",
        "must be at most 2000",
    ),
    (
        {
            "name": "adaptive_asha",
            "target_trial_steps": 9,
            "max_trials": 9,
            "max_concurrent_trials": -1,
        },
        "searcher.max_concurrent_trials",
        "must be at least 0",
    ),
    (
        {"name": "async_halving", "target_trial_steps": 2, "max_trials": 9, "num_rungs": 3},
        "searcher.num_rungs",
        "must be at most target_trial_steps (2 steps), not 3",
    ),
    (
        # All rungs would be at 1 step.
        {"name": "sync_halving", "target_trial_steps": 1, "step_budget": 9, "num_rungs": 2},
        "searcher.num_rungs",
        "must be at most target_trial_steps (1 steps), not 2",
    ),
    (
        {**PBT, "steps_per_round": 1, "replace_function": {"truncate_fraction": 0.6}},
        "searcher.replace_function.truncate_fraction",
        "must be at most 0.5, not 0.6",
    ),
    (
        {**PBT, "steps_per_round": 1, "explore_function": {"perturb_factor": 2}},
        "searcher.explore_function.resample_probability",
        "is required",
    ),
    ({**PBT}, "searcher.steps_per_round", "is required"),
]


def searcher_changes(searcher: dict[str, Any]) -> dict[str, Any]:
    return {"searcher": {"metric": "loss", **searcher}}


def test_searchers_have_samples_in_all_supported_eras() -> None:
    specs = searcher_specs()
    in_steps = {spec.name for spec in specs if spec.step_options}
    assert {searcher["name"] for searcher in STEP_SEARCHERS} == in_steps
    assert {searcher["name"] for searcher in LENGTH_SEARCHERS} == {spec.name for spec in specs}


@pytest.mark.parametrize("searcher", STEP_SEARCHERS)
def test_accepts_searchers_of_the_step_era(searcher: dict[str, Any]) -> None:
    config = check_changed(STEP, searcher_changes(searcher))
    assert (config.era, config.unit) == ("step", "steps")


@pytest.mark.parametrize("searcher", LENGTH_SEARCHERS)
def test_accepts_searchers_of_the_length_era(searcher: dict[str, Any]) -> None:
    needed = {"hyperparameters.global_batch_size": 8, "records_per_epoch": 80}
    assert check_changed(LENGTH, {**searcher_changes(searcher), **needed}).era == "length"


@pytest.mark.parametrize(("searcher", "path", "message"), REFUSED)
def test_problems_of_searchers_name_the_field(
    searcher: dict[str, Any], path: str, message: str
) -> None:
    messages = find_messages(STEP, {**searcher_changes(searcher), "batches_per_step": 100})
    assert message in messages[path]


@pytest.mark.parametrize(
    ("searcher", "path", "message"),
    [
        ({"name": "single", "max_length": {"batches": 0}}, "searcher.max_length.batches", "1"),
        ({"name": "single", "max_length": {"steps": 1}}, "searcher.max_length.steps", "unit"),
        ({"name": "single", "max_length": {}}, "searcher.max_length", "exactly one of"),
        (
            {"name": "single", "max_length": {"batches": 1, "epochs": 1}},
            "searcher.max_length",
            "exactly one of",
        ),
        ({"name": "single", "max_length": "100"}, "searcher.max_length", "must be a length like"),
        ({"name": "single", "max_length": 0}, "searcher.max_length", "must be at least 1, not 0"),
        (
            {"name": "single", "max_length": {"batches": 1 << 53}},
            "searcher.max_length.batches",
            "must be an integer of at most 9007199254740991, not 9007199254740992",
        ),
        ({**BRACKETED, "bracket_rungs": [2, 0]}, "searcher.bracket_rungs[1]", "at least 1, not 0"),
        ({**BRACKETED, "bracket_rungs": [None]}, "searcher.bracket_rungs[0]", "not null"),
        ({**BRACKETED, "bracket_rungs": 3}, "searcher.bracket_rungs", "must be a list, not 3"),
        (
            {**BRACKETED, "bracket_rungs": [1] * 101},
            "searcher.bracket_rungs",
            "must have at most 100 entries",
        ),
        (
            {**BRACKETED, "bracket_rungs": [2, 11]},
            "searcher.bracket_rungs[1]",
            "must be at most max_length (10 batches), not 11",
        ),
        (
            {**BRACKETED, "name": "adaptive", "budget": 99, "max_trials": None, "max_steps": 10},
            "searcher.max_length",
            "mixes the eras: searcher.max_steps counts steps",
        ),
        ({"name": "adaptive_asha", "max_trials": 5}, "searcher.max_length", "is required"),
        (
            {"name": "adaptive_asha", "max_trials": 5, "max_time": 5},
            "searcher.time_metric",
            "is required with max_time",
        ),
        (
            {"name": "adaptive", "max_length": TEN, "budget": {"records": 100}},
            "searcher.budget",
            "must be in batches, like max_length, not in records",
        ),
        (
            {"name": "adaptive", "max_length": TEN, "budget": TEN},
            "searcher.budget",
            "must be greater than max_length (10), not 10",
        ),
    ],
)
def test_problems_of_lengths_name_the_field(
    searcher: dict[str, Any], path: str, message: str
) -> None:
    assert message in find_messages(LENGTH, searcher_changes(searcher))[path]


@pytest.mark.parametrize("divisor", [1, 0, -2, float("nan"), float("inf"), "4"])
@pytest.mark.parametrize("name", ["async_halving", "sync_halving", "adaptive", "adaptive_asha"])
def test_divisor_must_be_a_number_above_1(name: str, divisor: object) -> None:
    searcher = next(dict(sample) for sample in LENGTH_SEARCHERS if sample["name"] == name)
    assert (
        "must be"
        in find_messages(LENGTH, searcher_changes({**searcher, "divisor": divisor}))[
            "searcher.divisor"
        ]
    )


@pytest.mark.parametrize("divisor", [1 + 1e-9, 1e300])
@pytest.mark.parametrize("name", ["async_halving", "sync_halving", "adaptive_asha"])
def test_extreme_divisors_have_a_plan(name: str, divisor: float) -> None:
    searcher = next(dict(sample) for sample in LENGTH_SEARCHERS if sample["name"] == name)
    check_changed(LENGTH, searcher_changes({**searcher, "divisor": divisor})).search_plan()


def test_short_search_has_fewer_rungs_than_the_mode_allows() -> None:
    # The default is at most 5 rungs; a single step allows a single length.
    short = {"name": "adaptive_asha", "target_trial_steps": 1, "max_trials": 9}
    plan = check_changed(STEP, searcher_changes(short)).search_plan()
    assert isinstance(plan.method, MultiBracketPlan)
    assert [len(bracket.lengths) for bracket in plan.method.brackets] == [1]


def test_grid_without_a_length_hints_at_the_fields_of_both_eras() -> None:
    tree = change_fields(LENGTH, searcher_changes({"name": "grid"}))
    problem, empty = find_problems(to_yaml(tree))
    assert problem.path == "searcher.max_length"
    assert problem.message.startswith("is required, since model_def:MyTrial trains")
    assert "max_steps" in problem.hint
    assert empty.path == "hyperparameters"


def test_plan_of_a_single_search_keeps_length_and_seed() -> None:
    plan = check_changed(STEP, {"reproducibility.experiment_seed": 7}).search_plan()
    assert plan.method == SinglePlan(10, STEP_ERA)
    assert plan.seed == 7


@pytest.mark.parametrize(
    ("base", "searcher", "method"),
    [
        (STEP, {"max_steps": 10, "max_trials": 5}, RandomPlan(10, 5, 0, STEP_ERA)),
        (LENGTH, {"max_length": 70, "max_trials": 5}, RandomPlan(70, 5, 16, LENGTH_ERA)),
    ],
)
def test_random_search_runs_16_concurrent_trials_in_the_length_era(
    base: dict[str, Any], searcher: dict[str, Any], method: RandomPlan
) -> None:
    config = check_changed(base, searcher_changes({"name": "random", **searcher}))
    assert config.search_plan().method == method
    assert config.trials == 5


def test_length_without_a_unit_stays_a_number_in_trial_values() -> None:
    config = check_changed(LENGTH, searcher_changes({"name": "single", "max_length": 7}))
    assert config.trial_values()["searcher"]["max_length"] == 7
    stored = type(config).from_json(config.to_json())
    assert stored == config
    assert stored.trial_values()["searcher"]["max_length"] == 7


def test_grid_search_plans_all_points() -> None:
    grid = {
        "lr": {"type": "double", "minval": 0, "maxval": 1, "count": 3},
        "layers": {"type": "int", "minval": 1, "maxval": 2, "count": 5},
        "arch": {"a": {"type": "categorical", "vals": [1, 2]}},
    }
    searcher = {"name": "grid", "max_length": 5, "max_concurrent_trials": 0}
    config = check_changed(LENGTH, {**searcher_changes(searcher), "hyperparameters": grid})
    assert config.search_plan().method == GridPlan(5, 0, LENGTH_ERA)
    assert config.trials == 12  # 3 * min(5, 2 - 1 + 1) * 2


@pytest.mark.parametrize(
    ("base", "searcher", "method"),
    [
        # c = 9, 3, 1; lengths 1, 3, 9; E = 9 + 2*3 + 6 = 21; 50/21 = 2.38: 21.4, 7.1, 2.4
        (
            STEP,
            {"name": "sync_halving", "target_trial_steps": 9, "step_budget": 50, "num_rungs": 3},
            SyncHalvingPlan((1, 3, 9), (21, 7, 2), False, STEP_ERA),
        ),
        (
            LENGTH,
            {"name": "sync_halving", "max_length": 9, "budget": 50, "num_rungs": 3},
            SyncHalvingPlan((1, 3, 9), (21, 7, 2), False, LENGTH_ERA),
        ),
        # 50/2 = 25 for each: 25/21 = 1.19: 10.7, 3.6, 1.2; 25/9 = 2.8 trials of 9
        (
            STEP,
            {
                "name": "adaptive",
                "target_trial_steps": 9,
                "step_budget": 50,
                "bracket_rungs": [1, 3],
            },
            MultiBracketPlan(
                (
                    SyncHalvingPlan((1, 3, 9), (10, 3, 1), False, STEP_ERA),
                    SyncHalvingPlan((9,), (2,), False, STEP_ERA),
                )
            ),
        ),
        # rungs 3 and (3 - 1)/2 + 1 = 2; 53/2 = 26 for each: 26/21 = 1.24: 11.1, 3.7, 1.2;
        # 2 rungs: E = 3*3 + 6 = 15; 26/15 = 1.73: 5.2, 1.7
        (
            LENGTH,
            {"name": "adaptive", "max_length": 9, "budget": 53, "max_rungs": 3},
            MultiBracketPlan(
                (
                    SyncHalvingPlan((1, 3, 9), (11, 3, 1), False, LENGTH_ERA),
                    SyncHalvingPlan((3, 9), (5, 1), False, LENGTH_ERA),
                )
            ),
        ),
        # 7 trials: 3, 2, 2; 3/3 = 1
        (
            STEP,
            {
                "name": "adaptive_simple",
                "max_steps": 9,
                "max_trials": 7,
                "max_rungs": 3,
                "mode": "conservative",
            },
            MultiBracketPlan(
                (
                    SyncHalvingPlan((1, 3, 9), (3, 1, 1), False, STEP_ERA),
                    SyncHalvingPlan((3, 9), (2, 1), False, STEP_ERA),
                    SyncHalvingPlan((9,), (2,), False, STEP_ERA),
                )
            ),
        ),
        (
            LENGTH,
            {
                "name": "adaptive_simple",
                "max_length": 9,
                "max_trials": 7,
                "max_rungs": 2,
                "mode": "aggressive",
            },
            MultiBracketPlan((SyncHalvingPlan((3, 9), (7, 2), False, LENGTH_ERA),)),
        ),
    ],
)
def test_synchronous_searches_plan_rungs(
    base: dict[str, Any], searcher: dict[str, Any], method: MethodPlan
) -> None:
    searcher = {**searcher, "divisor": 3, "smaller_is_better": False}
    assert check_changed(base, searcher_changes(searcher)).search_plan().method == method


@pytest.mark.parametrize(
    ("base", "length", "rules"),
    [
        (STEP, {"steps_per_round": 10}, STEP_ERA),
        (LENGTH, {"length_per_round": TEN}, LENGTH_ERA),
    ],
)
def test_population_is_planned_in_the_unit_of_the_rounds(
    base: dict[str, Any], length: dict[str, Any], rules: SearchRules
) -> None:
    config = check_changed(base, searcher_changes({**PBT, **length}))
    exploration = Exploration(resample_probability=0.2, perturb_factor=0.2)
    method = PopulationPlan(
        10, 10, 3, 0.2, exploration, smaller_is_better=True, rules=rules, integers_move=True
    )
    assert config.search_plan().method == method
    # 10 at first, and trunc(0.2 * 10) = 2 after each of two rounds.
    assert config.trials == 14


def test_rejects_a_population_of_too_many_trials() -> None:
    searcher = {**PBT, "num_rounds": 1_000_000, "length_per_round": TEN}
    # 10 + 2 * 999,999 = 2,000,008.
    assert find_messages(LENGTH, searcher_changes(searcher)) == {
        "searcher.num_rounds": "makes 2000008 trials in all, at most 1000000 are allowed"
    }


def test_timed_search_has_rungs_at_shares_of_max_time() -> None:
    searcher = {"name": "async_halving", "max_time": 10, "time_metric": "s", "max_trials": 9}
    config = check_changed(LENGTH, searcher_changes({**searcher, "num_rungs": 2}))
    method = config.search_plan().method
    # 10 / 4 and 10.
    assert method == HalvingPlan(10, 2, 4.0, 9, 16, True, LENGTH_ERA, by_time=True)
    assert isinstance(method, HalvingPlan)
    assert method.lengths == (2, 10)
    assert config.time_metric == "s"


@pytest.mark.parametrize(
    ("searcher", "trials"),
    [
        # As above: 50/21 * 9 = 21.4.
        ({"name": "sync_halving", "max_length": 9, "budget": 50, "num_rungs": 3}, 21),
        # 11 and 5.
        ({"name": "adaptive", "max_length": 9, "budget": 53, "max_rungs": 3}, 16),
        ({"name": "adaptive_simple", "max_length": 9, "max_trials": 7, "max_rungs": 3}, 7),
        # Three brackets, each with at least 1 trial.
        (
            {
                "name": "adaptive_simple",
                "max_length": 9,
                "max_trials": 1,
                "max_rungs": 3,
                "mode": "conservative",
            },
            3,
        ),
        ({"name": "adaptive_asha", "max_length": 9, "max_trials": 20}, 20),
        (
            {
                "name": "adaptive_asha",
                "max_length": 9,
                "max_trials": 2,
                "bracket_rungs": [3, 2, 2, 1],
            },
            4,
        ),
        ({"name": "adaptive_asha", "max_time": 9, "time_metric": "s", "max_trials": 20}, 20),
    ],
)
def test_number_of_trials_is_known_in_advance(searcher: dict[str, Any], trials: int) -> None:
    assert check_changed(LENGTH, searcher_changes({**searcher, "divisor": 3})).trials == trials


@pytest.mark.parametrize("unit", ["batches", "records", "epochs", None])
def test_plan_of_a_custom_search_has_only_the_unit(unit: Unit | None) -> None:
    custom = searcher_changes({"name": "custom", "unit": unit, "population": {"size": 9}})
    config = check_changed(LENGTH, {**custom, "records_per_epoch": 80})
    assert config.search_plan().method == CustomPlan(unit or "batches", LENGTH_ERA)
    assert config.trials is None
