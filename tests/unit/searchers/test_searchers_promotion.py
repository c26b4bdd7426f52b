"""Asynchronous halving by promotion, on rungs that were worked out by hand."""

from dataclasses import replace

import pytest

from control_plane.searchers.era_rules import LENGTH_ERA, STEP_ERA, SearchRules
from control_plane.searchers.halving.asynchronous import HalvingPlan
from control_plane.searchers.method import ExitReason, Shutdown
from tests.unit.searchers.driven_search import (
    CREATING_ANSWER,
    EMPTY_ANSWER,
    DrivenSearch,
    closing_answer,
    training_answer,
)


def rung_plan(length: int, count: int, divisor: float) -> HalvingPlan:
    """For as many trials as may be, all of them open at the start."""
    return HalvingPlan(length, count, divisor, 20, 20, True, LENGTH_ERA)


def replace_trial_counts(
    plan: HalvingPlan, most: int, concurrent: int | None = None
) -> HalvingPlan:
    first = most if concurrent is None else concurrent
    return replace(plan, max_trials=most, max_concurrent_trials=first)


# 9/9, 9/3, 9/1 and 2/2, 2/1: see the first test.
THREE_RUNGS = rung_plan(9, 3, 3.0)
TWO_RUNGS = rung_plan(2, 2, 2.0)


@pytest.mark.parametrize(
    ("plan", "expected"),
    [
        (rung_plan(9, 3, 3.0), (1, 3, 9)),
        (rung_plan(2, 2, 2.0), (1, 2)),
        # 9000/9, 9000/3: absolute lengths, and no sums of them.
        (rung_plan(9000, 3, 3.0), (1000, 3000, 9000)),
        # 100/256 = 0.4, at least 1; 100/64 = 1.6; 100/16 = 6.3; 100/4.
        (rung_plan(100, 5, 4.0), (1, 1, 6, 25, 100)),
        # 10/2.25 = 4.4; 10/1.5 = 6.7.
        (rung_plan(10, 3, 1.5), (4, 6, 10)),
        (rung_plan(7, 1, 4.0), (7,)),
        # 1e4^98 and more are beyond any float.
        (rung_plan(50_000, 100, 1e4), (1,) * 98 + (5, 50_000)),
    ],
)
def test_rungs_are_at_powers_of_the_divisor(plan: HalvingPlan, expected: tuple[int, ...]) -> None:
    assert plan.lengths == expected


@pytest.mark.parametrize(
    ("plan", "expected"),
    [
        # As many as may be open, but no more than there are.
        (replace_trial_counts(THREE_RUNGS, 20, 4), 4),
        (replace_trial_counts(THREE_RUNGS, 3, 4), 3),
        # 3^2 = 9 lead to one trial in the last of three rungs.
        (replace_trial_counts(THREE_RUNGS, 20, 0), 9),
        (replace_trial_counts(THREE_RUNGS, 5, 0), 5),
        # 1.5^1 = 1.5; 3^0 = 1.
        (replace_trial_counts(rung_plan(9, 2, 1.5), 20, 0), 1),
        (replace_trial_counts(rung_plan(9, 1, 3.0), 20, 0), 1),
        (replace_trial_counts(rung_plan(9, 100, 1e4), 20, 0), 20),
    ],
)
@pytest.mark.parametrize("rules", [STEP_ERA, LENGTH_ERA])
def test_so_many_trials_are_created_at_the_start(
    plan: HalvingPlan, rules: SearchRules, expected: int
) -> None:
    search = DrivenSearch(replace(plan, rules=rules))
    assert search.first == EMPTY_ANSWER._replace(created=expected)
    assert {trial.length for trial in search.trials.values()} == {plan.lengths[0]}


def test_each_result_promotes_the_newcomer_or_one_older_trial_or_creates_one() -> None:
    search = DrivenSearch(replace_trial_counts(THREE_RUNGS, 20, 9))
    # Among 1 and 2 results nobody is in the best third.
    assert search.report_result(0, 5.0) == CREATING_ANSWER
    assert search.report_result(1, 6.0) == CREATING_ANSWER
    # n = 2: 3/3 = 1 may go on, and the newcomer is the first of 4 5 6.
    assert search.report_result(2, 4.0) == training_answer(2, 3)
    # n = 3: still trunc(4/3) = 1, and the newcomer is that one: more than a third go on.
    assert search.report_result(3, 3.0) == training_answer(3, 3)
    # n = 4: still 1.
    assert search.report_result(4, 9.0) == CREATING_ANSWER
    # n = 5: 6/3 = 2; at index 1 of 3 4 5 6 9 9.5 is trial 2, which went on already.
    assert search.report_result(5, 9.5) == CREATING_ANSWER
    # n = 6 and 7: trunc(7/3) = trunc(8/3) = 2.
    assert search.report_result(6, 8.0) == CREATING_ANSWER
    assert search.report_result(7, 8.5) == CREATING_ANSWER
    # n = 8: 9/3 = 3; at index 2 of 3 4 5 6 ... is trial 0, which waited until now.
    assert search.report_result(8, 10.0) == training_answer(0, 3)


