"""The trials in each rung and their results, on searches that other tests work out by hand."""

from collections.abc import Sequence
from dataclasses import replace

from control_plane.searchers.bracket_progress import Outcome, RungProgress, RungTrial, SearchedTrial
from control_plane.searchers.era_rules import LENGTH_ERA
from control_plane.searchers.halving.asynchronous import HalvingPlan
from control_plane.searchers.halving.multi_bracket import MultiBracketPlan
from control_plane.searchers.halving.synchronous import SyncHalvingPlan
from control_plane.searchers.method import ExitReason as Reason
from control_plane.searchers.method import MethodPlan, MethodState, TrialExitedEarly
from control_plane.searchers.registry import spec_of_plan
from tests.unit.searchers.driven_search import DrivenSearch
from tests.unit.searchers.recording_blob_store import RecordingBlobStore
from tests.unit.searchers.test_searchers_pbt import PLAN as POPULATION
from tests.unit.searchers.test_searchers_pbt import Search as PopulationSearch

T, W, P, S, F, E = Outcome
# Rungs 1, 3, 9 and 9 trials, all of them open at the start.
THREE_RUNGS = HalvingPlan(9, 3, 3.0, 9, 0, True, LENGTH_ERA)
SHOWN_MAX = 50


def read_brackets(
    plan: MethodPlan,
    state: MethodState,
    blobs: RecordingBlobStore,
    trials: Sequence[SearchedTrial],
    shown_max: int = SHOWN_MAX,
) -> list[tuple[RungProgress, ...]]:
    read = spec_of_plan(plan).read_brackets
    assert read is not None
    return [bracket.rungs for bracket in read(plan, state, blobs, trials, shown_max)]


def brackets_of(
    search: DrivenSearch, metrics: dict[int, float] | None = None, shown_max: int = SHOWN_MAX
) -> list[tuple[RungProgress, ...]]:
    """The brackets of a search whose trials have these best metrics."""
    trials = [
        SearchedTrial((metrics or {}).get(trial), trial in search.trials)
        for trial in range(len(search.created))
    ]
    return read_brackets(search.plan, search.state.method, search.blobs, trials, shown_max)


def counts(rung: RungProgress) -> dict[Outcome, int]:
    return {outcome: count for outcome, count in rung.outcomes.items() if count}


def test_a_promotion_shows_who_went_on_who_waits_and_who_trains() -> None:
    search = DrivenSearch(THREE_RUNGS)
    # 3/3 = 1 promotes trial 0; of six results two may go on, and trial 1 is the second.
    search.report_results({0: 0.0, 1: 1.0, 2: 2.0, 3: 3.0, 4: 4.0, 5: 5.0})
    [(first, second, third)] = brackets_of(search)
    assert [rung.length for rung in (first, second, third)] == [1, 3, 9]
    assert counts(first) == {P: 2, W: 4, T: 3}
    assert first.best_metric == 0.0
    assert first.trials[:3] == (RungTrial(0, 0.0, P), RungTrial(1, 1.0, P), RungTrial(2, 2.0, W))
    assert first.trials[6:] == tuple(RungTrial(trial, None, T) for trial in (6, 7, 8))
    assert (counts(second), second.best_metric) == ({T: 2}, None)
    assert (counts(third), third.trials) == ({}, ())
    [(first, _, _)] = brackets_of(search, shown_max=2)
    assert first.trials == (RungTrial(0, 0.0, P), RungTrial(1, 1.0, P))
    assert counts(first) == {P: 2, W: 4, T: 3}


def test_the_end_shows_who_was_left_behind_and_who_finished() -> None:
    search = DrivenSearch(replace(THREE_RUNGS, smaller_is_better=False))
    search.report_results({trial: -float(trial) for trial in range(9)})
    search.report_results({0: -0.5, 1: -1.5})
    search.report_result(2, -2.5)
    search.report_result(0, -0.25)
    [(first, second, third)] = brackets_of(search, metrics={0: -0.25})
    # 3 of 9 went on from the first rung, 1 of 3 from the second.
    assert [counts(rung) for rung in (first, second, third)] == [{P: 3, S: 6}, {P: 1, S: 2}, {F: 1}]
    assert [rung.best_metric for rung in (first, second, third)] == [0.0, -0.5, -0.25]
    assert second.trials == (RungTrial(0, -0.5, P), RungTrial(1, -1.5, S), RungTrial(2, -2.5, S))


def test_who_ended_early_has_no_result_but_what_it_had_reached() -> None:
    search = DrivenSearch(replace(THREE_RUNGS, max_trials=3, num_rungs=2))
    search.report_result(0, 5.0)
    search.exit_trial(1)
    search.exit_trial(0)
    [(first, second)] = brackets_of(search)
    assert counts(first) == {E: 2, T: 1}
    assert first.trials == (RungTrial(0, 5.0, E), RungTrial(1, None, E), RungTrial(2, None, T))
    assert counts(second) == {}


