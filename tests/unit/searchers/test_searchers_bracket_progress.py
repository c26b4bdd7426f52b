"""The progress of brackets: trials, outcomes and results in each rung."""

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
# Rungs 1, 3, 9 and 9 trials, all open at the start.
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
    """Return the progress of a search. `metrics` are the best metrics of the trials."""
    trials = [
        SearchedTrial((metrics or {}).get(trial), trial in search.trials)
        for trial in range(len(search.created))
    ]
    return read_brackets(search.plan, search.state.method, search.blobs, trials, shown_max)


def counts(rung: RungProgress) -> dict[Outcome, int]:
    return {outcome: count for outcome, count in rung.outcomes.items() if count}


def test_counts_promoted_waiting_and_training_trials() -> None:
    search = DrivenSearch(THREE_RUNGS)
    # 3/3 = 1 promotes trial 0; 6/3 = 2 also promotes trial 1.
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


def test_counts_stopped_and_finished_trials_at_end() -> None:
    search = DrivenSearch(replace(THREE_RUNGS, smaller_is_better=False))
    search.report_results({trial: -float(trial) for trial in range(9)})
    search.report_results({0: -0.5, 1: -1.5})
    search.report_result(2, -2.5)
    search.report_result(0, -0.25)
    [(first, second, third)] = brackets_of(search, metrics={0: -0.25})
    # The first rung promotes 3 of 9 trials, the second rung 1 of 3.
    assert [counts(rung) for rung in (first, second, third)] == [{P: 3, S: 6}, {P: 1, S: 2}, {F: 1}]
    assert [rung.best_metric for rung in (first, second, third)] == [0.0, -0.5, -0.25]
    assert second.trials == (RungTrial(0, -0.5, P), RungTrial(1, -1.5, S), RungTrial(2, -2.5, S))


def test_exited_trial_keeps_earlier_result() -> None:
    search = DrivenSearch(replace(THREE_RUNGS, max_trials=3, num_rungs=2))
    search.report_result(0, 5.0)
    search.exit_trial(1)
    search.exit_trial(0)
    [(first, second)] = brackets_of(search)
    assert counts(first) == {E: 2, T: 1}
    assert first.trials == (RungTrial(0, 5.0, E), RungTrial(1, None, E), RungTrial(2, None, T))
    assert counts(second) == {}


def test_ended_trials_neither_train_nor_wait() -> None:
    search = DrivenSearch(THREE_RUNGS)
    search.report_results({0: 0.0, 1: 1.0})
    search.trials.clear()
    [(first, _, _)] = brackets_of(search)
    assert counts(first) == {S: 2, E: 7}


def test_stopping_halving_promotes_without_waiting() -> None:
    search = DrivenSearch(replace(THREE_RUNGS, stops=True))
    # The first trial of a rung continues. Then max(trunc(n/3), 1) = 1: only a new best continues.
    search.report_results({0: 1.0, 1: 2.0, 2: 0.5})
    [(first, second, _)] = brackets_of(search)
    assert counts(first) == {P: 2, S: 1, T: len(search.created) - 3}
    assert first.trials[:3] == (RungTrial(2, 0.5, P), RungTrial(0, 1.0, P), RungTrial(1, 2.0, S))
    assert counts(second) == {T: 2}


def test_synchronous_rung_promotes_planned_number() -> None:
    search = DrivenSearch(SyncHalvingPlan((1, 4), (3, 1), True, LENGTH_ERA))
    search.report_results({0: 3.0, 1: 1.0, 2: 2.0})
    [(first, second)] = brackets_of(search)
    assert (counts(first), counts(second)) == ({P: 1, S: 2}, {T: 1})
    assert [one.trial for one in first.trials] == [1, 2, 0]


def test_brackets_have_separate_trials() -> None:
    two = replace(THREE_RUNGS, num_rungs=2, max_trials=3, max_concurrent_trials=3)
    one = replace(THREE_RUNGS, num_rungs=1, max_trials=2, max_concurrent_trials=2)
    search = DrivenSearch(MultiBracketPlan((two, one)))
    # Trials 0 to 2 are in the first bracket, 3 and 4 in the second, which has a single rung.
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


def test_rounds_of_population_show_replaced_trials() -> None:
    search = PopulationSearch(POPULATION)
    search.report_result(0, 10, 3.0)
    [first] = population_brackets(search)
    assert (first.length, counts(first), first.best_metric) == (10, {W: 1, T: 3}, 3.0)
    for trial, metric in ((1, 1.0), (2, 4.0), (3, 2.0)):
        search.report_result(trial, 10, metric)
    # Trial 4 replaces trial 2, the worst of four. All other results are still stored.
    first, second = population_brackets(search)
    assert (first.length, counts(first), first.best_metric) == (10, {P: 3, S: 1}, 1.0)
    assert [one.trial for one in first.trials] == [1, 3, 0, 2]
    assert (second.length, counts(second)) == (20, {T: 4})
    search.report_result(1, 20, 0.5)
    # The new result of trial 1 overwrote the first result, which was the best of the first round.
    first, second = population_brackets(search)
    assert (counts(first), first.best_metric) == ({P: 3, S: 1}, None)
    assert RungTrial(1, None, P) in first.trials
    assert (counts(second), second.best_metric) == ({W: 1, T: 3}, 0.5)
    search.send_event(TrialExitedEarly(4, Reason.ERRORED, 0.0))
    assert counts(population_brackets(search)[1]) == {W: 1, T: 2, E: 1}


def test_members_of_last_round_are_finished() -> None:
    search = PopulationSearch(replace(POPULATION, num_rounds=2))
    search.run_round(10, {0: 3.0, 1: 1.0, 2: 4.0, 3: 2.0})
    for trial, length, metric in ((0, 20, 3.0), (1, 20, 1.0), (3, 20, 2.0), (4, 10, 0.5)):
        search.report_result(trial, length, metric)
    first, second = population_brackets(search, shown_max=2)
    assert (counts(first), counts(second)) == ({P: 3, S: 1}, {F: 4})
    assert second.trials == (RungTrial(4, 0.5, F), RungTrial(1, 1.0, F))
    # Only the replaced trial still has a result of the first round.
    assert len(first.trials) == 2
    assert first.trials[0] == RungTrial(2, 4.0, S)