def test_one_result_promotes_one_trial_at_most() -> None:
    search = DrivenSearch(replace_trial_counts(rung_plan(3, 2, 1.5), 20, 9))
    # n = 0 and 1: trunc(1/1.5) = 0, trunc(2/1.5) = 1.
    assert search.report_result(0, 2.0) == CREATING_ANSWER
    assert search.report_result(1, 1.0) == training_answer(1, 3)
    # n = 2: 3/1.5 = 2. The newcomer takes the first place, and trial 0 still waits at index 2.
    assert search.report_result(2, 0.0) == training_answer(2, 3)
    # n = 3: trunc(4/1.5) = 2, the newcomer at index 3.
    assert search.report_result(3, 9.0) == CREATING_ANSWER
    # n = 4: trunc(5/1.5) = 3: trial 0 at index 2.
    assert search.report_result(4, 9.0) == training_answer(0, 3)


def test_the_earlier_of_two_equal_results_is_better() -> None:
    search = DrivenSearch(TWO_RUNGS)
    search.report_result(0, 1.0)
    # n = 1: 2/2 = 1 may go on; the newcomer is put after its equal.
    assert search.report_result(1, 1.0) == training_answer(0, 2)


def test_a_larger_metric_is_better_by_its_negative() -> None:
    search = DrivenSearch(replace(TWO_RUNGS, smaller_is_better=False))
    search.report_result(0, 1.0)
    # n = 1: 2/2 = 1 may go on, the first of -2 -1.
    assert search.report_result(1, 2.0) == training_answer(1, 2)


def test_an_early_exit_is_worst_of_all_where_larger_is_better_too() -> None:
    search = DrivenSearch(replace_trial_counts(replace(TWO_RUNGS, smaller_is_better=False), 2))
    search.exit_trial(0)
    # n = 1: 2/2 = 1 may go on.
    assert search.report_result(1, -1e300) == training_answer(1, 2)


def test_a_trial_in_the_last_rung_is_closed_and_another_one_created() -> None:
    search = DrivenSearch(replace_trial_counts(TWO_RUNGS, 20, 2))
    search.report_results({0: 1.0, 1: 2.0})
    assert search.report_result(0, 1.0) == closing_answer(0, created=1)


def test_rungs_close_from_the_bottom_once_every_trial_is_in_the_first() -> None:
    search = DrivenSearch(replace_trial_counts(THREE_RUNGS, 9, 0))
    # 3/3 = 1 and 6/3 = 2 promote trials 0 and 1.
    assert search.report_results({0: 0.0, 1: 1.0, 2: 2.0}) == training_answer(0, 3)
    assert search.report_results({3: 3.0, 4: 4.0, 5: 5.0}) == training_answer(1, 3)
    assert search.report_results({6: 6.0, 7: 7.0}) == EMPTY_ANSWER
    # 9/3 = 3 promotes trial 2, and nobody else is left to train in the first rung.
    assert search.report_result(8, 8.0) == training_answer(2, 3, closes=(3, 4, 5, 6, 7, 8))
    assert search.report_results({0: 0.0, 1: 1.0}) == EMPTY_ANSWER
    assert search.report_result(2, 2.0) == training_answer(0, 9, closes=(1, 2))
    assert search.report_result(0, 0.0) == closing_answer(0)


def test_a_rung_that_waits_for_nothing_stays_open_while_one_below_it_waits() -> None:
    search = DrivenSearch(replace_trial_counts(rung_plan(4, 3, 2.0), 4))
    # 2/2 = 1 promotes trial 0, alone in the second rung.
    assert search.report_results({0: 0.0, 1: 1.0}) == training_answer(0, 2)
    assert search.report_results({2: 2.0, 0: 0.0}) == EMPTY_ANSWER
    # 4/2 = 2 promotes trial 1, and closes the first rung only.
    assert search.report_result(3, 3.0) == training_answer(1, 2, closes=(2, 3))
    # The second rung's 2/2 = 1 is trial 0.
    assert search.report_result(1, 5.0) == training_answer(0, 4, closes=(1,))


def test_no_rung_closes_before_every_trial_is_in_the_first() -> None:
    search = DrivenSearch(replace_trial_counts(TWO_RUNGS, 4, 1))
    assert search.report_result(0, 1.0) == CREATING_ANSWER
    # 2/2 = 1: trial 0 trains on and nobody trains in the first rung, but 2 trials are to come.
    assert search.report_result(1, 2.0) == training_answer(0, 2)
    assert search.report_result(0, 1.0) == closing_answer(0, created=1)


