"""Asynchronous halving by promotion, with expected values computed by hand."""

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
    """Return a plan with the largest number of trials, all open at the start."""
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
        # 9000/9, 9000/3: lengths count from the trial's start.
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
        # max_concurrent_trials, but at most max_trials.
        (replace_trial_counts(THREE_RUNGS, 20, 4), 4),
        (replace_trial_counts(THREE_RUNGS, 3, 4), 3),
        # 3^2 = 9 lead to a single trial in the last of three rungs.
        (replace_trial_counts(THREE_RUNGS, 20, 0), 9),
        (replace_trial_counts(THREE_RUNGS, 5, 0), 5),
        # 1.5^1 = 1.5; 3^0 = 1.
        (replace_trial_counts(rung_plan(9, 2, 1.5), 20, 0), 1),
        (replace_trial_counts(rung_plan(9, 1, 3.0), 20, 0), 1),
        (replace_trial_counts(rung_plan(9, 100, 1e4), 20, 0), 20),
    ],
)
@pytest.mark.parametrize("rules", [STEP_ERA, LENGTH_ERA])
def test_number_of_first_trials(plan: HalvingPlan, rules: SearchRules, expected: int) -> None:
    search = DrivenSearch(replace(plan, rules=rules))
    assert search.first == EMPTY_ANSWER._replace(created=expected)
    assert {trial.length for trial in search.trials.values()} == {plan.lengths[0]}


def test_each_result_promotes_or_creates_a_trial() -> None:
    search = DrivenSearch(replace_trial_counts(THREE_RUNGS, 20, 9))
    # 1 and 2 results: trunc(1/3) = trunc(2/3) = 0.
    assert search.report_result(0, 5.0) == CREATING_ANSWER
    assert search.report_result(1, 6.0) == CREATING_ANSWER
    # n = 2: 3/3 = 1 is promoted, and the new result is the first of 4 5 6.
    assert search.report_result(2, 4.0) == training_answer(2, 3)
    # n = 3: still trunc(4/3) = 1, and the new result is the first: more than a third are promoted.
    assert search.report_result(3, 3.0) == training_answer(3, 3)
    # n = 4: still 1.
    assert search.report_result(4, 9.0) == CREATING_ANSWER
    # n = 5: 6/3 = 2; at index 1 of 3 4 5 6 9 9.5 is trial 2, which is promoted already.
    assert search.report_result(5, 9.5) == CREATING_ANSWER
    # n = 6 and 7: trunc(7/3) = trunc(8/3) = 2.
    assert search.report_result(6, 8.0) == CREATING_ANSWER
    assert search.report_result(7, 8.5) == CREATING_ANSWER
    # n = 8: 9/3 = 3; at index 2 of 3 4 5 6 ... is trial 0, which has waited.
    assert search.report_result(8, 10.0) == training_answer(0, 3)


def test_result_promotes_at_most_a_single_trial() -> None:
    search = DrivenSearch(replace_trial_counts(rung_plan(3, 2, 1.5), 20, 9))
    # n = 0 and 1: trunc(1/1.5) = 0, trunc(2/1.5) = 1.
    assert search.report_result(0, 2.0) == CREATING_ANSWER
    assert search.report_result(1, 1.0) == training_answer(1, 3)
    # n = 2: 3/1.5 = 2. The new result is the first, and trial 0 still waits at index 2.
    assert search.report_result(2, 0.0) == training_answer(2, 3)
    # n = 3: trunc(4/1.5) = 2, the new result at index 3.
    assert search.report_result(3, 9.0) == CREATING_ANSWER
    # n = 4: trunc(5/1.5) = 3: trial 0 at index 2.
    assert search.report_result(4, 9.0) == training_answer(0, 3)


def test_earlier_of_two_equal_results_is_better() -> None:
    search = DrivenSearch(TWO_RUNGS)
    search.report_result(0, 1.0)
    # n = 1: 2/2 = 1 is promoted; the new result is sorted after the equal result.
    assert search.report_result(1, 1.0) == training_answer(0, 2)


def test_larger_metric_is_better() -> None:
    search = DrivenSearch(replace(TWO_RUNGS, smaller_is_better=False))
    search.report_result(0, 1.0)
    # n = 1: 2/2 = 1 is promoted, the first of -2 -1.
    assert search.report_result(1, 2.0) == training_answer(1, 2)


def test_early_exit_is_worst_result_if_larger_is_better() -> None:
    search = DrivenSearch(replace_trial_counts(replace(TWO_RUNGS, smaller_is_better=False), 2))
    search.exit_trial(0)
    # n = 1: 2/2 = 1 is promoted.
    assert search.report_result(1, -1e300) == training_answer(1, 2)


def test_trial_in_last_rung_is_closed_and_new_trial_created() -> None:
    search = DrivenSearch(replace_trial_counts(TWO_RUNGS, 20, 2))
    search.report_results({0: 1.0, 1: 2.0})
    assert search.report_result(0, 1.0) == closing_answer(0, created=1)


