"""Asynchronous halving by stopping, with expected values computed by hand."""

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


def test_result_continues_or_closes_trial() -> None:
    search = DrivenSearch(THREE_RUNGS)
    # n = 0: trunc(1/3) = 0, but at least 1 continues.
    assert search.report_result(0, 10.0) == training_answer(0, 3)
    # n = 1 to 4: max(trunc(2/3), 1) to trunc(5/3) = 1, and no new result is the first.
    for trial, metric in enumerate((20.0, 30.0, 40.0, 50.0), start=1):
        assert search.report_result(trial, metric) == closing_answer(trial, created=1)
    # n = 5: 6/3 = 2, and the new result is at index 1 of 10 15 20 ...
    assert search.report_result(5, 15.0) == training_answer(5, 3)
    # n = 6: trunc(7/3) = 2, index 2 of 10 15 17 20 ...
    assert search.report_result(6, 17.0) == closing_answer(6, created=1)


def test_first_trial_of_rung_continues_with_any_result() -> None:
    search = DrivenSearch(THREE_RUNGS)
    assert search.report_result(0, 1e300) == training_answer(0, 3)
    assert search.report_result(0, 1e300) == training_answer(0, 9)


def test_trial_in_last_rung_is_closed_and_new_trial_created() -> None:
    search = DrivenSearch(TWO_RUNGS)
    search.report_result(0, 1.0)
    assert search.report_result(0, 1.0) == closing_answer(0, created=1)


def test_later_of_two_equal_results_is_better() -> None:
    search = DrivenSearch(TWO_RUNGS)
    search.report_result(0, 1.0)
    # n = 1: 2/2 = 1 continues, and the new result is sorted before the equal result.
    assert search.report_result(1, 1.0) == training_answer(1, 2)


def test_larger_metric_is_better() -> None:
    search = DrivenSearch(replace(TWO_RUNGS, smaller_is_better=False))
    search.report_result(0, 1.0)
    # n = 1: 2/2 = 1 continues; then trunc(3/2) = 1, and the new result is at index 1 of -2 -1.5 -1.
    assert search.report_result(1, 2.0) == training_answer(1, 2)
    assert search.report_result(2, 1.5) == closing_answer(2, created=1)


def test_trials_are_created_up_to_max_trials() -> None:
    search = DrivenSearch(replace(TWO_RUNGS, max_trials=3, max_concurrent_trials=2))
    assert search.report_result(0, 1.0) == training_answer(0, 2)
    assert search.report_result(1, 2.0) == closing_answer(1, created=1)
    assert search.report_result(2, 3.0) == closing_answer(2)
    assert search.report_result(0, 1.0) == closing_answer(0)


def test_early_exit_is_compared_but_does_not_continue() -> None:
    search = DrivenSearch(TWO_RUNGS)
    # The first result of the rung, but the trial has exited.
    assert search.exit_trial(0) == CREATING_ANSWER
    assert search.exit_trial(1) == CREATING_ANSWER
    # n = 2: trunc(3/2) = 1, the new result; n = 3: 4/2 = 2, index 1 of 1 2 worst worst. Without the
    # exits, only one of two results would continue.
    assert search.report_result(2, 1.0) == training_answer(2, 2)
    assert search.report_result(3, 2.0) == training_answer(3, 2)


def test_early_exit_is_worst_result_if_larger_is_better() -> None:
    search = DrivenSearch(replace(TWO_RUNGS, smaller_is_better=False))
    search.exit_trial(0)
    # n = 1: 2/2 = 1.
    assert search.report_result(1, -1e300) == training_answer(1, 2)


def test_exit_of_closed_trial_changes_no_result() -> None:
    search = DrivenSearch(TWO_RUNGS)
    search.report_result(0, 1.0)
    search.report_result(1, 2.0)
    assert search.exit_trial(1).created == 0
    # n = 2: trunc(3/2) = 1. If the exit counted as a result, 4/2 = 2 would include index 1.
    assert search.report_result(2, 1.5) == closing_answer(2, created=1)


@pytest.mark.parametrize("reason", [ExitReason.INVALID_HP, ExitReason.INIT_INVALID_HP])
def test_results_of_invalid_trial_are_removed(reason: ExitReason) -> None:
    search = DrivenSearch(TWO_RUNGS)
    search.report_result(0, 1.0)
    search.report_result(1, 2.0)
    assert search.exit_trial(0, reason) == CREATING_ANSWER
    # n = 1: 2/2 = 1, the first of 1.5 2. After 1.0 it would be at index 1 of trunc(3/2) = 1.
    assert search.report_result(2, 1.5) == training_answer(2, 2)


def test_invalid_trial_does_not_count_towards_max_trials() -> None:
    search = DrivenSearch(replace(TWO_RUNGS, max_trials=2, max_concurrent_trials=2))
    assert search.exit_trial(0, ExitReason.INVALID_HP) == CREATING_ANSWER
    assert search.report_result(1, 1.0) == training_answer(1, 2)
    # 3 trials were created, 1 is invalid.
    assert search.report_result(2, 2.0) == closing_answer(2)


def test_result_counts_in_next_rung_of_same_length() -> None:
    # 2/4 = 0.5, at least 1; 2/2 = 1; 2.
    search = DrivenSearch(stopping_plan(2, 3, 2.0))
    # The first result in both rungs.
    assert search.report_result(0, 5.0) == training_answer(0, 2)
    # 2/2 = 1 of the first rung: index 1.
    assert search.report_result(1, 6.0) == closing_answer(1, created=1)
    # trunc(3/2) = 1 of the first, 2/2 = 1 of the second: index 0 in both.
    assert search.report_result(2, 4.0) == training_answer(2, 2)
    # 4/2 = 2 of the first: index 1; trunc(3/2) = 1 of the second: index 1 of 4 4.5 5.
    assert search.report_result(3, 4.5) == closing_answer(3, created=1)


@pytest.mark.parametrize("count", [1, 2])
def test_progress_counts_first_rung_then_ended_trials(count: int) -> None:
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


def test_invalid_trial_in_last_rung_reduces_progress() -> None:
    search = DrivenSearch(replace(stopping_plan(2, 1, 2.0), max_trials=3, max_concurrent_trials=3))
    search.report_results({0: 1.0, 1: 2.0})
    search.exit_trial(1, ExitReason.INVALID_HP)
    # 1 / 3.6: only the result of trial 0 remains.
    assert search.progress == pytest.approx(1 / 3.6)
