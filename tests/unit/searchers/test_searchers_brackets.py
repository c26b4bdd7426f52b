"""The division of an adaptive search's trials among brackets."""

from dataclasses import replace
from typing import Any

import pytest

from control_plane.searchers.era_rules import LENGTH_ERA, STEP_ERA, SearchRules
from control_plane.searchers.halving.asynchronous import HalvingPlan
from control_plane.searchers.halving.multi_bracket import MultiBracketPlan, rung_counts
from control_plane.searchers.halving.options import Mode
from control_plane.searchers.methods.adaptive_asha import (
    divide_concurrency,
    divide_trials,
    plan_adaptive_asha,
)
from tests.unit.config.samples import LENGTH, STEP, check_changed
from tests.unit.searchers.driven_search import DrivenSearch

WHOLE = HalvingPlan(1000, 5, 4.0, 1000, 16, True, LENGTH_ERA)


def brackets_of(plan: MultiBracketPlan) -> list[HalvingPlan]:
    brackets = [bracket for bracket in plan.brackets if isinstance(bracket, HalvingPlan)]
    assert len(brackets) == len(plan.brackets)
    return brackets


@pytest.mark.parametrize(
    ("rungs_max", "conservative", "standard", "aggressive"),
    [
        # Standard goes down to trunc((R - 1) / 2) + 1: 1, 1, 2, 2, 3, 3.
        (1, (1,), (1,), (1,)),
        (2, (2, 1), (2, 1), (2,)),
        (3, (3, 2, 1), (3, 2), (3,)),
        (4, (4, 3, 2, 1), (4, 3, 2), (4,)),
        (5, (5, 4, 3, 2, 1), (5, 4, 3), (5,)),
        (6, (6, 5, 4, 3, 2, 1), (6, 5, 4, 3), (6,)),
    ],
)
def test_mode_determines_brackets(
    rungs_max: int,
    conservative: tuple[int, ...],
    standard: tuple[int, ...],
    aggressive: tuple[int, ...],
) -> None:
    assert rung_counts("conservative", rungs_max) == conservative
    assert rung_counts("standard", rungs_max) == standard
    assert rung_counts("aggressive", rungs_max) == aggressive


@pytest.mark.parametrize(
    ("rungs", "divisor", "trials", "expected"),
    [
        # 9/3 + 3/2 + 1/1 = 5.5: 10.9, 5.45 and 3.6 make 10 + 5 + 3, and the first gets 2 more.
        ((3, 2, 1), 3.0, 20, (12, 5, 3)),
        # 64/4 + 16/3 + 4/2 = 23.3: 68.6, 22.9 and 8.6 make 68 + 22 + 8, and 2 more.
        ((4, 3, 2), 4.0, 100, (70, 22, 8)),
        # 4/3 + 2/2 + 1/1 = 3.3: 0.4, 0.3 and 0.3, but at least 1 each: more than requested.
        ((3, 2, 1), 2.0, 1, (1, 1, 1)),
        # 8/4 + 1/1 = 3: 2.67 and 1.3.
        ((4, 1), 2.0, 4, (3, 1)),
        # 2/2 each: 3.3 each make 9.
        ((2, 2, 2), 2.0, 10, (4, 3, 3)),
        ((5,), 4.0, 7, (7,)),
    ],
)
def test_trials_are_divided_by_weight_and_remainder_goes_to_first_bracket(
    rungs: tuple[int, ...], divisor: float, trials: int, expected: tuple[int, ...]
) -> None:
    assert divide_trials(rungs, divisor, trials) == expected


@pytest.mark.parametrize("rules", [STEP_ERA, LENGTH_ERA])
@pytest.mark.parametrize(
    ("concurrent", "divisor", "trials", "expected"),
    [
        # 11 = 4 + 4 + 3.
        (11, 3.0, (12, 5, 3), (4, 4, 3)),
        (6, 3.0, (12, 5, 3), (2, 2, 2)),
        (3, 3.0, (12, 5, 3), (1, 1, 1)),
        # With 0 each bracket opens as many as the last bracket has trials, but at least trunc(D).
        (0, 3.0, (12, 5, 8), (8, 8, 8)),
        (0, 4.5, (12, 5, 3), (4, 4, 4)),
        (0, 2.0, (7,), (7,)),
    ],
)
def test_concurrency_is_divided_evenly(
    rules: SearchRules,
    concurrent: int,
    divisor: float,
    trials: tuple[int, ...],
    expected: tuple[int, ...],
) -> None:
    whole = replace(WHOLE, max_concurrent_trials=concurrent, divisor=divisor, rules=rules)
    assert divide_concurrency(trials, whole) == expected


def test_concurrency_below_number_of_brackets_is_raised_only_in_length_era() -> None:
    two = replace(WHOLE, max_concurrent_trials=2)
    assert divide_concurrency((12, 5, 3), two) == (1, 1, 1)
    assert divide_concurrency((12, 5, 3), replace(two, rules=STEP_ERA)) == (1, 1, 0)


