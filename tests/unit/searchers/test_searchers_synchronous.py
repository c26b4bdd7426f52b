from collections.abc import Iterable
from itertools import permutations

import pytest

from control_plane.searchers.era_rules import LENGTH_ERA, STEP_ERA, SearchRules
from control_plane.searchers.halving.multi_bracket import MultiBracketPlan
from control_plane.searchers.halving.synchronous import RungLadder, SyncHalvingPlan
from control_plane.searchers.method import (
    Close,
    ExitReason,
    Shutdown,
    TrainTo,
    TrialExitedEarly,
    TrialLengthReached,
    TrialProgressed,
)
from control_plane.searchers.randomness import Generator
from control_plane.searchers.search import SearchPlan, begin_search, expand_creates, handle_event
from control_plane.searchers.space import Double, Group
from tests.unit.searchers.driven_search import (
    EMPTY_ANSWER,
    DrivenSearch,
    closing_answer,
    training_answer,
)
from tests.unit.searchers.recording_blob_store import RecordingBlobStore

SPACE = Group({"x": Double(0.0, 1.0, None)})


def ladder(max_length: int, divisor: float) -> RungLadder:
    return RungLadder(max_length, divisor, smaller_is_better=True, rules=STEP_ERA)


def plan(
    *trials: int, smaller_is_better: bool = True, rules: SearchRules = STEP_ERA
) -> SyncHalvingPlan:
    """Return a plan with rungs at 1, 3, 9 and so on, and these numbers of trials."""
    lengths = tuple(3**k for k in range(len(trials)))
    return SyncHalvingPlan(lengths, trials, smaller_is_better, rules)


def driven_brackets(*brackets: SyncHalvingPlan, expand_max: int = 100) -> DrivenSearch:
    return DrivenSearch(MultiBracketPlan(brackets), expand_max=expand_max)


@pytest.mark.parametrize(
    ("max_length", "divisor", "rungs", "budget", "lengths", "trials"),
    [
        # c = 64, 16, 4, 1; lengths 800/c; E = 12*64 + 38*16 + 150*4 + 600*1 = 2576
        # 480/2576 = 0.186: 11.9, 2.98, 0.75 (1 at least), 0.186 (1 at least)
        (800, 4, 4, 480, (12, 50, 200, 800), (11, 2, 1, 1)),
        # c = 16, 4, 1; E = 50*16 + 150*4 + 600 = 2000
        (800, 4, 3, 2000, (50, 200, 800), (16, 4, 1)),
        # 3100/2000 = 1.55: 24.8, 6.2, 1.55
        (800, 4, 3, 3100, (50, 200, 800), (24, 6, 1)),
        # 124/2000 = 0.062: 0.99, and at least 1 in each later rung
        (800, 4, 3, 124, (50, 200, 800), (0, 1, 1)),
        # 126/2000 = 0.063: 1.008
        (800, 4, 3, 126, (50, 200, 800), (1, 1, 1)),
        # c = 2.5, 1; 10/2.5 = 4; two trials and one: E = 4*2 + 6 = 14; 30/14 = 2.14: 4.29, 2.14
        (10, 2.5, 2, 30, (4, 10), (4, 2)),
        # c = 2.25, 1.5, 1; 4/c = 1.8, 2.7, 4; 2, 1, 1 trials: E = 1*2 + 1 + 2 = 5; 27/5 = 5.4
        (4, 1.5, 3, 27, (1, 2, 4), (10, 5, 5)),
        # c = 16, 4, 1; 2/c = 0.1, 0.5, 2: lengths 1, 1, 2 for E = 16 + 0 + 1 = 17, then 1 apart
        (2, 4, 3, 34, (1, 2, 3), (32, 8, 2)),
        # one rung: E = 9; 100/9 = 11.1
        (9, 4, 1, 100, (9,), (11,)),
    ],
)
def test_budget_determines_trials_of_rungs(
    max_length: int,
    divisor: float,
    rungs: int,
    budget: int,
    lengths: tuple[int, ...],
    trials: tuple[int, ...],
) -> None:
    made = ladder(max_length, divisor).plan_within_budget(rungs, budget)
    assert (made.lengths, made.trials) == (lengths, trials)
    assert (made.max_length, made.first_trials) == (lengths[-1], trials[0])


