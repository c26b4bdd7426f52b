"""Asynchronous halvings side by side."""

from dataclasses import replace

import pytest

from control_plane.searchers.halving import HalvingPlan
from control_plane.searchers.method import ExitReason, Shutdown
from control_plane.searchers.rules import LENGTH_ERA
from control_plane.searchers.tournament import TournamentPlan
from tests.unit.searchers.driven import CREATES, NOTHING, Driven, closes, trains

# Rungs at 2/2 and 2/1 for 3 trials, 2 of them open at the start.
HALVED = HalvingPlan(2, 2, 2.0, 3, 2, True, LENGTH_ERA)
# One rung at 2 for 2 trials, one after the other.
WHOLE = HalvingPlan(2, 1, 2.0, 2, 1, True, LENGTH_ERA)
BOTH = TournamentPlan((HALVED, WHOLE))


def test_first_trials_come_bracket_after_bracket() -> None:
    search = Driven(TournamentPlan((WHOLE, HALVED, WHOLE)))
    assert search.first == NOTHING._replace(created=4)
    assert [search.trials[trial].length for trial in range(4)] == [2, 1, 1, 2]


def test_a_trial_created_in_answer_belongs_to_the_bracket_that_answered() -> None:
    search = Driven(BOTH)
    assert search.result(2, 9.0) == closes(2, created=1)
    assert search.result(0, 1.0) == CREATES
    assert (search.trials[3].length, search.trials[4].length) == (2, 1)
    # Among 0 and 1, 2/2 = 1 goes on: trial 2's result is none of theirs.
    assert search.result(1, 2.0) == trains(0, 2)
    # The third and last of the first bracket, trial 3 of the second stays open.
    assert search.result(4, 3.0) == closes(1, 4)
    assert search.result(3, 9.0) == closes(3)
    assert search.result(0, 1.0) == closes(0)


def test_a_replacement_belongs_to_the_bracket_of_the_invalid_trial() -> None:
    search = Driven(BOTH)
    assert search.exited(2, ExitReason.INVALID_HP) == CREATES
    assert search.exited(1, ExitReason.INVALID_HP) == CREATES
    assert (search.trials[3].length, search.trials[4].length) == (2, 1)
    assert search.result(3, 1.0) == closes(3, created=1)
    assert search.trials[5].length == 2


def test_brackets_that_stop_and_that_promote_go_side_by_side() -> None:
    search = Driven(TournamentPlan((HALVED, replace(HALVED, stops=True))))
    # The first of its rung goes on where trials are stopped, and waits where they are promoted.
    assert search.result(0, 1.0) == CREATES
    assert search.result(2, 1.0) == trains(2, 2)


def test_progress_is_the_mean_over_the_brackets() -> None:
    search = Driven(BOTH)
    search.result(2, 9.0)
    # 0 of the first, 1 / (1.2 * 2) of the second.
    assert search.progress == pytest.approx(1 / 2.4 / 2)
    search.result(0, 1.0)
    # 1 / (1.2 * 3) of the first.
    assert search.progress == pytest.approx((1 / 3.6 + 1 / 2.4) / 2)


def test_a_search_is_over_when_every_bracket_is() -> None:
    search = Driven(BOTH)
    search.results({2: 9.0, 3: 9.0})
    search.ended(2)
    search.ended(3)
    assert search.shutdowns == []
    search.results({0: 1.0, 1: 2.0, 4: 3.0})
    search.result(0, 1.0)
    for trial in (0, 1, 4):
        search.ended(trial)
    assert search.shutdowns == [Shutdown(failure=False)]
    assert search.progress == 1.0
