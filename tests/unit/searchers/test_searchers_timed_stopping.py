"""Halving by a time metric, on rungs that were worked out by hand."""

from dataclasses import replace

import pytest

from control_plane.searchers.blob_store import MemoryBlobStore
from control_plane.searchers.era_rules import LENGTH_ERA
from control_plane.searchers.halving.asynchronous import HalvingPlan
from control_plane.searchers.halving.multi_bracket import MultiBracketPlan
from control_plane.searchers.method import (
    ENDLESS,
    CreateTrial,
    Event,
    ExitReason,
    MethodPlan,
    Shutdown,
    Stop,
    TrialClosed,
    TrialExitedEarly,
    TrialValidationReported,
)
from control_plane.searchers.randomness import Generator
from control_plane.searchers.search import (
    SearchPlan,
    TrialOperation,
    begin_search,
    completed_share,
    expand_creates,
    handle_event,
)
from control_plane.searchers.space import Double, Group

# Times 9/9, 9/3, 9/1.
PLAN = HalvingPlan(9, 3, 3.0, 20, 9, True, LENGTH_ERA, stops=True, by_time=True)
# Times 2/2, 2/1.
TWO_RUNGS = replace(PLAN, max_length=2, num_rungs=2, divisor=2.0)


class Search:
    """A search whose trials report whatever a test says."""

    def __init__(self, method: MethodPlan) -> None:
        self.plan = SearchPlan(method, Group({"x": Double(0.0, 1.0)}), 7)
        self.blobs = MemoryBlobStore()
        self.generator = Generator.from_seed(7)
        begun = begin_search(self.plan, self.blobs)
        step = expand_creates(self.plan, begun.state, self.generator, 100, self.blobs)
        self.state, self.first = step.state, step.operations

    def send_event(self, event: Event) -> tuple[TrialOperation, ...]:
        step = handle_event(self.plan, self.state, self.generator, event, 100, self.blobs)
        self.state = step.state
        return step.operations

    def report_validation(self, trial: int, time: float, metric: float) -> tuple[list[int], int]:
        """The trials that a report stops, and how many it creates."""
        operations = self.send_event(TrialValidationReported(trial, time, metric))
        stops = [op.trial for op in operations if isinstance(op, Stop)]
        created = sum(isinstance(op, CreateTrial) for op in operations)
        assert len(stops) + created == len(operations)
        return stops, created

    @property
    def progress(self) -> float:
        return completed_share(self.plan, self.state)


def test_trials_train_until_they_are_stopped() -> None:
    created = [op for op in Search(PLAN).first if isinstance(op, CreateTrial)]
    assert len(created) == 9
    assert {(one.length, one.closed) for one in created} == {(ENDLESS, False)}


def test_reports_before_the_time_of_a_rung_mean_nothing() -> None:
    search = Search(PLAN)
    assert search.report_validation(0, 0.99, 5.0) == ([], 0)
    # Nobody is in the first rung: n = 1 after it, max(trunc(1/3), 1) = 1 and index 0: it goes on.
    assert search.report_validation(0, 1.0, 5.0) == ([], 0)
    # Its rung is that of 3 now.
    assert search.report_validation(0, 2.5, 100.0) == ([], 0)


def test_a_report_stops_its_trial_or_lets_it_train_on() -> None:
    search = Search(PLAN)
    assert search.report_validation(0, 1, 10.0) == ([], 0)
    # n = 2 to 5 after it: max(trunc(n/3), 1) = 1, and none of them is at index 0.
    for trial, metric in enumerate((20.0, 30.0, 40.0, 50.0), start=1):
        assert search.report_validation(trial, 1, metric) == ([trial], 1)
    # n = 6: 6/3 = 2, and 15 is at index 1 of 10 15 20 ...
    assert search.report_validation(5, 1, 15.0) == ([], 0)
    # n = 7: trunc(7/3) = 2, index 2 of 10 15 17 20 ...
    assert search.report_validation(6, 1, 17.0) == ([6], 1)


def test_one_report_passes_several_rungs() -> None:
    search = Search(PLAN)
    # At 5 it has come to 1 and to 3, the first in both.
    assert search.report_validation(0, 5, 1.0) == ([], 0)
    # At 20 the next one goes through the first rung, being before its equal, and in the second:
    # n = 2, max(trunc(2/3), 1) = 1, index 0 again; in the last rung it stops.
    assert search.report_validation(1, 20, 1.0) == ([1], 1)
    # 1.5 is at index 2 of the three in the first rung, of which max(trunc(3/3), 1) = 1 goes on.
    assert search.report_validation(2, 20, 1.5) == ([2], 1)


