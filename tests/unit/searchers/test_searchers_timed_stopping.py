"""Asynchronous halving with a time metric, with expected values computed by hand."""

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
    """A search. The test sends the reports of the trials."""

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
        """Report a validation; return the stopped trials and the number of created trials."""
        operations = self.send_event(TrialValidationReported(trial, time, metric))
        stops = [op.trial for op in operations if isinstance(op, Stop)]
        created = sum(isinstance(op, CreateTrial) for op in operations)
        assert len(stops) + created == len(operations)
        return stops, created

    @property
    def progress(self) -> float:
        return completed_share(self.plan, self.state)


def test_trials_train_until_search_stops_trials() -> None:
    created = [op for op in Search(PLAN).first if isinstance(op, CreateTrial)]
    assert len(created) == 9
    assert {(one.length, one.closed) for one in created} == {(ENDLESS, False)}


def test_reports_before_time_of_rung_have_no_effect() -> None:
    search = Search(PLAN)
    assert search.report_validation(0, 0.99, 5.0) == ([], 0)
    # The first result of the first rung: max(trunc(1/3), 1) = 1 and index 0: the trial continues.
    assert search.report_validation(0, 1.0, 5.0) == ([], 0)
    # The trial's rung is now the rung of time 3.
    assert search.report_validation(0, 2.5, 100.0) == ([], 0)


def test_report_stops_or_continues_trial() -> None:
    search = Search(PLAN)
    assert search.report_validation(0, 1, 10.0) == ([], 0)
    # n = 2 to 5 results: max(trunc(n/3), 1) = 1, and no new result is at index 0.
    for trial, metric in enumerate((20.0, 30.0, 40.0, 50.0), start=1):
        assert search.report_validation(trial, 1, metric) == ([trial], 1)
    # n = 6: 6/3 = 2, and 15 is at index 1 of 10 15 20 ...
    assert search.report_validation(5, 1, 15.0) == ([], 0)
    # n = 7: trunc(7/3) = 2, index 2 of 10 15 17 20 ...
    assert search.report_validation(6, 1, 17.0) == ([6], 1)


def test_report_may_pass_several_rungs() -> None:
    search = Search(PLAN)
    # At time 5, the trial passes the rungs 1 and 3, with the first result in both.
    assert search.report_validation(0, 5, 1.0) == ([], 0)
    # At time 20, the next trial passes the first rung, sorted before the equal result, and the
    # second: n = 2, max(trunc(2/3), 1) = 1, index 0 again. The trial stops in the last rung.
    assert search.report_validation(1, 20, 1.0) == ([1], 1)
    # 1.5 is at index 2 of three results in the first rung, and max(trunc(3/3), 1) = 1 continues.
    assert search.report_validation(2, 20, 1.5) == ([2], 1)


def test_trial_is_stopped_at_last_rung() -> None:
    search = Search(TWO_RUNGS)
    assert search.report_validation(0, 1, 1.0) == ([], 0)
    assert search.report_validation(0, 2, 0.1) == ([0], 1)
    assert search.report_validation(0, 3, 0.1) == ([], 0)


def test_repeated_report_has_no_effect() -> None:
    search = Search(TWO_RUNGS)
    assert search.report_validation(0, 1, 1.0) == ([], 0)
    # After a failure, the trial repeats the training.
    assert search.report_validation(0, 1, 1.0) == ([], 0)
    assert search.report_validation(1, 1, 2.0) == ([1], 1)
    assert search.report_validation(1, 1, 2.0) == ([], 0)


def test_larger_metric_is_better() -> None:
    search = Search(replace(TWO_RUNGS, smaller_is_better=False))
    assert search.report_validation(0, 1, 1.0) == ([], 0)
    # n = 2: 2/2 = 1 continues, the new result; n = 3: 1, and the new result is at index 1 of
    # -2 -1.5 -1.
    assert search.report_validation(1, 1, 2.0) == ([], 0)
    assert search.report_validation(2, 1, 1.5) == ([2], 1)


def test_early_exit_is_worst_result_and_creates_trial() -> None:
    search = Search(TWO_RUNGS)
    for trial in (0, 1):
        operations = search.send_event(TrialExitedEarly(trial, ExitReason.ERRORED, 0.0))
        assert [type(op) for op in operations] == [CreateTrial]
    # n = 3: max(trunc(3/2), 1) = 1, the new result; n = 4: 4/2 = 2, index 1 of 1 2 worst worst.
    assert search.report_validation(2, 1, 1.0) == ([], 0)
    assert search.report_validation(3, 1, 2.0) == ([], 0)


def test_invalid_trial_is_replaced_and_results_are_removed() -> None:
    search = Search(TWO_RUNGS)
    search.report_validation(0, 1, 1.0)
    operations = search.send_event(TrialExitedEarly(0, ExitReason.INVALID_HP, 0.0))
    assert [type(op) for op in operations] == [CreateTrial]
    # The rung is empty again, so the next result is the first.
    assert search.report_validation(1, 1, 1e300) == ([], 0)


def test_exit_after_stop_creates_no_trial() -> None:
    search = Search(TWO_RUNGS)
    search.report_validation(0, 1, 1.0)
    assert search.report_validation(1, 1, 2.0) == ([1], 1)
    assert search.send_event(TrialExitedEarly(1, ExitReason.USER_CANCELED, 0.0)) == ()


def test_normal_end_without_stop_creates_no_trial() -> None:
    search = Search(TWO_RUNGS)
    search.report_validation(0, 1, 1.0)
    assert search.send_event(TrialClosed(0, 1.0)) == ()


@pytest.mark.parametrize("max_trials", [1, 4])
def test_search_ends_after_max_trials_ended(max_trials: int) -> None:
    search = Search(replace(TWO_RUNGS, max_trials=max_trials, max_concurrent_trials=1))
    for trial in range(max_trials):
        more = trial + 1 < max_trials
        assert search.report_validation(trial, 2, 1.0) == ([trial], int(more))
        # The last trial fills rung 0. After that, progress is the share of ended trials.
        share = (trial + 1) / (1.2 * max_trials)
        assert search.progress == pytest.approx(share)
        ended = search.send_event(TrialClosed(trial, 2.0))
        assert ended == (() if more else (Shutdown(failure=False),))
    assert search.progress == 1.0


def test_timed_brackets_run_side_by_side() -> None:
    few, many = replace(TWO_RUNGS, max_concurrent_trials=2), replace(PLAN, max_concurrent_trials=1)
    search = Search(MultiBracketPlan((many, few)))
    # Trial 0 is in the bracket with three rungs, trials 1 and 2 in the bracket with two.
    assert search.report_validation(0, 9, 1.0) == ([0], 1)
    assert search.report_validation(1, 1, 1.0) == ([], 0)
    assert search.report_validation(2, 1, 3.0) == ([2], 1)