def test_an_early_exit_counts_as_the_worst_result_and_is_not_closed() -> None:
    search = DrivenSearch(replace_trial_counts(rung_plan(3, 2, 3.0), 3))
    assert search.exit_trial(0) == EMPTY_ANSWER
    assert search.report_result(1, 1.0) == EMPTY_ANSWER
    # 3/3 = 1 promotes trial 1; trial 0 ended by itself.
    assert search.report_result(2, 2.0) == training_answer(1, 3, closes=(2,))


def test_an_early_exit_creates_a_trial_while_there_are_any_left() -> None:
    search = DrivenSearch(replace_trial_counts(rung_plan(3, 2, 3.0), 4, 3))
    assert search.exit_trial(0) == CREATING_ANSWER
    assert search.exit_trial(1) == EMPTY_ANSWER


def test_an_exited_trial_that_is_promoted_passes_a_rung_as_its_worst() -> None:
    search = DrivenSearch(replace_trial_counts(rung_plan(4, 3, 2.0), 4))
    assert search.exit_trial(0) == EMPTY_ANSWER
    # n = 1: 2/2 = 1 may go on, trial 0 by being earlier: it is in the second rung at once.
    assert search.exit_trial(1) == EMPTY_ANSWER
    # n = 2: trunc(3/2) = 1, the newcomer; n = 3: 4/2 = 2, the newcomer at index 1.
    assert search.report_result(2, 5.0) == training_answer(2, 2)
    assert search.report_result(3, 6.0) == training_answer(3, 2)
    # The second rung holds trial 0: 2/2 = 1 may go on, the newcomer.
    assert search.report_result(2, 5.0) == training_answer(2, 4)
    # trunc(3/2) = 1, and the newcomer is at index 1 of 5 6 worst.
    assert search.report_result(3, 6.0) == closing_answer(3)
    assert search.report_result(2, 5.0) == closing_answer(2)


def test_a_trial_that_exits_while_it_waits_keeps_its_result() -> None:
    search = DrivenSearch(replace_trial_counts(TWO_RUNGS, 4, 2))
    assert search.report_result(0, 1.0) == CREATING_ANSWER
    assert search.exit_trial(0) == EMPTY_ANSWER
    # n = 1: 2/2 = 1, which is trial 0. It passes the last rung too: a new one trains instead.
    assert search.report_result(1, 2.0) == CREATING_ANSWER


@pytest.mark.parametrize("reason", [ExitReason.INVALID_HP, ExitReason.INIT_INVALID_HP])
def test_a_trial_with_invalid_hyperparameters_is_replaced_at_once(reason: ExitReason) -> None:
    search = DrivenSearch(replace_trial_counts(rung_plan(3, 2, 3.0), 3))
    assert search.report_result(0, 1.0) == EMPTY_ANSWER
    assert search.exit_trial(1, reason) == CREATING_ANSWER
    # 4 were created, 1 of them invalid: no more than 3 are wanted.
    assert search.report_result(2, 2.0) == EMPTY_ANSWER
    assert search.report_result(3, 3.0) == training_answer(0, 3, closes=(2, 3))


def test_results_of_an_invalid_trial_count_no_more() -> None:
    search = DrivenSearch(replace_trial_counts(TWO_RUNGS, 4))
    assert search.report_results({0: 1.0, 1: 2.0}) == training_answer(0, 2)
    assert search.exit_trial(0, ExitReason.INVALID_HP) == CREATING_ANSWER
    # n = 1: 2/2 = 1 may go on, trial 1; with trial 0 it would be trunc(3/2) = 1 as before.
    assert search.report_result(2, 3.0) == training_answer(1, 2)
    # n = 2: trunc(3/2) = 1 as before; n = 3: 4/2 = 2, trial 2, and all four are there.
    assert search.report_result(3, 4.0) == EMPTY_ANSWER
    assert search.report_result(4, 5.0) == training_answer(2, 2, closes=(3, 4))
    assert search.report_result(1, 2.0) == closing_answer(1)
    assert search.report_result(2, 3.0) == closing_answer(2)


def test_an_invalid_trial_leaves_every_rung_it_came_through() -> None:
    search = DrivenSearch(replace_trial_counts(rung_plan(4, 3, 2.0), 4))
    # 2/2 = 1 promotes trial 0; trial 2 comes before it. Trial 0 waits in the second rung.
    assert search.report_results({0: 1.0, 1: 2.0, 2: 0.0}) == training_answer(2, 2)
    assert search.report_result(0, 1.0) == EMPTY_ANSWER
    assert search.exit_trial(0, ExitReason.INVALID_HP) == CREATING_ANSWER
    # The first and only result of the second rung: trunc(1/2) = 0 goes on.
    assert search.report_result(2, 0.0) == EMPTY_ANSWER


