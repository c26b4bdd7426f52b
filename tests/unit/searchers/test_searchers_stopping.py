"""Asynchronous halving by stopping, on rungs that were worked out by hand."""

from dataclasses import replace

import pytest

from control_plane.searchers.era_rules import LENGTH_ERA
from control_plane.searchers.halving.asynchronous import HalvingPlan
from control_plane.searchers.method import ExitReason, Shutdown
from tests.unit.searchers.driven_search import (
    CREATING_ANSWER,
    DrivenSearch,
    closing_answer,
    training_answer,
)


def stopping_plan(length: int, count: int, divisor: float, concurrent: int = 9) -> HalvingPlan:
    return HalvingPlan(length, count, divisor, 20, concurrent, True, LENGTH_ERA, stops=True)


# 9/9, 9/3, 9/1.
THREE_RUNGS = stopping_plan(9, 3, 3.0)
# 2/2, 2/1.
TWO_RUNGS = stopping_plan(2, 2, 2.0)


def test_a_result_lets_its_trial_go_on_or_closes_it() -> None:
    search = DrivenSearch(THREE_RUNGS)
    # n = 0: trunc(1/3) = 0, but at least 1 goes on.
    assert search.report_result(0, 10.0) == training_answer(0, 3)
    # n = 1 to 4: max(trunc(2/3), 1) to trunc(5/3) = 1, and none of them is the first.
    for trial, metric in enumerate((20.0, 30.0, 40.0, 50.0), start=1):
        assert search.report_result(trial, metric) == closing_answer(trial, created=1)
    # n = 5: 6/3 = 2, and the newcomer is at index 1 of 10 15 20 ...
    assert search.report_result(5, 15.0) == training_answer(5, 3)
    # n = 6: trunc(7/3) = 2, index 2 of 10 15 17 20 ...
    assert search.report_result(6, 17.0) == closing_answer(6, created=1)


def test_the_first_trial_of_a_rung_goes_on_whatever_its_result() -> None:
    search = DrivenSearch(THREE_RUNGS)
    assert search.report_result(0, 1e300) == training_answer(0, 3)
    assert search.report_result(0, 1e300) == training_answer(0, 9)


def test_a_trial_in_the_last_rung_is_closed_and_another_one_created() -> None:
    search = DrivenSearch(TWO_RUNGS)
    search.report_result(0, 1.0)
    assert search.report_result(0, 1.0) == closing_answer(0, created=1)


def test_the_later_of_two_equal_results_is_better() -> None:
    search = DrivenSearch(TWO_RUNGS)
    search.report_result(0, 1.0)
    # n = 1: 2/2 = 1 goes on, and the newcomer is put before its equal.
    assert search.report_result(1, 1.0) == training_answer(1, 2)


def test_a_larger_metric_is_better_by_its_negative() -> None:
    search = DrivenSearch(replace(TWO_RUNGS, smaller_is_better=False))
    search.report_result(0, 1.0)
    # n = 1: 2/2 = 1 goes on; then trunc(3/2) = 1, and -2 -1.5 -1 has the newcomer at index 1.
    assert search.report_result(1, 2.0) == training_answer(1, 2)
    assert search.report_result(2, 1.5) == closing_answer(2, created=1)


def test_trials_are_created_until_there_are_max_trials() -> None:
    search = DrivenSearch(replace(TWO_RUNGS, max_trials=3, max_concurrent_trials=2))
    assert search.report_result(0, 1.0) == training_answer(0, 2)
    assert search.report_result(1, 2.0) == closing_answer(1, created=1)
    assert search.report_result(2, 3.0) == closing_answer(2)
    assert search.report_result(0, 1.0) == closing_answer(0)


def test_an_early_exit_is_compared_with_and_goes_on_in_no_rung() -> None:
    search = DrivenSearch(TWO_RUNGS)
    # The first of its rung, but gone.
    assert search.exit_trial(0) == CREATING_ANSWER
    assert search.exit_trial(1) == CREATING_ANSWER
    # n = 2: trunc(3/2) = 1, the newcomer; n = 3: 4/2 = 2, index 1 of 1 2 worst worst. Of two
    # results alone, one would go on.
    assert search.report_result(2, 1.0) == training_answer(2, 2)
    assert search.report_result(3, 2.0) == training_answer(3, 2)


