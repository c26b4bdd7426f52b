import pytest

from control_plane.searchers.bayesian import (
    BayesianPlan,
    BayesianSearch,
    BayesianState,
    tried,
)
from control_plane.searchers.kept import kept
from control_plane.searchers.method import (
    Create,
    CreateTrial,
    ExitReason,
    MethodStep,
    Suggested,
    SuggestionFailed,
    Tally,
    TrialClosed,
    TrialExited,
    TrialReached,
)
from control_plane.searchers.rules import LENGTH_ERA, STEP_ERA, Rules
from tests.unit.searchers.kept import Kept

# 2 of 5 trials at a time; the model is asked once one result is in.
PLAN = BayesianPlan(9, 5, 2, 1, LENGTH_ERA)


def sampled(count: int) -> Create:
    return Create(count, "Sampled", first_point=0, length=9, closed=True)


def suggested(count: int, first: int) -> Create:
    return Create(count, "Kept", first_point=first, length=9, closed=True)


def searching(rules: Rules = LENGTH_ERA) -> BayesianSearch:
    return BayesianSearch(BayesianPlan(9, 5, 2, 1, rules), Kept())


def asking(asked: int, answered: int) -> BayesianState:
    return BayesianState(counted=5, results=4, asked=asked, answered=answered)


@pytest.mark.parametrize("rules", [LENGTH_ERA, STEP_ERA])
@pytest.mark.parametrize(("trials", "concurrent", "first"), [(5, 2, 2), (5, 16, 5)])
def test_the_first_trials_are_drawn_as_many_as_may_be_open(
    rules: Rules, trials: int, concurrent: int, first: int
) -> None:
    search = BayesianSearch(BayesianPlan(9, trials, concurrent, 1, rules), Kept())
    assert search.initial() == MethodStep(BayesianState(first), (sampled(first),))


def test_trials_are_drawn_until_there_are_results_enough() -> None:
    search = searching()
    state = search.initial().state
    without = search.on_event(state, TrialExited(0, ExitReason.ERRORED, 1.0))
    assert without.operations == (sampled(1),)
    reached = search.on_event(without.state, TrialReached(1, 9, 0.5)).state
    asked = search.on_event(reached, TrialClosed(1, 9.0))
    assert asked == MethodStep(BayesianState(counted=4, results=1, asked=1))
    assert asked.state.awaits_advice
    assert not reached.awaits_advice


def test_no_more_than_max_trials_are_asked_for() -> None:
    state = asking(2, 2)
    assert searching().on_event(state, TrialClosed(4, 9.0)) == MethodStep(state)


def test_a_trial_that_refused_its_hyperparameters_is_replaced_in_the_length_era() -> None:
    ended = TrialExited(4, ExitReason.INVALID_HP, 0.0)
    assert searching().on_event(asking(2, 2), ended) == MethodStep(asking(3, 2))
    assert searching(STEP_ERA).on_event(asking(2, 2), ended) == MethodStep(asking(2, 2))


def test_a_suggestion_becomes_a_trial() -> None:
    parts = Kept()
    search = BayesianSearch(PLAN, parts)
    step = search.on_advice(asking(3, 1), Suggested(1, ({"x": 1},)))
    assert step == MethodStep(asking(3, 2), (suggested(1, 1),))
    both = search.on_advice(step.state, Suggested(2, ({"x": 2}, {"x": 3})))
    # Two requests were open, of which one is answered: what nobody asked for is left out.
    assert both == MethodStep(asking(3, 3), (suggested(1, 2),))
    assert [kept(parts, number).hparams for number in (1, 2)] == [{"x": 1}, {"x": 2}]


@pytest.mark.parametrize("first", [0, 2, 7, -1])
def test_a_suggestion_that_is_not_the_next_one_changes_nothing(first: int) -> None:
    parts = Kept()
    search = BayesianSearch(PLAN, parts)
    state = asking(3, 1)
    assert search.on_advice(state, Suggested(first, ({"x": 1},))) == MethodStep(state)
    assert search.on_advice(state, SuggestionFailed(first, "no")) == MethodStep(state)
    assert parts.written == []


def test_a_suggestion_that_nobody_waits_for_changes_nothing() -> None:
    state = asking(3, 3)
    assert searching().on_advice(state, Suggested(3, ({"x": 1},))) == MethodStep(state)
    assert searching().on_advice(state, SuggestionFailed(3, "no")) == MethodStep(state)


def test_what_cannot_be_suggested_is_drawn() -> None:
    step = searching().on_advice(asking(3, 1), SuggestionFailed(1, "no"))
    assert step == MethodStep(asking(3, 2), (sampled(1),))


def test_the_hyperparameters_of_every_trial_are_kept_eight_to_a_part() -> None:
    parts = Kept()
    search = BayesianSearch(PLAN, parts)
    state = BayesianState(1)
    for trial in range(9):
        made = CreateTrial(trial, "id", 7, {"x": trial}, 9, True)
        assert search.on_created(state, made) == state
    assert [one["x"] for one in tried(parts.pieces["tried/0"])] == [0, 1, 2, 3, 4, 5, 6, 7]
    assert list(tried(parts.pieces["tried/1"])) == [{"x": 8}]


def test_progress_is_that_of_all_trials() -> None:
    # 2 of 5 have ended and 3 of 9 batches of a third are done: (2 * 9 + 3) / (5 * 9).
    tally = Tally(requested=3, created=3, closed=2, units=21.0, open_units=3.0)
    assert searching().progress(asking(1, 1), tally) == pytest.approx(21 / 45)