@pytest.mark.parametrize(
    ("max_length", "divisor", "rungs", "count", "lengths", "trials"),
    [
        # 9/9, 9/3, 9/1; 10, 10/3 = 3.3, 10/9 = 1.1
        (9, 3, 3, 10, (1, 3, 9), (10, 3, 1)),
        # 2, 2/3, 2/9: at least 1
        (9, 3, 3, 2, (1, 3, 9), (2, 1, 1)),
        # c = 6.25, 2.5, 1: 10/c = 1.6, 4, 10; 20, 20/2.5 = 8, 20/6.25 = 3.2
        (10, 2.5, 3, 20, (1, 4, 10), (20, 8, 3)),
        # 2/64, 2/16, 2/4, 2: at least 1, and longer than the previous rung
        (2, 4, 4, 5, (1, 2, 3, 4), (5, 1, 1, 1)),
        (7, 4, 1, 5, (7,), (5,)),
    ],
)
def test_number_of_trials_determines_trials_of_rungs(
    max_length: int,
    divisor: float,
    rungs: int,
    count: int,
    lengths: tuple[int, ...],
    trials: tuple[int, ...],
) -> None:
    made = ladder(max_length, divisor).plan_with_trials(rungs, count)
    assert (made.lengths, made.trials) == (lengths, trials)


def test_divisor_with_infinite_powers_makes_rungs() -> None:
    # 1e10^99 exceeds the range of floats. c = 1e10, 1e0 in the last two rungs, and 100/c = 0 except
    # in the last rung: lengths 1 to 99, and 100.
    made = ladder(100, 1e10).plan_within_budget(100, 500)
    assert made.lengths == tuple(range(1, 101))
    assert made.trials[0] == 500
    assert ladder(100, 1e10).plan_with_trials(100, 7).trials == (7, *(1,) * 99)


def test_all_trials_are_created_at_start() -> None:
    search = driven_brackets(plan(4, 2, 1))
    assert search.first.created == 4
    assert {trial: now.length for trial, now in search.trials.items()} == dict.fromkeys(range(4), 1)


def test_trial_is_promoted_when_later_results_cannot_change_decision() -> None:
    search = driven_brackets(plan(4, 2, 1))
    # 2 of 4 trials are not promoted: after n results, n - 2 are certainly among the best 2
    assert search.report_results({0: 0.4, 1: 0.1}) == EMPTY_ANSWER
    assert search.report_result(2, 0.3) == training_answer(1, 3)
    # the new result is the second; all results exist, so trials 0 and 2 are not promoted
    assert search.report_result(3, 0.2) == training_answer(3, 3, closes=(0, 2))
    # 1 of 2 trials is not promoted, in any order
    assert search.report_result(3, 0.5) == EMPTY_ANSWER
    assert search.report_result(1, 0.6) == training_answer(3, 9, closes=(1,))
    assert search.report_result(3, 0.7) == closing_answer(3)
    for trial in range(4):
        search.end_trial(trial)
    assert search.shutdowns == [Shutdown(failure=False)]


@pytest.mark.parametrize("smaller_is_better", [True, False])
def test_promoted_trials_do_not_depend_on_order_of_results(
    smaller_is_better: bool,
) -> None:
    metrics = {0: 0.5, 1: -3.0, 2: 7.0, 3: 0.25, 4: 0.0}
    ranked = sorted(metrics, key=lambda trial: metrics[trial], reverse=not smaller_is_better)
    for order in permutations(metrics):
        search = driven_brackets(plan(5, 2, smaller_is_better=smaller_is_better))
        answers = [search.report_result(trial, metrics[trial]) for trial in order]
        assert sorted(trial for one in answers for trial in one.trains) == sorted(ranked[:2])
        assert [len(one.trains) for one in answers] == [0, 0, 0, 1, 1]
        assert sorted(answers[-1].closes) == sorted(ranked[2:])


def test_first_of_equal_results_is_promoted() -> None:
    search = driven_brackets(plan(4, 2))
    assert search.report_results({2: 1.0, 0: 1.0}) == EMPTY_ANSWER
    assert search.report_result(3, 1.0) == training_answer(2, 3)
    # sorted after the equal results, trial 1 is the fourth: the second result is promoted
    assert search.report_result(1, 1.0) == training_answer(0, 3, closes=(1, 3))


