"""Searches that are continued with reopened trials: the tally and the operations."""

import pytest

from control_plane.searchers.era_rules import LENGTH_ERA, STEP_ERA
from control_plane.searchers.method import (
    CreateTrial,
    ExitReason,
    MethodPlan,
    Shutdown,
    TrialClosed,
    TrialExitedEarly,
    TrialProgressed,
)
from control_plane.searchers.methods.grid import GridPlan
from control_plane.searchers.methods.random import RandomPlan
from control_plane.searchers.methods.single import SinglePlan
from control_plane.searchers.randomness import Generator
from control_plane.searchers.search import (
    ReopenedTrial,
    SearchPlan,
    SearchState,
    begin_search,
    completed_share,
    count_event,
    expand_creates,
    handle_event,
    reopen_trials,
)
from control_plane.searchers.space import Double, Group

SPACE = Group({"lr": Double(0.1, 1.0, count=5)})
CANCELED, ERRORED = ExitReason.USER_CANCELED, ExitReason.ERRORED


class Search:
    """A search whose first trials are created."""

    def __init__(self, method: MethodPlan) -> None:
        self.plan = SearchPlan(method, SPACE, 7)
        self.generator = Generator.from_seed(7)
        self.state: SearchState = begin_search(self.plan).state
        self.expand_all()

    def expand_all(self) -> list[int]:
        step = expand_creates(self.plan, self.state, self.generator, 100)
        self.state = step.state
        return [op.trial for op in step.operations if isinstance(op, CreateTrial)]

    def exit_trial(self, trial: int, reason: ExitReason, units: float = 0.0) -> None:
        event = TrialExitedEarly(trial, reason, units)
        self.state = handle_event(self.plan, self.state, self.generator, event, 100).state

    def count_events(self, *events: TrialExitedEarly | TrialClosed | TrialProgressed) -> None:
        for event in events:
            self.state = count_event(self.state, event)

    def reopen_trials(self, *trials: ReopenedTrial, lengthened: bool = False) -> None:
        self.state = reopen_trials(self.plan, self.state, trials, lengthened=lengthened).state


def test_counted_event_returns_no_operations() -> None:
    search = Search(RandomPlan(100, 5, 2, LENGTH_ERA))
    search.count_events(TrialProgressed(0, 30.0), TrialExitedEarly(0, CANCELED, 30.0))
    tally = search.state.tally
    assert (tally.requested, tally.created, tally.closed, tally.exited) == (2, 2, 1, 1)
    assert (tally.units, tally.open_units) == (30.0, 0.0)
    assert search.state.backlog == ()


def test_event_of_unknown_trial_is_not_counted() -> None:
    search = Search(RandomPlan(100, 5, 2, LENGTH_ERA))
    before = search.state
    search.count_events(TrialExitedEarly(7, CANCELED, 0.0))
    assert search.state == before


def test_failed_search_can_be_reopened() -> None:
    search = Search(RandomPlan(100, 2, 0, LENGTH_ERA))
    search.state = count_event(search.state, TrialProgressed(1, 60.0))
    search.exit_trial(0, ERRORED)
    search.exit_trial(1, ERRORED, 60.0)
    assert search.state.shutdown
    search.reopen_trials(ReopenedTrial(ERRORED, 0.0), ReopenedTrial(ERRORED, 60.0))
    tally = search.state.tally
    assert not search.state.shutdown
    assert (tally.closed, tally.exited, tally.errored, tally.open_units) == (0, 0, 0, 60.0)
    # 60 of 2 * 100.
    assert completed_share(search.plan, search.state) == pytest.approx(0.3)


def test_search_without_work_is_shut_down_again() -> None:
    search = Search(SinglePlan(100, LENGTH_ERA))
    step = handle_event(search.plan, search.state, search.generator, TrialClosed(0, 100.0), 100)
    again = reopen_trials(search.plan, step.state, ())
    assert again.operations == (Shutdown(failure=False),)
    assert again.state.shutdown
    assert not again.more


