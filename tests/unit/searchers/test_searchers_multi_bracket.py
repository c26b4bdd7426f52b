"""Asynchronous halvings side by side."""

from dataclasses import replace

import pytest

from control_plane.searchers.era_rules import LENGTH_ERA
from control_plane.searchers.halving.asynchronous import HalvingPlan
from control_plane.searchers.halving.multi_bracket import MultiBracketPlan
from control_plane.searchers.method import ExitReason, Shutdown
from tests.unit.searchers.driven_search import (
    CREATING_ANSWER,
    EMPTY_ANSWER,
    DrivenSearch,
    closing_answer,
    training_answer,
)

# Rungs at 2/2 and 2/1 for 3 trials, 2 of them open at the start.
HALVED = HalvingPlan(2, 2, 2.0, 3, 2, True, LENGTH_ERA)
# One rung at 2 for 2 trials, one concurrent trial.
WHOLE = HalvingPlan(2, 1, 2.0, 2, 1, True, LENGTH_ERA)
BOTH = MultiBracketPlan((HALVED, WHOLE))


def test_first_trials_are_created_bracket_by_bracket() -> None:
    search = DrivenSearch(MultiBracketPlan((WHOLE, HALVED, WHOLE)))
    assert search.first == EMPTY_ANSWER._replace(created=4)
    assert [search.trials[trial].length for trial in range(4)] == [2, 1, 1, 2]


def test_new_trial_belongs_to_answering_bracket() -> None:
    search = DrivenSearch(BOTH)
    assert search.report_result(2, 9.0) == closing_answer(2, created=1)
    assert search.report_result(0, 1.0) == CREATING_ANSWER
    assert (search.trials[3].length, search.trials[4].length) == (2, 1)
    # 2/2 = 1 promotes one of trials 0 and 1. Trial 2 is in the other bracket.
    assert search.report_result(1, 2.0) == training_answer(0, 2)
    # Creates the last of 3 trials of the first bracket. Trial 3 is in the second bracket.
    assert search.report_result(4, 3.0) == closing_answer(1, 4)
    assert search.report_result(3, 9.0) == closing_answer(3)
    assert search.report_result(0, 1.0) == closing_answer(0)


def test_replacement_belongs_to_bracket_of_invalid_trial() -> None:
    search = DrivenSearch(BOTH)
    assert search.exit_trial(2, ExitReason.INVALID_HP) == CREATING_ANSWER
    assert search.exit_trial(1, ExitReason.INVALID_HP) == CREATING_ANSWER
    assert (search.trials[3].length, search.trials[4].length) == (2, 1)
    assert search.report_result(3, 1.0) == closing_answer(3, created=1)
    assert search.trials[5].length == 2


def test_stopping_and_promoting_brackets_can_be_combined() -> None:
    search = DrivenSearch(MultiBracketPlan((HALVED, replace(HALVED, stops=True))))
    # A first trial of a rung continues in a stopping bracket and waits in a promoting bracket.
    assert search.report_result(0, 1.0) == CREATING_ANSWER
    assert search.report_result(2, 1.0) == training_answer(2, 2)


def test_progress_is_mean_of_brackets() -> None:
    search = DrivenSearch(BOTH)
    search.report_result(2, 9.0)
    # 0 in the first bracket, 1 / (1.2 * 2) in the second.
    assert search.progress == pytest.approx(1 / 2.4 / 2)
    search.report_result(0, 1.0)
    # 1 / (1.2 * 3) in the first bracket.
    assert search.progress == pytest.approx((1 / 3.6 + 1 / 2.4) / 2)


def test_search_ends_after_last_bracket() -> None:
    search = DrivenSearch(BOTH)
    search.report_results({2: 9.0, 3: 9.0})
    search.end_trial(2)
    search.end_trial(3)
    assert search.shutdowns == []
    search.report_results({0: 1.0, 1: 2.0, 4: 3.0})
    search.report_result(0, 1.0)
    for trial in (0, 1, 4):
        search.end_trial(trial)
    assert search.shutdowns == [Shutdown(failure=False)]
    assert search.progress == 1.0
