from collections.abc import Iterable
from itertools import permutations

import pytest

from control_plane.searchers.method import (
    Close,
    ExitReason,
    Shutdown,
    TrainTo,
    TrialExited,
    TrialProgressed,
    TrialReached,
)
from control_plane.searchers.randomness import Generator
from control_plane.searchers.rules import LENGTH_ERA, STEP_ERA, Rules
from control_plane.searchers.search import SearchPlan, begin, expand, handle
from control_plane.searchers.space import Double, Group
from control_plane.searchers.synchronous import Ladder, SyncHalvingPlan
from control_plane.searchers.tournament import TournamentPlan
from tests.unit.searchers.driven import NOTHING, Driven, closes, trains
from tests.unit.searchers.kept import Kept

SPACE = Group({"x": Double(0.0, 1.0, None)})


def ladder(max_length: int, divisor: float) -> Ladder:
    return Ladder(max_length, divisor, smaller_is_better=True, rules=STEP_ERA)


def plan(*trials: int, smaller_is_better: bool = True, rules: Rules = STEP_ERA) -> SyncHalvingPlan:
    """Rungs of 1, 3, 9 and so on."""
    lengths = tuple(3**k for k in range(len(trials)))
    return SyncHalvingPlan(lengths, trials, smaller_is_better, rules)


def driven(*brackets: SyncHalvingPlan, expand_max: int = 100) -> Driven:
    return Driven(TournamentPlan(brackets), expand_max=expand_max)


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
        # 124/2000 = 0.062: 0.99, and then one each although there is none to come from
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
def test_a_budget_is_shared_by_the_rungs_of_a_halving(
    max_length: int,
    divisor: float,
    rungs: int,
    budget: int,
    lengths: tuple[int, ...],
    trials: tuple[int, ...],
) -> None:
    made = ladder(max_length, divisor).within_budget(rungs, budget)
    assert (made.lengths, made.trials) == (lengths, trials)
    assert (made.max_length, made.first_trials) == (lengths[-1], trials[0])


@pytest.mark.parametrize(
    ("max_length", "divisor", "rungs", "count", "lengths", "trials"),
    [
        # 9/9, 9/3, 9/1; 10, 10/3 = 3.3, 10/9 = 1.1
        (9, 3, 3, 10, (1, 3, 9), (10, 3, 1)),
        # 2, 2/3, 2/9: one at least
        (9, 3, 3, 2, (1, 3, 9), (2, 1, 1)),
        # c = 6.25, 2.5, 1: 10/c = 1.6, 4, 10; 20, 20/2.5 = 8, 20/6.25 = 3.2
        (10, 2.5, 3, 20, (1, 4, 10), (20, 8, 3)),
        # 1 at least, and longer than the one before: 2/64, 2/16, 2/4, 2
        (2, 4, 4, 5, (1, 2, 3, 4), (5, 1, 1, 1)),
        (7, 4, 1, 5, (7,), (5,)),
    ],
)
def test_a_number_of_trials_is_halved_from_rung_to_rung(
    max_length: int,
    divisor: float,
    rungs: int,
    count: int,
    lengths: tuple[int, ...],
    trials: tuple[int, ...],
) -> None:
    made = ladder(max_length, divisor).with_trials(rungs, count)
    assert (made.lengths, made.trials) == (lengths, trials)


def test_a_divisor_whose_powers_no_float_holds_makes_rungs_all_the_same() -> None:
    # 1e10^99 is beyond every float. c = 1e10, 1e0 in the last two rungs, and 100/c = 0 but for the
    # last one: lengths of 1 to 99, and 100.
    made = ladder(100, 1e10).within_budget(100, 500)
    assert made.lengths == tuple(range(1, 101))
    assert made.trials[0] == 500
    assert ladder(100, 1e10).with_trials(100, 7).trials == (7, *(1,) * 99)


def test_all_trials_are_created_at_once() -> None:
    search = driven(plan(4, 2, 1))
    assert search.first.created == 4
    assert {trial: now.length for trial, now in search.trials.items()} == dict.fromkeys(range(4), 1)


def test_a_trial_goes_on_when_no_result_to_come_can_take_its_place() -> None:
    search = driven(plan(4, 2, 1))
    # 2 of 4 stay behind: after n results n - 2 are sure to be among the best 2
    assert search.results({0: 0.4, 1: 0.1}) == NOTHING
    assert search.result(2, 0.3) == trains(1, 3)
    # the newcomer is the second; all are in, so 0 and 2 stay behind
    assert search.result(3, 0.2) == trains(3, 3, closes=(0, 2))
    # 1 of 2 stays behind, whichever comes first
    assert search.result(3, 0.5) == NOTHING
    assert search.result(1, 0.6) == trains(3, 9, closes=(1,))
    assert search.result(3, 0.7) == closes(3)
    for trial in range(4):
        search.ended(trial)
    assert search.shutdowns == [Shutdown(failure=False)]


