"""Searches without a length: the training code ends each trial and reports the completed share."""

import pytest

from control_plane.searchers.era_rules import LENGTH_ERA
from control_plane.searchers.method import (
    ENDLESS,
    ExitReason,
    Shutdown,
    TrialClosed,
    TrialExitedEarly,
)
from control_plane.searchers.methods.random import RandomPlan
from tests.unit.searchers.driven_search import DrivenSearch


@pytest.fixture
def search() -> DrivenSearch:
    """Return a search with three trials, two concurrent."""
    return DrivenSearch(RandomPlan(ENDLESS, 3, 2, LENGTH_ERA))


def test_trials_train_without_length_limit(search: DrivenSearch) -> None:
    assert {(one.length, one.closed) for one in search.created} == {(ENDLESS, True)}
    assert len(search.created) == 2
    for trial in range(3):
        assert search.shutdowns == []
        search.send_event(TrialClosed(trial, 0.0))
    assert search.shutdowns == [Shutdown(failure=False)]


def test_progress_is_mean_of_created_trials(search: DrivenSearch) -> None:
    assert search.progress == 0.0
    search.report_progress(0, 0.5)
    assert search.progress == 0.25  # (0.5 + 0) / 2
    search.report_progress(1, 0.2)
    assert search.progress == pytest.approx(0.35)  # (0.5 + 0.2) / 2
    search.send_event(TrialClosed(0, 0.5))
    # Trial 2 was created: (1 + 0.2 + 0) / 3.
    assert search.progress == pytest.approx(0.4)
    search.send_event(TrialExitedEarly(1, ExitReason.ERRORED, 0.2))
    assert search.progress == pytest.approx(2 / 3)


def test_invalid_trial_does_not_count_in_progress(search: DrivenSearch) -> None:
    search.report_progress(1, 0.5)
    search.send_event(TrialExitedEarly(0, ExitReason.INVALID_HP, 0.0))
    # The replacement was created: (0.5 + 0) / 2.
    assert search.progress == 0.25
