from __future__ import annotations

from typing import Any

import pytest

from control_plane.actors.lengths import Unit
from control_plane.config import SearcherNotAvailable
from control_plane.searchers.custom import CustomPlan
from control_plane.searchers.grid import GridPlan
from control_plane.searchers.random import RandomPlan
from control_plane.searchers.rules import LENGTH_ERA, STEP_ERA
from control_plane.searchers.search import MethodPlan
from control_plane.searchers.single import SinglePlan
from control_plane.searchers.synchronous import SyncHalvingPlan
from control_plane.searchers.tournament import TournamentPlan
from tests.unit.config.samples import LENGTH, STEP, changed, checked, problems_of, refusals, text_of

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
    {"name": "sync_halving", "num_rungs": 3, "max_length": TEN, "budget": {"batches": 100}},
    {"name": "async_halving", "num_rungs": 3, "max_length": TEN, "max_trials": 9},
    {"name": "adaptive", "max_length": TEN, "budget": {"batches": 11}},
    {"name": "adaptive_simple", "max_length": TEN, "max_trials": 10},
    {"name": "adaptive_asha", "max_length": TEN, "max_trials": 10, "stop_once": True},
    {"name": "adaptive_asha", "max_time": 10, "time_metric": "batches", "max_trials": 10},
    {**PBT, "length_per_round": TEN},
    {"name": "custom", "unit": "epochs", "anything": {"else": 1}},
]
NAMES = ", ".join(sorted({searcher["name"] for searcher in STEP_SEARCHERS}))