def test_no_trial_waits_if_all_are_promoted() -> None:
    search = driven_brackets(plan(2, 2))
    assert search.report_result(1, 5.0) == training_answer(1, 3)
    assert search.report_result(0, 9.0) == training_answer(0, 3)


def test_repeated_report_of_earlier_rung_changes_no_state() -> None:
    search = driven_brackets(plan(2, 2, 1))
    search.report_result(0, 0.5)
    before = search.state.method
    assert search.send_event(TrialLengthReached(0, 1, 0.5)) == EMPTY_ANSWER
    assert search.state.method == before


@pytest.mark.parametrize("smaller_is_better", [True, False])
@pytest.mark.parametrize("reason", list(ExitReason))
def test_early_exit_is_worst_result_and_is_not_replaced(
    reason: ExitReason, smaller_is_better: bool
) -> None:
    search = driven_brackets(plan(3, 1, smaller_is_better=smaller_is_better, rules=LENGTH_ERA))
    worst = 1e308 if smaller_is_better else -1e308
    assert search.exit_trial(0, reason) == EMPTY_ANSWER
    assert search.report_result(1, worst) == EMPTY_ANSWER
    # trial 1 is better than trial 0, which is not closed, because trial 0 ended already
    assert search.report_result(2, worst) == training_answer(1, 3, closes=(2,))


def test_trial_that_exits_while_waiting_is_not_counted_twice() -> None:
    search = driven_brackets(plan(3, 1))
    search.report_result(0, 0.5)
    assert search.exit_trial(0) == EMPTY_ANSWER
    # if the result counted twice, 0.7 would be the third of three
    assert search.report_result(1, 0.7) == EMPTY_ANSWER
    assert search.report_result(2, 0.6) == closing_answer(1, 2)


def test_promoted_exited_trials_pass_through_rungs() -> None:
    search = driven_brackets(plan(3, 2, 2, 1))
    assert search.report_result(0, 0.1) == EMPTY_ANSWER
    search.exit_trial(0)
    # all trials of the first and the second rung are promoted, trial 0 first; in the third rung,
    # trial 0 waits with the worst result
    assert search.report_result(1, 0.3) == EMPTY_ANSWER
    assert search.report_result(2, 0.2) == training_answer(2, 3, closes=(1,))
    assert search.report_result(2, 0.2) == training_answer(2, 9)
    # trial 0 is not promoted, and not closed, because trial 0 ended already
    assert search.report_result(2, 99.0) == training_answer(2, 27)
    assert search.report_result(2, 99.0) == closing_answer(2)


def test_exit_can_fill_several_rungs() -> None:
    search = driven_brackets(plan(2, 2, 1))
    # the first rung promotes all trials: trial 0 enters the second rung with the worst result
    assert search.exit_trial(0) == EMPTY_ANSWER
    # trial 1 follows, sorted after the equal result; trial 0 is the best and passes the last rung
    assert search.exit_trial(1) == EMPTY_ANSWER
    assert search.shutdowns == [Shutdown(failure=True)]


def test_exit_after_promotion_counts_in_new_rung() -> None:
    search = driven_brackets(plan(2, 2, 1))
    search.report_results({0: 0.1, 1: 0.2})
    assert search.exit_trial(0) == EMPTY_ANSWER
    assert search.report_result(1, 99.0) == training_answer(1, 9)
    assert search.exit_trial(1) == EMPTY_ANSWER
    assert search.shutdowns == [Shutdown(failure=True)]


def test_exit_can_promote_a_waiting_trial() -> None:
    search = driven_brackets(plan(2, 1))
    assert search.report_result(0, 0.5) == EMPTY_ANSWER
    assert search.exit_trial(1) == training_answer(0, 3)


def test_exit_of_closed_trial_does_not_change_search() -> None:
    search = driven_brackets(plan(2, 1))
    search.report_results({0: 0.5, 1: 0.6})
    assert search.exit_trial(1) == EMPTY_ANSWER
    assert search.report_result(0, 0.5) == closing_answer(0)
    assert search.exit_trial(0) == EMPTY_ANSWER
    # every trial exited early, which fails a search of the step era
    assert search.shutdowns == [Shutdown(failure=True)]