def test_bracket_with_concurrency_0_uses_default() -> None:
    whole = HalvingPlan(9, 3, 3.0, 20, 2, True, STEP_ERA)
    brackets = brackets_of(plan_adaptive_asha(whole, "conservative"))
    # Of 3, 2 and 1 rungs; 12, 5 and 3 trials; 1, 1 and 0 open, which is 3^0 = 1.
    assert [bracket.first_trials for bracket in brackets] == [1, 1, 1]
    # Of 3 and 2 rungs with 1 open in all: 3^1 = 3 in the second.
    brackets = brackets_of(plan_adaptive_asha(replace(whole, max_concurrent_trials=1), "standard"))
    assert [bracket.first_trials for bracket in brackets] == [1, 3]


@pytest.mark.parametrize(
    ("length", "divisor", "trials", "rungs_max", "expected"),
    [
        (1000, 4.0, 1000, 5, 5),
        (1000, 4.0, 1000, 3, 3),
        # ln 9 / ln 3 = 2.
        (9, 3.0, 1000, 9, 3),
        # ln 8 / ln 3 = 1.9.
        (1000, 3.0, 8, 9, 2),
        # 3^5 = 243, though the quotient of the logarithms is 4.999999999999999: six rungs, at
        # 1, 3, 9, 27, 81 and 243.
        (243, 3.0, 1000, 9, 6),
        (1000, 3.0, 243, 9, 6),
        (242, 3.0, 1000, 9, 5),
        (244, 3.0, 1000, 9, 6),
        # 10^3 = 1000: ln 1000 / ln 10 = 2.9999999999999996.
        (1000, 10.0, 10_000, 9, 4),
        # 2.5^2 = 6.25.
        (6, 2.5, 1000, 9, 2),
        (7, 2.5, 1000, 9, 3),
        (1, 4.0, 1000, 5, 1),
        (1000, 4.0, 1, 5, 1),
    ],
)
def test_lengths_and_trials_limit_rungs(
    length: int, divisor: float, trials: int, rungs_max: int, expected: int
) -> None:
    whole = replace(
        WHOLE, max_length=length, num_rungs=rungs_max, divisor=divisor, max_trials=trials
    )
    brackets = brackets_of(plan_adaptive_asha(whole, "aggressive"))
    assert [bracket.num_rungs for bracket in brackets] == [expected]


def test_listed_brackets_are_sorted_and_not_limited() -> None:
    whole = replace(WHOLE, max_length=1, num_rungs=1, max_trials=20, divisor=3.0)
    brackets = brackets_of(plan_adaptive_asha(whole, "standard", (1, 3, 2)))
    assert [bracket.num_rungs for bracket in brackets] == [3, 2, 1]
    assert [bracket.max_trials for bracket in brackets] == [12, 5, 3]


SPREAD: dict[str, Any] = {
    "name": "adaptive_asha",
    "mode": "conservative",
    "divisor": 3,
    "max_rungs": 3,
    "max_trials": 20,
    "max_concurrent_trials": 11,
}


@pytest.mark.parametrize("mode", ["aggressive", "standard", "conservative"])
def test_both_eras_divide_trials_equally(mode: Mode) -> None:
    searcher = {**SPREAD, "mode": mode, "metric": "loss", "smaller_is_better": False}
    step = check_changed(STEP, {"searcher": {**searcher, "target_trial_steps": 9}}).search_plan()
    length = check_changed(
        LENGTH, {"searcher": {**searcher, "max_length": {"batches": 9}}}
    ).search_plan()
    whole = HalvingPlan(9, 3, 3.0, 20, 11, False, STEP_ERA)
    assert step.method == plan_adaptive_asha(whole, mode)
    assert length.method == plan_adaptive_asha(replace(whole, rules=LENGTH_ERA), mode)


@pytest.mark.parametrize("stops", [False, True])
def test_configured_adaptive_search_runs_brackets_of_3_2_and_1_rungs(stops: bool) -> None:
    searcher = {**SPREAD, "metric": "loss", "max_length": {"batches": 9}, "stop_once": stops}
    plan = check_changed(LENGTH, {"searcher": searcher}).search_plan().method
    assert isinstance(plan, MultiBracketPlan)
    brackets = brackets_of(plan)
    assert {bracket.stops for bracket in brackets} == {stops}
    assert [bracket.lengths for bracket in brackets] == [(1, 3, 9), (3, 9), (9,)]
    search = DrivenSearch(plan)
    # 4, 4 and 3 of the brackets.
    assert [trial.length for trial in search.trials.values()] == [1] * 4 + [3] * 4 + [9] * 3


def test_configured_halving_uses_unit_of_length() -> None:
    halved = {"name": "async_halving", "metric": "loss", "max_trials": 20, "num_rungs": 3}
    step = check_changed(STEP, {"searcher": {**halved, "target_trial_steps": 9}}).search_plan()
    assert step.method == HalvingPlan(9, 3, 4.0, 20, 0, True, STEP_ERA)
    stopped = {
        "searcher": {**halved, "divisor": 3, "max_length": {"epochs": 9}, "stop_once": True},
        "records_per_epoch": 100,
        "hyperparameters.global_batch_size": 10,
    }
    length = check_changed(LENGTH, stopped).search_plan()
    assert length.method == HalvingPlan(9, 3, 3.0, 20, 16, True, LENGTH_ERA, stops=True)