def test_a_trial_that_has_come_to_the_last_time_is_stopped() -> None:
    search = Search(TWO_RUNGS)
    assert search.report_validation(0, 1, 1.0) == ([], 0)
    assert search.report_validation(0, 2, 0.1) == ([0], 1)
    assert search.report_validation(0, 3, 0.1) == ([], 0)


def test_a_repeated_report_means_nothing() -> None:
    search = Search(TWO_RUNGS)
    assert search.report_validation(0, 1, 1.0) == ([], 0)
    # After a failure it trains that stretch again.
    assert search.report_validation(0, 1, 1.0) == ([], 0)
    assert search.report_validation(1, 1, 2.0) == ([1], 1)
    assert search.report_validation(1, 1, 2.0) == ([], 0)


def test_a_larger_metric_is_better_by_its_negative() -> None:
    search = Search(replace(TWO_RUNGS, smaller_is_better=False))
    assert search.report_validation(0, 1, 1.0) == ([], 0)
    # n = 2: 2/2 = 1 goes on, the newcomer; n = 3: 1, and -2 -1.5 -1 has it at index 1.
    assert search.report_validation(1, 1, 2.0) == ([], 0)
    assert search.report_validation(2, 1, 1.5) == ([2], 1)


def test_an_early_exit_counts_as_the_worst_and_makes_room_for_a_trial() -> None:
    search = Search(TWO_RUNGS)
    for trial in (0, 1):
        operations = search.send_event(TrialExitedEarly(trial, ExitReason.ERRORED, 0.0))
        assert [type(op) for op in operations] == [CreateTrial]
    # n = 3: max(trunc(3/2), 1) = 1, the newcomer; n = 4: 4/2 = 2, index 1 of 1 2 worst worst.
    assert search.report_validation(2, 1, 1.0) == ([], 0)
    assert search.report_validation(3, 1, 2.0) == ([], 0)


def test_refused_hyperparameters_are_replaced_and_their_results_forgotten() -> None:
    search = Search(TWO_RUNGS)
    search.report_validation(0, 1, 1.0)
    operations = search.send_event(TrialExitedEarly(0, ExitReason.INVALID_HP, 0.0))
    assert [type(op) for op in operations] == [CreateTrial]
    # It is the first of an empty rung again.
    assert search.report_validation(1, 1, 1e300) == ([], 0)


def test_a_trial_killed_after_it_was_stopped_creates_none() -> None:
    search = Search(TWO_RUNGS)
    search.report_validation(0, 1, 1.0)
    assert search.report_validation(1, 1, 2.0) == ([1], 1)
    assert search.send_event(TrialExitedEarly(1, ExitReason.USER_CANCELED, 0.0)) == ()


def test_training_code_that_ends_by_itself_creates_none() -> None:
    search = Search(TWO_RUNGS)
    search.report_validation(0, 1, 1.0)
    assert search.send_event(TrialClosed(0, 1.0)) == ()


@pytest.mark.parametrize("max_trials", [1, 4])
def test_the_search_ends_when_its_trials_have_and_no_more_are_allowed(max_trials: int) -> None:
    search = Search(replace(TWO_RUNGS, max_trials=max_trials, max_concurrent_trials=1))
    for trial in range(max_trials):
        more = trial + 1 < max_trials
        assert search.report_validation(trial, 2, 1.0) == ([trial], int(more))
        # Rung 0 is full with the last one: a share of the trials that ended from then on.
        share = (trial + 1) / (1.2 * max_trials)
        assert search.progress == pytest.approx(share)
        ended = search.send_event(TrialClosed(trial, 2.0))
        assert ended == (() if more else (Shutdown(failure=False),))
    assert search.progress == 1.0


def test_brackets_measured_by_time_go_side_by_side() -> None:
    few, many = replace(TWO_RUNGS, max_concurrent_trials=2), replace(PLAN, max_concurrent_trials=1)
    search = Search(MultiBracketPlan((many, few)))
    # Trial 0 is of the bracket of three rungs, 1 and 2 of that of two.
    assert search.report_validation(0, 9, 1.0) == ([0], 1)
    assert search.report_validation(1, 1, 1.0) == ([], 0)
    assert search.report_validation(2, 1, 3.0) == ([2], 1)