@pytest.mark.parametrize(
    ("rules", "work", "shares"),
    [
        # (1 + 1)*2 + (2 + 1)*1 = 7: twice a step and a validation, then 2 steps and a validation
        (STEP_ERA, 7, [1, 2, 4, 6, 7]),
        # 1*2 + 2*1 = 4
        (LENGTH_ERA, 4, [1, 1, 2, 4, 4]),
    ],
)
def test_progress_counts_workloads_or_units(
    rules: SearchRules, work: int, shares: list[int]
) -> None:
    search = driven_brackets(plan(2, 1, rules=rules))
    seen: list[float] = []

    def report_units(trial: int, units: float) -> None:
        search.send_event(TrialProgressed(trial, units))

    report_units(0, 1.0)
    seen.append(search.progress)
    search.report_result(0, 0.5)
    seen.append(search.progress)
    report_units(1, 1.0)
    search.report_result(1, 0.6)
    seen.append(search.progress)
    report_units(0, 2.0)
    seen.append(search.progress)
    search.report_result(0, 0.5)
    seen.append(search.progress)
    assert seen == [share / work for share in shares]


def test_progress_is_mean_of_brackets_and_1_at_end() -> None:
    # steps and validations: (1 + 1)*1 in the first bracket, (1 + 1)*2 in the second
    search = driven_brackets(plan(1), plan(2))
    search.send_event(TrialProgressed(0, 1.0))
    search.send_event(TrialProgressed(2, 1.0))
    assert search.progress == (1 / 2 + 1 / 4) / 2
    for trial in range(3):
        search.exit_trial(trial)
    assert search.progress == 1.0


def test_bracket_without_trials_does_not_delay_end() -> None:
    search = driven_brackets(plan(0, 1, 1), plan(2, 1), plan(0))
    assert search.first.created == 2
    assert search.report_results({0: 0.2, 1: 0.1}) == training_answer(1, 3, closes=(0,))
    assert search.report_result(1, 0.1) == closing_answer(1)
    search.end_trial(0)
    assert not search.shutdowns
    search.end_trial(1)
    assert search.shutdowns == [Shutdown(failure=False)]


@pytest.mark.parametrize("brackets", [[plan(0, 1)], [plan(0, 1), plan(0, 1)]])
def test_search_without_trials_fails_at_once(brackets: Iterable[SyncHalvingPlan]) -> None:
    assert driven_brackets(*brackets).shutdowns == [Shutdown(failure=True)]


def test_many_trials_are_closed_in_small_steps_and_blobs() -> None:
    count, create_max = 5_000, 48
    search, generator, blobs = (
        SearchPlan(plan(count, 1), SPACE, 7),
        Generator.from_seed(7),
        RecordingBlobStore(),
    )
    step = begin_search(search, blobs)
    while step.more:
        step = expand_creates(search, step.state, generator, create_max, blobs)
    for trial in range(count):
        event = TrialLengthReached(trial, 1, float(-trial))
        blobs.written.clear()
        step = handle_event(search, step.state, generator, event, create_max, blobs)
        assert len(set(blobs.written)) <= 10
    closed = [op.trial for op in step.operations if isinstance(op, Close)]
    while step.more:
        blobs.written.clear()
        step = expand_creates(search, step.state, generator, create_max, blobs)
        assert len(step.operations) <= create_max
        assert len(set(blobs.written)) <= 2
        closed += [op.trial for op in step.operations if isinstance(op, Close)]
    # the last trial was the best
    assert closed == list(range(count - 1))
    assert max(map(len, blobs.contents.values())) <= 300


def test_trial_that_exits_before_pending_close_is_not_closed() -> None:
    search, generator, blobs = (
        SearchPlan(plan(3, 1), SPACE, 7),
        Generator.from_seed(7),
        RecordingBlobStore(),
    )
    step = begin_search(search, blobs)
    step = expand_creates(search, step.state, generator, 9, blobs)
    for trial in range(3):
        event = TrialLengthReached(trial, 1, float(trial))
        step = handle_event(search, step.state, generator, event, 1, blobs)
    # each step closes one trial: trial 2 is not closed yet
    assert step.operations == (TrainTo(0, 3), Close(1))
    exited = TrialExitedEarly(2, ExitReason.ERRORED, 1.0, 1)
    step = handle_event(search, step.state, generator, exited, 1, blobs)
    assert (step.operations, step.more) == ((), False)