def test_an_early_exit_where_larger_is_better_is_worst_too() -> None:
    search = DrivenSearch(replace(TWO_RUNGS, smaller_is_better=False))
    search.exit_trial(0)
    # n = 1: 2/2 = 1.
    assert search.report_result(1, -1e300) == training_answer(1, 2)


def test_an_exit_of_a_trial_that_was_closed_changes_nothing() -> None:
    search = DrivenSearch(TWO_RUNGS)
    search.report_result(0, 1.0)
    search.report_result(1, 2.0)
    assert search.exit_trial(1).created == 0
    # n = 2: trunc(3/2) = 1; were the exit a result of its own, 4/2 = 2 would let index 1 go on.
    assert search.report_result(2, 1.5) == closing_answer(2, created=1)


@pytest.mark.parametrize("reason", [ExitReason.INVALID_HP, ExitReason.INIT_INVALID_HP])
def test_results_of_an_invalid_trial_count_no_more(reason: ExitReason) -> None:
    search = DrivenSearch(TWO_RUNGS)
    search.report_result(0, 1.0)
    search.report_result(1, 2.0)
    assert search.exit_trial(0, reason) == CREATING_ANSWER
    # n = 1: 2/2 = 1, the first of 1.5 2. After 1.0 it would be at index 1 of trunc(3/2) = 1.
    assert search.report_result(2, 1.5) == training_answer(2, 2)


def test_an_invalid_trial_does_not_count_towards_max_trials() -> None:
    search = DrivenSearch(replace(TWO_RUNGS, max_trials=2, max_concurrent_trials=2))
    assert search.exit_trial(0, ExitReason.INVALID_HP) == CREATING_ANSWER
    assert search.report_result(1, 1.0) == training_answer(1, 2)
    # 3 were created, 1 of them invalid.
    assert search.report_result(2, 2.0) == closing_answer(2)


def test_a_result_counts_in_the_next_rung_too_where_that_is_no_longer() -> None:
    # 2/4 = 0.5, at least 1; 2/2 = 1; 2.
    search = DrivenSearch(stopping_plan(2, 3, 2.0))
    # The first of both.
    assert search.report_result(0, 5.0) == training_answer(0, 2)
    # 2/2 = 1 of the first rung: index 1.
    assert search.report_result(1, 6.0) == closing_answer(1, created=1)
    # trunc(3/2) = 1 of the first, 2/2 = 1 of the second: index 0 in both.
    assert search.report_result(2, 4.0) == training_answer(2, 2)
    # 4/2 = 2 of the first: index 1; trunc(3/2) = 1 of the second: index 1 of 4 4.5 5.
    assert search.report_result(3, 4.5) == closing_answer(3, created=1)


@pytest.mark.parametrize("count", [1, 2])
def test_progress_is_the_first_rung_and_then_the_trials_that_ended(count: int) -> None:
    search = DrivenSearch(
        replace(stopping_plan(2, count, 2.0), max_trials=3, max_concurrent_trials=3)
    )
    search.report_result(0, 1.0)
    # 1 / (1.2 * 3).
    assert search.progress == pytest.approx(1 / 3.6)
    search.report_results({1: 2.0, 2: 3.0})
    assert search.progress == pytest.approx(3 / 3.6)
    if count == 2:
        search.report_result(0, 1.0)
    for trial in range(3):
        # 3 / 3.6 = 0.83 is more than 2/3.
        assert search.progress == pytest.approx(3 / 3.6)
        search.end_trial(trial)
    assert search.progress == 1.0
    assert search.shutdowns == [Shutdown(failure=False)]


def test_progress_falls_by_the_result_of_an_invalid_trial_in_the_last_rung() -> None:
    search = DrivenSearch(replace(stopping_plan(2, 1, 2.0), max_trials=3, max_concurrent_trials=3))
    search.report_results({0: 1.0, 1: 2.0})
    search.exit_trial(1, ExitReason.INVALID_HP)
    # 1 / 3.6: trial 0 is left.
    assert search.progress == pytest.approx(1 / 3.6)