def test_a_closed_trial_is_not_promoted_in_place_of_an_invalid_one() -> None:
    search = DrivenSearch(replace_trial_counts(TWO_RUNGS, 2))
    assert search.report_results({0: 1.0, 1: 2.0}) == training_answer(0, 2, closes=(1,))
    assert search.exit_trial(0, ExitReason.INVALID_HP) == CREATING_ANSWER
    # n = 1: 2/2 = 1 may go on, and trial 1 was told to end.
    assert search.report_result(2, 3.0) == closing_answer(2)


def test_invalid_hyperparameters_are_any_early_exit_in_the_step_era() -> None:
    search = DrivenSearch(replace(replace_trial_counts(rung_plan(3, 2, 3.0), 3), rules=STEP_ERA))
    assert search.exit_trial(0, ExitReason.INVALID_HP) == EMPTY_ANSWER
    assert search.report_result(1, 1.0) == EMPTY_ANSWER
    # n = 2: 3/3 = 1.
    assert search.report_result(2, 2.0) == training_answer(1, 3, closes=(2,))


@pytest.mark.parametrize(
    ("last", "promoted", "left"), [(4.0, 0, (1, 2, 3)), (0.5, 3, (0, 1, 2)), (1.5, 0, (1, 2, 3))]
)
def test_a_result_counts_in_the_next_rung_too_where_that_is_no_longer(
    last: float, promoted: int, left: tuple[int, ...]
) -> None:
    # 2/4 = 0.5, at least 1; 2/2 = 1; 2.
    search = DrivenSearch(replace_trial_counts(rung_plan(2, 3, 2.0), 4))
    # 2/2 = 1 promotes trial 0, which is in the second rung with its 1.0 and waits there.
    assert search.report_results({0: 1.0, 1: 2.0, 2: 3.0}) == EMPTY_ANSWER
    # 4/2 = 2: trial 1 with 2.0, or the newcomer, comes to the second rung, of which 2/2 = 1.
    assert search.report_result(3, last) == training_answer(promoted, 2, closes=left)


def test_a_pass_that_trains_nobody_creates_a_trial() -> None:
    search = DrivenSearch(replace_trial_counts(rung_plan(2, 3, 2.0), 4, 2))
    assert search.report_result(0, 1.0) == CREATING_ANSWER
    # 2/2 = 1: trial 0 goes on to the second rung, which it passed at this length.
    assert search.report_result(1, 2.0) == CREATING_ANSWER


def test_progress_is_the_first_rung_and_then_the_trials_that_ended() -> None:
    search = DrivenSearch(replace_trial_counts(rung_plan(3, 2, 3.0), 3))
    assert search.progress == 0.0
    search.report_result(0, 1.0)
    # 1 / (1.2 * 3).
    assert search.progress == pytest.approx(1 / 3.6)
    search.report_results({1: 2.0, 2: 3.0})
    # 3 / 3.6 = 0.83 is more than 0/3, 1/3 and 2/3.
    assert search.progress == pytest.approx(3 / 3.6)
    search.end_trial(1)
    search.end_trial(2)
    assert search.progress == pytest.approx(3 / 3.6)
    search.report_result(0, 1.0)
    search.end_trial(0)
    assert search.progress == 1.0
    assert search.shutdowns == [Shutdown(failure=False)]


def test_progress_counts_no_invalid_trial() -> None:
    search = DrivenSearch(replace_trial_counts(rung_plan(7, 1, 3.0), 10))
    search.report_results({trial: 1.0 for trial in range(10)})
    for trial in range(9):
        search.end_trial(trial)
    # max(10/12, 9/10).
    assert search.progress == pytest.approx(0.9)
    search.exit_trial(9, ExitReason.INVALID_HP)
    # Its result is gone: 9/12, and 9 valid trials of 10 ended once there are 10 results again.
    assert search.progress == pytest.approx(0.75)
    search.report_result(10, 1.0)
    assert search.progress == pytest.approx(0.9)


@pytest.mark.parametrize(
    ("rules", "reason", "failure"),
    [
        (STEP_ERA, ExitReason.USER_REQUESTED_STOP, True),
        (LENGTH_ERA, ExitReason.USER_REQUESTED_STOP, False),
        (LENGTH_ERA, ExitReason.ERRORED, True),
    ],
)
def test_a_search_whose_trials_all_exit_is_over(
    rules: SearchRules, reason: ExitReason, failure: bool
) -> None:
    search = DrivenSearch(replace(replace_trial_counts(THREE_RUNGS, 9, 0), rules=rules))
    for trial in range(9):
        search.exit_trial(trial, reason)
    assert search.shutdowns == [Shutdown(failure=failure)]