def test_rungs_close_in_order_after_first_rung_is_full() -> None:
    search = DrivenSearch(replace_trial_counts(THREE_RUNGS, 9, 0))
    # 3/3 = 1 and 6/3 = 2 promote trials 0 and 1.
    assert search.report_results({0: 0.0, 1: 1.0, 2: 2.0}) == training_answer(0, 3)
    assert search.report_results({3: 3.0, 4: 4.0, 5: 5.0}) == training_answer(1, 3)
    assert search.report_results({6: 6.0, 7: 7.0}) == EMPTY_ANSWER
    # 9/3 = 3 promotes trial 2, and no trial trains in the first rung any more.
    assert search.report_result(8, 8.0) == training_answer(2, 3, closes=(3, 4, 5, 6, 7, 8))
    assert search.report_results({0: 0.0, 1: 1.0}) == EMPTY_ANSWER
    assert search.report_result(2, 2.0) == training_answer(0, 9, closes=(1, 2))
    assert search.report_result(0, 0.0) == closing_answer(0)


def test_rung_stays_open_while_lower_rung_has_outstanding_results() -> None:
    search = DrivenSearch(replace_trial_counts(rung_plan(4, 3, 2.0), 4))
    # 2/2 = 1 promotes trial 0, alone in the second rung.
    assert search.report_results({0: 0.0, 1: 1.0}) == training_answer(0, 2)
    assert search.report_results({2: 2.0, 0: 0.0}) == EMPTY_ANSWER
    # 4/2 = 2 promotes trial 1, and closes the first rung only.
    assert search.report_result(3, 3.0) == training_answer(1, 2, closes=(2, 3))
    # In the second rung, 2/2 = 1 is trial 0.
    assert search.report_result(1, 5.0) == training_answer(0, 4, closes=(1,))


def test_no_rung_closes_before_first_rung_is_full() -> None:
    search = DrivenSearch(replace_trial_counts(TWO_RUNGS, 4, 1))
    assert search.report_result(0, 1.0) == CREATING_ANSWER
    # 2/2 = 1: trial 0 is promoted. No trial trains in the first rung, but 2 trials are missing.
    assert search.report_result(1, 2.0) == training_answer(0, 2)
    assert search.report_result(0, 1.0) == closing_answer(0, created=1)


def test_early_exit_is_worst_result_and_is_not_closed() -> None:
    search = DrivenSearch(replace_trial_counts(rung_plan(3, 2, 3.0), 3))
    assert search.exit_trial(0) == EMPTY_ANSWER
    assert search.report_result(1, 1.0) == EMPTY_ANSWER
    # 3/3 = 1 promotes trial 1. Trial 0 ended already and is not closed.
    assert search.report_result(2, 2.0) == training_answer(1, 3, closes=(2,))


def test_early_exit_creates_trial_up_to_max_trials() -> None:
    search = DrivenSearch(replace_trial_counts(rung_plan(3, 2, 3.0), 4, 3))
    assert search.exit_trial(0) == CREATING_ANSWER
    assert search.exit_trial(1) == EMPTY_ANSWER


def test_promoted_exited_trial_is_worst_in_next_rung() -> None:
    search = DrivenSearch(replace_trial_counts(rung_plan(4, 3, 2.0), 4))
    assert search.exit_trial(0) == EMPTY_ANSWER
    # n = 1: 2/2 = 1 is promoted: trial 0, the earlier. The exited trial 0 is in the second rung at
    # once.
    assert search.exit_trial(1) == EMPTY_ANSWER
    # n = 2: trunc(3/2) = 1, the new result; n = 3: 4/2 = 2, the new result at index 1.
    assert search.report_result(2, 5.0) == training_answer(2, 2)
    assert search.report_result(3, 6.0) == training_answer(3, 2)
    # The second rung contains trial 0: 2/2 = 1 is promoted, the new result.
    assert search.report_result(2, 5.0) == training_answer(2, 4)
    # trunc(3/2) = 1, and the new result is at index 1 of 5 6 worst.
    assert search.report_result(3, 6.0) == closing_answer(3)
    assert search.report_result(2, 5.0) == closing_answer(2)


def test_trial_that_exits_while_waiting_keeps_result() -> None:
    search = DrivenSearch(replace_trial_counts(TWO_RUNGS, 4, 2))
    assert search.report_result(0, 1.0) == CREATING_ANSWER
    assert search.exit_trial(0) == EMPTY_ANSWER
    # n = 1: 2/2 = 1, which is trial 0. Trial 0 passes the last rung, too, so a trial is created.
    assert search.report_result(1, 2.0) == CREATING_ANSWER


@pytest.mark.parametrize("reason", [ExitReason.INVALID_HP, ExitReason.INIT_INVALID_HP])
def test_invalid_trial_is_replaced_at_once(reason: ExitReason) -> None:
    search = DrivenSearch(replace_trial_counts(rung_plan(3, 2, 3.0), 3))
    assert search.report_result(0, 1.0) == EMPTY_ANSWER
    assert search.exit_trial(1, reason) == CREATING_ANSWER
    # 4 trials were created, 1 is invalid: max_trials is 3.
    assert search.report_result(2, 2.0) == EMPTY_ANSWER
    assert search.report_result(3, 3.0) == training_answer(0, 3, closes=(2, 3))


