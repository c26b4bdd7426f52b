import pytest

from control_plane.searchers.era_rules import LENGTH_ERA, STEP_ERA
from control_plane.searchers.halving.multi_bracket import MultiBracketPlan, rung_counts
from control_plane.searchers.halving.options import Mode
from control_plane.searchers.halving.synchronous import RungLadder, SyncHalvingPlan
from control_plane.searchers.methods.adaptive import plan_adaptive
from control_plane.searchers.methods.adaptive_simple import plan_adaptive_simple
from tests.unit.searchers.driven_search import DrivenSearch, closing_answer, training_answer

LADDER = RungLadder(9, 3.0, smaller_is_better=False, rules=STEP_ERA)


def rung_trials(plan: MultiBracketPlan) -> list[tuple[int, ...]]:
    brackets = (one for one in plan.brackets if isinstance(one, SyncHalvingPlan))
    return [bracket.trials for bracket in brackets]


@pytest.mark.parametrize(
    ("mode", "rungs_max", "rungs"),
    [
        ("conservative", 5, (5, 4, 3, 2, 1)),
        # from (5 - 1)/2 + 1 = 3, and from 3/2 + 1 = 2.5 rounded down
        ("standard", 5, (5, 4, 3)),
        ("standard", 4, (4, 3, 2)),
        ("standard", 1, (1,)),
        ("aggressive", 5, (5,)),
    ],
)
def test_mode_determines_rungs_of_brackets(
    mode: Mode, rungs_max: int, rungs: tuple[int, ...]
) -> None:
    assert rung_counts(mode, rungs_max) == rungs


def test_listed_rungs_are_sorted_in_decreasing_order() -> None:
    assert rung_counts("aggressive", 5, (2, 7, 2)) == (7, 2, 2)


def test_adaptive_divides_budget_evenly() -> None:
    # 103/2 = 51 for each bracket.
    # 3 rungs: c = 9, 3, 1; lengths 1, 3, 9; E = 1*9 + 2*3 + 6*1 = 21; 51/21 = 2.43: 21.9, 7.3, 2.4
    # 2 rungs: c = 3, 1; lengths 3, 9; E = 3*3 + 6*1 = 15; 51/15 = 3.4: 10.2, 3.4
    assert plan_adaptive(LADDER, 103, (3, 2)) == MultiBracketPlan(
        (
            SyncHalvingPlan((1, 3, 9), (21, 7, 2), False, STEP_ERA),
            SyncHalvingPlan((3, 9), (10, 3), False, STEP_ERA),
        )
    )


def test_bracket_with_too_small_budget_has_no_trials() -> None:
    # 12/4 = 3 for each: 3/21 = 0.14: 9 * 0.14 = 1.29; 3/15 = 0.2: 3 * 0.2 = 0.6;
    # one rung of 9: 3/9 = 0.33
    plan = plan_adaptive(LADDER, 12, (3, 2, 1, 1))
    assert rung_trials(plan) == [(1, 1, 1), (0, 1), (0,), (0,)]
    search = DrivenSearch(plan)
    assert list(search.trials) == [0]
    # alone in its rungs, the trial continues from each
    assert search.report_result(0, 0.5) == training_answer(0, 3)
    assert search.report_result(0, 0.5) == training_answer(0, 9)
    assert search.report_result(0, 0.5) == closing_answer(0)
    search.end_trial(0)
    assert [shutdown.failure for shutdown in search.shutdowns] == [False]


def test_adaptive_simple_gives_remainder_to_first_brackets() -> None:
    # 11 in 3 brackets: 4, 4, 3. Then 4/3 = 1.3 and 4/9 = 0.4, at least 1.
    plan = plan_adaptive_simple(LADDER, 11, (3, 2, 1))
    assert plan == MultiBracketPlan(
        (
            SyncHalvingPlan((1, 3, 9), (4, 1, 1), False, STEP_ERA),
            SyncHalvingPlan((3, 9), (4, 1), False, STEP_ERA),
            SyncHalvingPlan((9,), (3,), False, STEP_ERA),
        )
    )
    assert (plan.max_length, plan.rules) == (9, STEP_ERA)


def test_adaptive_simple_gives_each_bracket_a_trial_beyond_max_trials() -> None:
    assert rung_trials(plan_adaptive_simple(LADDER, 1, (3, 2, 1))) == [(1, 1, 1), (1, 1), (1,)]


def test_trials_of_different_brackets_are_not_compared() -> None:
    # 5 trials: 0 to 2 in the first bracket, 3 and 4 in the second; the greater metric is better
    search = DrivenSearch(plan_adaptive_simple(RungLadder(9, 3.0, False, LENGTH_ERA), 5, (2, 2)))
    assert {trial: now.length for trial, now in search.trials.items()} == dict.fromkeys(range(5), 3)
    search.report_results({0: 0.1, 1: 0.2})
    assert search.report_results({3: 0.8, 4: 0.9}) == training_answer(4, 9, closes=(3,))
    assert search.report_result(2, 0.0) == training_answer(1, 9, closes=(0, 2))