REFUSED: list[tuple[dict[str, Any], str, str]] = [
    ({"name": "single"}, "searcher.max_steps", "is required"),
    ({"name": "grid"}, "searcher.max_steps", "is required"),
    ({"name": "random", "max_steps": 0, "max_trials": 1}, "searcher.max_steps", "at least 1"),
    ({"name": "random", "max_steps": 1}, "searcher.max_trials", "is required"),
    ({"name": "random", "max_steps": 1, "max_trials": 0}, "searcher.max_trials", "at least 1"),
    ({"name": "random", "max_steps": 1, "max_trials": 10**6 + 1}, "searcher.max_trials", "1000000"),
    ({"name": "random", "max_steps": 1, "max_trials": 1.0}, "searcher.max_trials", "an integer"),
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
        # One rung: a trial for every two of the steps.
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


def with_searcher(searcher: dict[str, Any]) -> dict[str, Any]:
    return {"searcher": {"metric": "loss", **searcher}}


@pytest.mark.parametrize("searcher", STEP_SEARCHERS)
def test_every_searcher_of_the_step_era_is_accepted(searcher: dict[str, Any]) -> None:
    config = checked(STEP, with_searcher(searcher))
    assert (config.era, config.unit) == ("step", "steps")


@pytest.mark.parametrize("searcher", LENGTH_SEARCHERS)
def test_every_searcher_of_the_length_era_is_accepted(searcher: dict[str, Any]) -> None:
    needed = {"hyperparameters.global_batch_size": 8, "records_per_epoch": 80}
    assert checked(LENGTH, {**with_searcher(searcher), **needed}).era == "length"


@pytest.mark.parametrize(("searcher", "path", "message"), REFUSED)
def test_every_rule_of_a_searcher_names_its_field(
    searcher: dict[str, Any], path: str, message: str
) -> None:
    found = refusals(STEP, {**with_searcher(searcher), "batches_per_step": 100})
    assert message in found[path]


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
        ({"name": "adaptive_asha", "max_trials": 5}, "searcher.max_length", "is required"),
        (
            {"name": "adaptive_asha", "max_trials": 5, "max_time": 5},
            "searcher.time_metric",
            "is required beside max_time",
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
def test_every_rule_of_a_length_names_its_field(
    searcher: dict[str, Any], path: str, message: str
) -> None:
    assert message in refusals(LENGTH, with_searcher(searcher))[path]


def test_a_grid_without_a_length_says_which_field_of_which_era_it_misses() -> None:
    tree = changed(LENGTH, with_searcher({"name": "grid"}))
    problem, empty = problems_of(text_of(tree))
    assert (problem.path, problem.message) == ("searcher.max_length", "is required")
    assert "max_steps" in problem.hint
    assert empty.path == "hyperparameters"


def test_the_plan_of_a_single_search_keeps_the_unit_and_the_seed() -> None:
    plan = checked(STEP, {"reproducibility.experiment_seed": 7}).search_plan()
    assert plan.method == SinglePlan(10, STEP_ERA)
    assert plan.seed == 7


@pytest.mark.parametrize(
    ("base", "searcher", "method"),
    [
        (STEP, {"max_steps": 10, "max_trials": 5}, RandomPlan(10, 5, 0, STEP_ERA)),
        (LENGTH, {"max_length": 70, "max_trials": 5}, RandomPlan(70, 5, 16, LENGTH_ERA)),
    ],
)
def test_a_random_search_runs_16_trials_at_a_time_in_the_length_era(
    base: dict[str, Any], searcher: dict[str, Any], method: RandomPlan
) -> None:
    config = checked(base, with_searcher({"name": "random", **searcher}))
    assert config.search_plan().method == method
    assert config.trials == 5


def test_a_grid_search_plans_all_of_its_points() -> None:
    grid = {
        "lr": {"type": "double", "minval": 0, "maxval": 1, "count": 3},
        "layers": {"type": "int", "minval": 1, "maxval": 2, "count": 5},
        "arch": {"a": {"type": "categorical", "vals": [1, 2]}},
    }
    searcher = {"name": "grid", "max_length": 5, "max_concurrent_trials": 0}
    config = checked(LENGTH, {**with_searcher(searcher), "hyperparameters": grid})
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
            TournamentPlan(
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
            TournamentPlan(
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
            TournamentPlan(
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
            TournamentPlan((SyncHalvingPlan((3, 9), (7, 2), False, LENGTH_ERA),)),
        ),
    ],
)
def test_synchronous_searches_plan_their_rungs(
    base: dict[str, Any], searcher: dict[str, Any], method: MethodPlan
) -> None:
    searcher = {**searcher, "divisor": 3, "smaller_is_better": False}
    assert checked(base, with_searcher(searcher)).search_plan().method == method


@pytest.mark.parametrize(
    ("base", "searcher", "name"),
    [
        (STEP, {**PBT, "steps_per_round": 5}, "pbt"),
        (LENGTH, {**PBT, "length_per_round": TEN}, "pbt"),
        (
            LENGTH,
            {"name": "adaptive_asha", "max_time": 10, "time_metric": "s", "max_trials": 9},
            "adaptive_asha by max_time",
        ),
    ],
)
def test_a_later_searcher_checks_but_does_not_plan(
    base: dict[str, Any], searcher: dict[str, Any], name: str
) -> None:
    config = checked(base, with_searcher(searcher))
    with pytest.raises(SearcherNotAvailable) as caught:
        config.search_plan()
    assert str(caught.value) == (
        f"searcher {name} is not available yet; available: single, random, grid, sync_halving, "
        "async_halving, adaptive, adaptive_simple, adaptive_asha, custom"
    )


@pytest.mark.parametrize("unit", ["batches", "records", "epochs", None])
def test_a_custom_search_plans_its_unit_and_nothing_else(unit: Unit | None) -> None:
    custom = with_searcher({"name": "custom", "unit": unit, "population": {"size": 9}})
    config = checked(LENGTH, {**custom, "records_per_epoch": 80})
    assert config.search_plan().method == CustomPlan(unit or "batches", LENGTH_ERA)
    assert config.trials is None


def test_a_custom_search_in_epochs_needs_to_know_what_an_epoch_is() -> None:
    custom = with_searcher({"name": "custom", "unit": "epochs"})
    assert refusals(LENGTH, {**custom, "records_per_epoch": 0}) == {
        "records_per_epoch": "is required, since searcher.unit counts epochs"
    }