def test_results_of_invalid_trial_are_removed() -> None:
    search = DrivenSearch(replace_trial_counts(TWO_RUNGS, 4))
    assert search.report_results({0: 1.0, 1: 2.0}) == training_answer(0, 2)
    assert search.exit_trial(0, ExitReason.INVALID_HP) == CREATING_ANSWER
    # n = 1: 2/2 = 1 is promoted, trial 1. With trial 0, the number would stay trunc(3/2) = 1.
    assert search.report_result(2, 3.0) == training_answer(1, 2)
    # n = 2: trunc(3/2) = 1 as before; n = 3: 4/2 = 2, trial 2, and the first rung is full.
    assert search.report_result(3, 4.0) == EMPTY_ANSWER
    assert search.report_result(4, 5.0) == training_answer(2, 2, closes=(3, 4))
    assert search.report_result(1, 2.0) == closing_answer(1)
    assert search.report_result(2, 3.0) == closing_answer(2)


def test_results_of_invalid_trial_are_removed_from_every_rung() -> None:
    search = DrivenSearch(replace_trial_counts(rung_plan(4, 3, 2.0), 4))
    # 2/2 = 1 promotes trial 0. The better trial 2 follows. Trial 0 waits in the second rung.
    assert search.report_results({0: 1.0, 1: 2.0, 2: 0.0}) == training_answer(2, 2)
    assert search.report_result(0, 1.0) == EMPTY_ANSWER
    assert search.exit_trial(0, ExitReason.INVALID_HP) == CREATING_ANSWER
    # The only result of the second rung: trunc(1/2) = 0 are promoted.
    assert search.report_result(2, 0.0) == EMPTY_ANSWER


def test_closed_trial_is_not_promoted_in_place_of_invalid_trial() -> None:
    search = DrivenSearch(replace_trial_counts(TWO_RUNGS, 2))
    assert search.report_results({0: 1.0, 1: 2.0}) == training_answer(0, 2, closes=(1,))
    assert search.exit_trial(0, ExitReason.INVALID_HP) == CREATING_ANSWER
    # n = 1: 2/2 = 1 could be promoted, but trial 1 is closed.
    assert search.report_result(2, 3.0) == closing_answer(2)


def test_invalid_trial_is_not_replaced_in_step_era() -> None:
    search = DrivenSearch(replace(replace_trial_counts(rung_plan(3, 2, 3.0), 3), rules=STEP_ERA))
    assert search.exit_trial(0, ExitReason.INVALID_HP) == EMPTY_ANSWER
    assert search.report_result(1, 1.0) == EMPTY_ANSWER
    # n = 2: 3/3 = 1.
    assert search.report_result(2, 2.0) == training_answer(1, 3, closes=(2,))


@pytest.mark.parametrize(
    ("last", "promoted", "left"), [(4.0, 0, (1, 2, 3)), (0.5, 3, (0, 1, 2)), (1.5, 0, (1, 2, 3))]
)
def test_result_counts_in_next_rung_of_same_length(
    last: float, promoted: int, left: tuple[int, ...]
) -> None:
    # 2/4 = 0.5, at least 1; 2/2 = 1; 2.
    search = DrivenSearch(replace_trial_counts(rung_plan(2, 3, 2.0), 4))
    # 2/2 = 1 promotes trial 0, which waits in the second rung with the result 1.0.
    assert search.report_results({0: 1.0, 1: 2.0, 2: 3.0}) == EMPTY_ANSWER
    # 4/2 = 2: trial 1 with 2.0, or the new result, enters the second rung, which promotes 2/2 = 1.
    assert search.report_result(3, last) == training_answer(promoted, 2, closes=left)


def test_promotion_without_training_creates_trial() -> None:
    search = DrivenSearch(replace_trial_counts(rung_plan(2, 3, 2.0), 4, 2))
    assert search.report_result(0, 1.0) == CREATING_ANSWER
    # 2/2 = 1: trial 0 enters the second rung, which has the same length.
    assert search.report_result(1, 2.0) == CREATING_ANSWER


def test_progress_counts_first_rung_then_ended_trials() -> None:
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


def test_progress_does_not_count_invalid_trials() -> None:
    search = DrivenSearch(replace_trial_counts(rung_plan(7, 1, 3.0), 10))
    search.report_results({trial: 1.0 for trial in range(10)})
    for trial in range(9):
        search.end_trial(trial)
    # max(10/12, 9/10).
    assert search.progress == pytest.approx(0.9)
    search.exit_trial(9, ExitReason.INVALID_HP)
    # The result is removed: 9/12. With 10 results again, 9 of 10 valid trials have ended.
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
def test_search_ends_if_all_trials_exit(
    rules: SearchRules, reason: ExitReason, failure: bool
) -> None:
    search = DrivenSearch(replace(replace_trial_counts(THREE_RUNGS, 9, 0), rules=rules))
    for trial in range(9):
        search.exit_trial(trial, reason)
    assert search.shutdowns == [Shutdown(failure=failure)]
