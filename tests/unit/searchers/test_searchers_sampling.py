import pytest

from control_plane.searchers.era_rules import LENGTH_ERA, STEP_ERA, SearchRules
from control_plane.searchers.method import (
    Create,
    Event,
    ExitReason,
    MethodStep,
    Tally,
    TrialClosed,
    TrialExitedEarly,
    TrialLengthReached,
)
from control_plane.searchers.methods.grid import GridPlan, GridSearch
from control_plane.searchers.methods.random import RandomPlan, RandomSearch, RandomState
from control_plane.searchers.methods.single import SinglePlan, single_search

INVALID = [ExitReason.INVALID_HP, ExitReason.INIT_INVALID_HP]
VALID = [reason for reason in ExitReason if reason not in INVALID]
ENDS: list[Event] = [
    TrialClosed(0, 5.0),
    *(TrialExitedEarly(0, reason, 5.0) for reason in ExitReason),
]


def sampled_create(count: int, length: int) -> Create:
    return Create(count, "Sampled", first_point=0, length=length, closed=True)


def random_search(trials: int, concurrent: int, rules: SearchRules = LENGTH_ERA) -> RandomSearch:
    return RandomSearch(RandomPlan(9, trials, concurrent, rules))


def grid_search(points: int, concurrent: int, rules: SearchRules = LENGTH_ERA) -> GridSearch:
    return GridSearch(GridPlan(9, concurrent, rules), points)


@pytest.mark.parametrize(
    ("trials", "concurrent", "rules", "expected"),
    [
        (20, 16, LENGTH_ERA, 16),
        (5, 16, LENGTH_ERA, 5),
        (20, 0, LENGTH_ERA, 20),
        (20, 16, STEP_ERA, 20),
    ],
)
def test_random_creates_first_trials_up_to_limit(
    trials: int, concurrent: int, rules: SearchRules, expected: int
) -> None:
    step = random_search(trials, concurrent, rules).first_step()
    assert step.operations == (sampled_create(expected, 9),)


def test_random_creates_trial_for_each_closed_trial_up_to_max_trials() -> None:
    search = random_search(3, 2)
    state = search.first_step().state
    first = search.on_event(state, TrialClosed(0, 9.0))
    assert first.operations == (sampled_create(1, 9),)
    assert search.on_event(first.state, TrialClosed(1, 9.0)) == MethodStep(first.state)


@pytest.mark.parametrize("reason", VALID)
def test_random_creates_trial_after_early_exit(reason: ExitReason) -> None:
    search = random_search(3, 2)
    step = search.on_event(search.first_step().state, TrialExitedEarly(1, reason, 4.0))
    assert (step.state.counted, step.operations) == (3, (sampled_create(1, 9),))


@pytest.mark.parametrize("reason", INVALID)
@pytest.mark.parametrize("counted", [2, 3])
def test_random_replaces_invalid_trial_beyond_max_trials(reason: ExitReason, counted: int) -> None:
    step = random_search(3, 2).on_event(RandomState(counted), TrialExitedEarly(1, reason, 0.0))
    assert (step.state.counted, step.operations) == (counted, (sampled_create(1, 9),))


@pytest.mark.parametrize("event", ENDS)
@pytest.mark.parametrize("reaches", [True, False])
def test_step_era_random_creates_no_trials_after_start(event: Event, reaches: bool) -> None:
    search = random_search(3, 2, STEP_ERA)
    state = search.first_step().state
    answer = search.on_event(state, TrialLengthReached(0, 9, 0.1) if reaches else event)
    assert answer == MethodStep(state)


@pytest.mark.parametrize("rules", [STEP_ERA, LENGTH_ERA])
@pytest.mark.parametrize("event", ENDS)
def test_single_creates_only_a_single_trial(rules: SearchRules, event: Event) -> None:
    search = single_search(SinglePlan(7, rules))
    step = search.first_step()
    assert step.operations == (sampled_create(1, 7),)
    assert search.on_event(step.state, event) == MethodStep(step.state)


def test_length_era_grid_starts_at_last_point() -> None:
    search = grid_search(4, 3)
    step = search.first_step()
    # points 3, 2, 1 first, then 0
    assert step.operations == (Create(3, "FromGrid", 3, 9, closed=True, point_step=-1),)
    step = search.on_event(step.state, TrialClosed(0, 9.0))
    assert step.operations == (Create(1, "FromGrid", 0, 9, closed=True, point_step=-1),)
    assert search.on_event(step.state, TrialClosed(1, 9.0)) == MethodStep(step.state)


@pytest.mark.parametrize("reason", list(ExitReason))
def test_length_era_grid_creates_next_point_after_any_exit(reason: ExitReason) -> None:
    search = grid_search(4, 2)
    step = search.on_event(search.first_step().state, TrialExitedEarly(0, reason, 1.0))
    assert step.operations == (Create(1, "FromGrid", 1, 9, closed=True, point_step=-1),)


def test_step_era_grid_creates_all_points_from_first() -> None:
    search = grid_search(40, 3, STEP_ERA)
    step = search.first_step()
    assert step.operations == (Create(40, "FromGrid", 0, 9, closed=True),)
    assert search.on_event(step.state, ENDS[0]) == MethodStep(step.state)


@pytest.mark.parametrize(
    ("tally", "expected"),
    [
        # (steps + validations) / ((9 + 1) * 4): nothing, then 6 steps, then 2 trials of 9 + 1
        (Tally(4, 4), 0.0),
        (Tally(4, 4, units=6.0, open_units=6.0), 6 / 40),
        (Tally(4, 4, closed=2, reached=2, units=18.0), 20 / 40),
        # the 5 steps of an exited trial count: 9 + 1 + 5
        (Tally(4, 4, closed=2, exited=1, errored=1, reached=1, units=14.0), 15 / 40),
    ],
)
def test_step_era_progress_counts_workloads(tally: Tally, expected: float) -> None:
    search = random_search(4, 0, STEP_ERA)
    assert search.progress(search.first_step().state, tally) == expected
    grid = grid_search(4, 0, STEP_ERA)
    assert grid.progress(grid.first_step().state, tally) == expected


@pytest.mark.parametrize(
    ("tally", "expected"),
    [
        # (9 per closed trial + units of open ones) / (9 * 4)
        (Tally(2, 2), 0.0),
        (Tally(2, 2, units=4.5, open_units=4.5), 4.5 / 36),
        (Tally(3, 3, closed=1, reached=1, units=13.5, open_units=4.5), 13.5 / 36),
        # an errored trial counts in full, an invalid trial not at all
        (Tally(3, 3, closed=1, exited=1, errored=1, units=2.0), 9 / 36),
        (Tally(3, 3, closed=1, exited=1, invalid=1, units=2.0), 0.0),
    ],
)
def test_length_era_progress_counts_units(tally: Tally, expected: float) -> None:
    search = random_search(4, 2)
    assert search.progress(search.first_step().state, tally) == expected
    grid = grid_search(4, 2)
    assert grid.progress(grid.first_step().state, tally) == expected


def test_search_without_trials_has_progress_0() -> None:
    grid = grid_search(0, 16)
    assert grid.progress(grid.first_step().state, Tally()) == 0.0
