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
# One rung at 2 for 2 trials, one after the other.
WHOLE = HalvingPlan(2, 1, 2.0, 2, 1, True, LENGTH_ERA)
BOTH = MultiBracketPlan((HALVED, WHOLE))


def test_first_trials_come_bracket_after_bracket() -> None:
    search = DrivenSearch(MultiBracketPlan((WHOLE, HALVED, WHOLE)))
    assert search.first == EMPTY_ANSWER._replace(created=4)
    assert [search.trials[trial].length for trial in range(4)] == [2, 1, 1, 2]


def test_a_trial_created_in_answer_belongs_to_the_bracket_that_answered() -> None:
    search = DrivenSearch(BOTH)
    assert search.report_result(2, 9.0) == closing_answer(2, created=1)
    assert search.report_result(0, 1.0) == CREATING_ANSWER
    assert (search.trials[3].length, search.trials[4].length) == (2, 1)
    # Among 0 and 1, 2/2 = 1 goes on: trial 2's result is none of theirs.
    assert search.report_result(1, 2.0) == training_answer(0, 2)
    # The third and last of the first bracket, trial 3 of the second stays open.
    assert search.report_result(4, 3.0) == closing_answer(1, 4)
    assert search.report_result(3, 9.0) == closing_answer(3)
    assert search.report_result(0, 1.0) == closing_answer(0)


def test_a_replacement_belongs_to_the_bracket_of_the_invalid_trial() -> None:
    search = DrivenSearch(BOTH)
    assert search.exit_trial(2, ExitReason.INVALID_HP) == CREATING_ANSWER
    assert search.exit_trial(1, ExitReason.INVALID_HP) == CREATING_ANSWER
    assert (search.trials[3].length, search.trials[4].length) == (2, 1)
    assert search.report_result(3, 1.0) == closing_answer(3, created=1)
    assert search.trials[5].length == 2


def test_brackets_that_stop_and_that_promote_go_side_by_side() -> None:
    search = DrivenSearch(MultiBracketPlan((HALVED, replace(HALVED, stops=True))))
    # The first of its rung goes on where trials are stopped, and waits where they are promoted.
    assert search.report_result(0, 1.0) == CREATING_ANSWER
    assert search.report_result(2, 1.0) == training_answer(2, 2)


def test_progress_is_the_mean_over_the_brackets() -> None:
    search = DrivenSearch(BOTH)
    search.report_result(2, 9.0)
    # 0 of the first, 1 / (1.2 * 2) of the second.
    assert search.progress == pytest.approx(1 / 2.4 / 2)
    search.report_result(0, 1.0)
    # 1 / (1.2 * 3) of the first.
    assert search.progress == pytest.approx((1 / 3.6 + 1 / 2.4) / 2)


def test_a_search_is_over_when_every_bracket_is() -> None:
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