@pytest.mark.parametrize("smaller_is_better", [True, False])
def test_the_same_trials_go_on_whatever_the_order_of_their_results(
    smaller_is_better: bool,
) -> None:
    metrics = {0: 0.5, 1: -3.0, 2: 7.0, 3: 0.25, 4: 0.0}
    ranked = sorted(metrics, key=lambda trial: metrics[trial], reverse=not smaller_is_better)
    for order in permutations(metrics):
        search = driven(plan(5, 2, smaller_is_better=smaller_is_better))
        asked = [search.result(trial, metrics[trial]) for trial in order]
        assert sorted(trial for one in asked for trial in one.trains) == sorted(ranked[:2])
        assert [len(one.trains) for one in asked] == [0, 0, 0, 1, 1]
        assert sorted(asked[-1].closes) == sorted(ranked[2:])


def test_of_equal_results_the_first_goes_on() -> None:
    search = driven(plan(4, 2))
    assert search.results({2: 1.0, 0: 1.0}) == NOTHING
    assert search.result(3, 1.0) == trains(2, 3)
    # after its equals 1 would be the fourth: the second one goes on
    assert search.result(1, 1.0) == trains(0, 3, closes=(1, 3))


def test_where_all_go_on_none_waits() -> None:
    search = driven(plan(2, 2))
    assert search.result(1, 5.0) == trains(1, 3)
    assert search.result(0, 9.0) == trains(0, 3)


def test_a_repeated_report_of_an_earlier_rung_says_nothing_new() -> None:
    search = driven(plan(2, 2, 1))
    search.result(0, 0.5)
    before = search.state.method
    assert search.told(TrialReached(0, 1, 0.5)) == NOTHING
    assert search.state.method == before


@pytest.mark.parametrize("smaller_is_better", [True, False])
@pytest.mark.parametrize("reason", list(ExitReason))
def test_an_early_exit_is_the_worst_result_and_is_not_replaced(
    reason: ExitReason, smaller_is_better: bool
) -> None:
    search = driven(plan(3, 1, smaller_is_better=smaller_is_better, rules=LENGTH_ERA))
    worst = 1e308 if smaller_is_better else -1e308
    assert search.exited(0, reason) == NOTHING
    assert search.result(1, worst) == NOTHING
    # 1 is better than 0, which is not closed: it ended
    assert search.result(2, worst) == trains(1, 3, closes=(2,))


def test_a_trial_that_exits_while_it_waits_has_its_result_already() -> None:
    search = driven(plan(3, 1))
    search.result(0, 0.5)
    assert search.exited(0) == NOTHING
    # were it counted twice, 0.7 would be the third of three
    assert search.result(1, 0.7) == NOTHING
    assert search.result(2, 0.6) == closes(1, 2)


def test_a_trial_that_exited_passes_through_the_rungs_it_gets_into() -> None:
    search = driven(plan(3, 2, 2, 1))
    assert search.result(0, 0.1) == NOTHING
    search.exited(0)
    # 0 is the first of those that go on from the first rung and from the second, which all leave;
    # in the third rung it waits with the worst result
    assert search.result(1, 0.3) == NOTHING
    assert search.result(2, 0.2) == trains(2, 3, closes=(1,))
    assert search.result(2, 0.2) == trains(2, 9)
    # it is left behind there, but not closed: it ended
    assert search.result(2, 99.0) == trains(2, 27)
    assert search.result(2, 99.0) == closes(2)


def test_an_exit_that_fills_a_rung_fills_those_above_it() -> None:
    search = driven(plan(2, 2, 1))
    # nobody stays behind in the first rung: 0 passes to the second one with the worst result
    assert search.exited(0) == NOTHING
    # so does 1, after its equal; 0 is the best then, and passes through the last rung too
    assert search.exited(1) == NOTHING
    assert search.shutdowns == [Shutdown(failure=True)]


def test_an_exit_after_a_promotion_counts_in_the_new_rung() -> None:
    search = driven(plan(2, 2, 1))
    search.results({0: 0.1, 1: 0.2})
    assert search.exited(0) == NOTHING
    assert search.result(1, 99.0) == trains(1, 9)
    assert search.exited(1) == NOTHING
    assert search.shutdowns == [Shutdown(failure=True)]


def test_an_exit_can_be_what_promotes_another_trial() -> None:
    search = driven(plan(2, 1))
    assert search.result(0, 0.5) == NOTHING
    assert search.exited(1) == trains(0, 3)