def test_lengthened_search_resets_reached_count() -> None:
    search = Search(SinglePlan(4, STEP_ERA))
    search.exit_trial(0, ERRORED, 0.0)
    longer = SearchPlan(SinglePlan(9, STEP_ERA), SPACE, 7)
    step = reopen_trials(longer, search.state, [ReopenedTrial(ERRORED, 4.0)], lengthened=True)
    assert step.state.tally.reached == 0


def test_reopening_fills_vacant_places() -> None:
    # 5 trials, 2 concurrent. Trial 0 closed without a call of the method, and trial 1 is reopened:
    # one more trial is created.
    search = Search(RandomPlan(100, 5, 2, LENGTH_ERA))
    search.count_events(TrialClosed(0, 0.0), TrialExitedEarly(1, CANCELED, 0.0))
    search.reopen_trials(ReopenedTrial(CANCELED, 0.0))
    assert search.expand_all() == [2]


def test_reopened_trials_above_limit_prevent_new_trials() -> None:
    # Trials 2 and 3 were created after trials 0 and 1 were canceled.
    search = Search(RandomPlan(100, 5, 2, LENGTH_ERA))
    search.exit_trial(0, CANCELED)
    search.exit_trial(1, CANCELED)
    search.count_events(TrialExitedEarly(2, CANCELED, 0.0), TrialExitedEarly(3, CANCELED, 0.0))
    search.reopen_trials(*[ReopenedTrial(CANCELED, 0.0)] * 4)
    assert search.expand_all() == []


@pytest.mark.parametrize(("rules", "made"), [(LENGTH_ERA, [2]), (STEP_ERA, [])])
def test_counted_invalid_trial_is_replaced_only_in_length_era(
    rules: object, made: list[int]
) -> None:
    assert rules in (LENGTH_ERA, STEP_ERA)
    search = Search(RandomPlan(100, 2, 0, LENGTH_ERA if rules is LENGTH_ERA else STEP_ERA))
    search.count_events(
        TrialExitedEarly(0, ExitReason.INVALID_HP, 0.0), TrialExitedEarly(1, CANCELED, 0.0)
    )
    search.reopen_trials(ReopenedTrial(CANCELED, 0.0))
    assert search.expand_all() == made


def test_replaced_invalid_trial_is_not_replaced_again() -> None:
    search = Search(RandomPlan(100, 2, 0, LENGTH_ERA))
    search.exit_trial(0, ExitReason.INVALID_HP)
    assert search.state.tally.created == 3
    search.count_events(TrialExitedEarly(1, CANCELED, 0.0), TrialExitedEarly(2, CANCELED, 0.0))
    search.reopen_trials(ReopenedTrial(CANCELED, 0.0), ReopenedTrial(CANCELED, 0.0))
    assert search.expand_all() == []


def test_grid_continues_with_next_points() -> None:
    # 5 points, 2 concurrent. One of two trials is reopened, so one more point is created.
    search = Search(GridPlan(100, 2, LENGTH_ERA))
    search.count_events(TrialClosed(0, 0.0), TrialExitedEarly(1, CANCELED, 0.0))
    search.reopen_trials(ReopenedTrial(CANCELED, 0.0))
    assert search.expand_all() == [2]
    assert search.state.tally.requested == 3


def test_backlog_is_kept_while_search_is_stopped() -> None:
    plan = SearchPlan(RandomPlan(100, 5, 0, LENGTH_ERA), SPACE, 7)
    generator = Generator.from_seed(7)
    state = expand_creates(plan, begin_search(plan).state, generator, 2).state
    for trial in range(2):
        state = count_event(state, TrialExitedEarly(trial, CANCELED, 0.0))
    step = reopen_trials(plan, state, [ReopenedTrial(CANCELED, 0.0)] * 2)
    assert step.more
    created = expand_creates(plan, step.state, generator, 100).operations
    assert [op.trial for op in created if isinstance(op, CreateTrial)] == [2, 3, 4]


def test_counts_stay_nonnegative_if_end_was_not_counted() -> None:
    search = Search(RandomPlan(100, 2, 0, LENGTH_ERA))
    search.reopen_trials(ReopenedTrial(ERRORED, 0.0), ReopenedTrial(CANCELED, 0.0))
    tally = search.state.tally
    assert (tally.closed, tally.exited, tally.errored) == (0, 0, 0)