def test_of_a_search_that_was_ended_nobody_trains_or_waits() -> None:
    search = DrivenSearch(THREE_RUNGS)
    search.report_results({0: 0.0, 1: 1.0})
    search.trials.clear()
    [(first, _, _)] = brackets_of(search)
    assert counts(first) == {S: 2, E: 7}


def test_stopping_moves_a_trial_at_once() -> None:
    search = DrivenSearch(replace(THREE_RUNGS, stops=True))
    # The first of a rung goes on; of two, int(2/3) = 0 but at least one: the newcomer if better.
    search.report_results({0: 1.0, 1: 2.0, 2: 0.5})
    [(first, second, _)] = brackets_of(search)
    assert counts(first) == {P: 2, S: 1, T: len(search.created) - 3}
    assert first.trials[:3] == (RungTrial(2, 0.5, P), RungTrial(0, 1.0, P), RungTrial(1, 2.0, S))
    assert counts(second) == {T: 2}


def test_a_rung_of_a_synchronous_halving_takes_as_many_as_it_has_room_for() -> None:
    search = DrivenSearch(SyncHalvingPlan((1, 4), (3, 1), True, LENGTH_ERA))
    search.report_results({0: 3.0, 1: 1.0, 2: 2.0})
    [(first, second)] = brackets_of(search)
    assert (counts(first), counts(second)) == ({P: 1, S: 2}, {T: 1})
    assert [one.trial for one in first.trials] == [1, 2, 0]


def test_each_bracket_has_its_own_trials() -> None:
    two = replace(THREE_RUNGS, num_rungs=2, max_trials=3, max_concurrent_trials=3)
    one = replace(THREE_RUNGS, num_rungs=1, max_trials=2, max_concurrent_trials=2)
    search = DrivenSearch(MultiBracketPlan((two, one)))
    # Trials 0 to 2 are the first bracket's, 3 and 4 the second's: its only rung compares nobody.
    search.report_results({0: 7.0, 3: 0.5, 4: 0.25})
    [halving, single] = brackets_of(search, metrics={0: 7.0, 3: 0.5, 4: 0.25})
    assert [counts(rung) for rung in halving] == [{W: 1, T: 2}, {}]
    assert counts(single[0]) == {F: 2}
    assert single[0].trials == (RungTrial(4, 0.25, F), RungTrial(3, 0.5, F))


def population_brackets(search: PopulationSearch, shown_max: int = SHOWN_MAX) -> list[RungProgress]:
    trials = [SearchedTrial(None, is_open=True) for _ in search.created]
    [rungs] = read_brackets(
        search.plan.method, search.state.method, search.blobs, trials, shown_max
    )
    return list(rungs)


def test_the_rounds_of_a_population_show_who_was_replaced() -> None:
    search = PopulationSearch(POPULATION)
    search.report_result(0, 10, 3.0)
    [first] = population_brackets(search)
    assert (first.length, counts(first), first.best_metric) == (10, {W: 1, T: 3}, 3.0)
    for trial, metric in ((1, 1.0), (2, 4.0), (3, 2.0)):
        search.report_result(trial, 10, metric)
    # The worst of four, trial 2, is replaced by trial 4; what the others reached is known still.
    first, second = population_brackets(search)
    assert (first.length, counts(first), first.best_metric) == (10, {P: 3, S: 1}, 1.0)
    assert [one.trial for one in first.trials] == [1, 3, 0, 2]
    assert (second.length, counts(second)) == (20, {T: 4})
    search.report_result(1, 20, 0.5)
    # The result of trial 1 in the first round is gone, and with it the best of the round.
    first, second = population_brackets(search)
    assert (counts(first), first.best_metric) == ({P: 3, S: 1}, None)
    assert RungTrial(1, None, P) in first.trials
    assert (counts(second), second.best_metric) == ({W: 1, T: 3}, 0.5)
    search.send_event(TrialExitedEarly(4, Reason.ERRORED, 0.0))
    assert counts(population_brackets(search)[1]) == {W: 1, T: 2, E: 1}


def test_after_the_last_round_its_members_have_finished() -> None:
    search = PopulationSearch(replace(POPULATION, num_rounds=2))
    search.run_round(10, {0: 3.0, 1: 1.0, 2: 4.0, 3: 2.0})
    for trial, length, metric in ((0, 20, 3.0), (1, 20, 1.0), (3, 20, 2.0), (4, 10, 0.5)):
        search.report_result(trial, length, metric)
    first, second = population_brackets(search, shown_max=2)
    assert (counts(first), counts(second)) == ({P: 3, S: 1}, {F: 4})
    assert second.trials == (RungTrial(4, 0.5, F), RungTrial(1, 1.0, F))
    # The only result of the first round that is left is that of the one replaced.
    assert len(first.trials) == 2
    assert first.trials[0] == RungTrial(2, 4.0, S)