def test_a_trial_that_exits_after_it_was_closed_changes_nothing() -> None:
    search = driven(plan(2, 1))
    search.results({0: 0.5, 1: 0.6})
    assert search.exited(1) == NOTHING
    assert search.result(0, 0.5) == closes(0)
    assert search.exited(0) == NOTHING
    # every trial exited early, which fails a search of the step era
    assert search.shutdowns == [Shutdown(failure=True)]


@pytest.mark.parametrize(
    ("rules", "work", "shares"),
    [
        # (1 + 1)*2 + (2 + 1)*1 = 7: a step, its validation, the other's, 2 steps and a validation
        (STEP_ERA, 7, [1, 2, 4, 6, 7]),
        # 1*2 + 2*1 = 4
        (LENGTH_ERA, 4, [1, 1, 2, 4, 4]),
    ],
)
def test_progress_counts_steps_and_validations_or_else_units(
    rules: Rules, work: int, shares: list[int]
) -> None:
    search = driven(plan(2, 1, rules=rules))
    seen: list[float] = []

    def trained(trial: int, units: float) -> None:
        search.told(TrialProgressed(trial, units))

    trained(0, 1.0)
    seen.append(search.progress)
    search.result(0, 0.5)
    seen.append(search.progress)
    trained(1, 1.0)
    search.result(1, 0.6)
    seen.append(search.progress)
    trained(0, 2.0)
    seen.append(search.progress)
    search.result(0, 0.5)
    seen.append(search.progress)
    assert seen == [share / work for share in shares]


def test_progress_is_the_mean_over_brackets_and_1_at_the_end() -> None:
    # steps and validations: (1 + 1)*1 of the first bracket, (1 + 1)*2 of the second
    search = driven(plan(1), plan(2))
    search.told(TrialProgressed(0, 1.0))
    search.told(TrialProgressed(2, 1.0))
    assert search.progress == (1 / 2 + 1 / 4) / 2
    for trial in range(3):
        search.exited(trial)
    assert search.progress == 1.0


def test_a_bracket_without_trials_does_not_keep_a_search_from_its_end() -> None:
    search = driven(plan(0, 1, 1), plan(2, 1), plan(0))
    assert search.first.created == 2
    assert search.results({0: 0.2, 1: 0.1}) == trains(1, 3, closes=(0,))
    assert search.result(1, 0.1) == closes(1)
    search.ended(0)
    assert not search.shutdowns
    search.ended(1)
    assert search.shutdowns == [Shutdown(failure=False)]


@pytest.mark.parametrize("brackets", [[plan(0, 1)], [plan(0, 1), plan(0, 1)]])
def test_a_search_without_trials_fails_at_once(brackets: Iterable[SyncHalvingPlan]) -> None:
    assert driven(*brackets).shutdowns == [Shutdown(failure=True)]


def test_many_trials_are_closed_a_few_at_a_time_in_few_and_small_parts() -> None:
    count, create_max = 5_000, 48
    search, generator, parts = SearchPlan(plan(count, 1), SPACE, 7), Generator.seeded(7), Kept()
    step = begin(search, parts)
    while step.more:
        step = expand(search, step.state, generator, create_max, parts)
    for trial in range(count):
        event = TrialReached(trial, 1, float(-trial))
        parts.written.clear()
        step = handle(search, step.state, generator, event, create_max, parts)
        assert len(set(parts.written)) <= 10
    closed = [op.trial for op in step.operations if isinstance(op, Close)]
    while step.more:
        parts.written.clear()
        step = expand(search, step.state, generator, create_max, parts)
        assert len(step.operations) <= create_max
        assert len(set(parts.written)) <= 2
        closed += [op.trial for op in step.operations if isinstance(op, Close)]
    # the last one was the best
    assert closed == list(range(count - 1))
    assert max(map(len, parts.pieces.values())) <= 300


def test_a_trial_that_exits_before_its_turn_to_be_closed_is_not_closed() -> None:
    search, generator, parts = SearchPlan(plan(3, 1), SPACE, 7), Generator.seeded(7), Kept()
    step = begin(search, parts)
    step = expand(search, step.state, generator, 9, parts)
    for trial in range(3):
        event = TrialReached(trial, 1, float(trial))
        step = handle(search, step.state, generator, event, 1, parts)
    # one at a time: 2 is still to be closed
    assert step.operations == (TrainTo(0, 3), Close(1))
    exited = TrialExited(2, ExitReason.ERRORED, 1.0, 1)
    step = handle(search, step.state, generator, exited, 1, parts)
    assert (step.operations, step.more) == ((), False)
