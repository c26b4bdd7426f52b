"""The `max_duration` of an experiment: from the first slots to the cancellation."""

from dataclasses import replace

import pytest

from control_plane.actors.messages.experiment import (
    CancelRequested,
    ContinueRequested,
    DurationEnded,
    PauseRequested,
    TrialEnded,
    TrialPlaced,
)
from control_plane.actors.messages.trial import ExperimentStatusChanged, SlotsAssigned
from control_plane.actors.records import Place, Status
from tests.unit.actors.actor_harness import START_MS, ActorHarness
from tests.unit.actors.sample_messages import experiment_submitted, trial_created, trial_settings

HOUR_MS = 3_600_000
LIMITED = replace(trial_settings(), experiment_duration_ms=HOUR_MS)


def experiment(duration_ms: int | None = HOUR_MS) -> ActorHarness:
    """Submit an experiment with one trial."""
    actor = ActorHarness("experiment#1")
    submitted = experiment_submitted()
    settings = replace(submitted.settings, experiment_duration_ms=duration_ms)
    actor.deliver(replace(submitted, settings=settings))
    return actor


def timers(actor: ActorHarness) -> list[tuple[int, int]]:
    """Return the due time and the run generation of each DurationEnded timer."""
    return [
        (timer.due_ms, timer.message.run_generation)
        for timer in actor.timers
        if isinstance(timer.message, DurationEnded)
    ]


def test_trial_announces_each_assignment_once() -> None:
    trial = ActorHarness("trial#5")
    trial.deliver(trial_created(of=LIMITED))
    trial.deliver(SlotsAssigned(1, (Place("a", (0,)),)))
    assert trial.all_messages(TrialPlaced) == [TrialPlaced(trial.state.number, 0, START_MS)]
    trial.deliver(SlotsAssigned(1, (Place("a", (0,)),)))
    assert len(trial.all_messages(TrialPlaced)) == 1


def test_trial_without_a_limit_announces_no_assignment() -> None:
    trial = ActorHarness("trial#5")
    trial.deliver(trial_created())
    trial.deliver(SlotsAssigned(1, (Place("a", (0,)),)))
    assert trial.all_messages(TrialPlaced) == []


def test_time_counts_from_the_first_slots() -> None:
    actor = experiment()
    assert timers(actor) == []
    actor.deliver(TrialPlaced(0, 0, 5_000))
    actor.deliver(TrialPlaced(0, 0, 9_000))
    assert actor.state.ends_ms == 5_000 + HOUR_MS
    assert timers(actor) == [(5_000 + HOUR_MS, 0)]


def test_placement_by_a_clock_ahead_counts_from_now() -> None:
    actor = experiment()
    actor.deliver(TrialPlaced(0, 0, START_MS + 24 * HOUR_MS))
    assert actor.state.ends_ms == START_MS + HOUR_MS


@pytest.mark.parametrize("is_paused", [False, True])
def test_experiment_at_the_limit_is_canceled(is_paused: bool) -> None:
    actor = experiment()
    actor.deliver(TrialPlaced(0, 0, 5_000))
    if is_paused:
        actor.deliver(PauseRequested())
    actor.deliver(DurationEnded(0))
    assert actor.state.status is Status.STOPPING_CANCELED
    assert "max_duration" in actor.state.message
    assert actor.all_messages(ExperimentStatusChanged)[-1].status is Status.STOPPING_CANCELED
    actor.deliver(TrialEnded(0, Status.CANCELED, ""))
    ended = actor.state
    assert ended.status is Status.CANCELED
    # The message explains the end.
    assert "detcloud experiment continue 1" in actor.state.message


def test_continued_experiment_has_the_whole_time_again() -> None:
    actor = experiment()
    actor.deliver(TrialPlaced(0, 0, 5_000))
    actor.deliver(DurationEnded(0), TrialEnded(0, Status.CANCELED, ""))
    actor.deliver(ContinueRequested())
    assert (actor.state.status, actor.state.ends_ms) == (Status.ACTIVE, None)
    # A late timer and a late announcement of the first run generation.
    actor.deliver(DurationEnded(0), TrialPlaced(0, 0, 5_000))
    assert (actor.state.status, actor.state.ends_ms) == (Status.ACTIVE, None)
    actor.now_ms = 2 * HOUR_MS
    actor.deliver(TrialPlaced(0, 1, 2 * HOUR_MS))
    assert timers(actor)[-1] == (3 * HOUR_MS, 1)


def test_ended_and_stopping_experiments_stay_unchanged() -> None:
    actor = experiment()
    actor.deliver(TrialPlaced(0, 0, 5_000), CancelRequested())
    before = actor.state
    actor.deliver(DurationEnded(0), TrialPlaced(0, 0, 9_000))
    assert actor.state == before
    actor.deliver(TrialEnded(0, Status.CANCELED, ""))
    before = actor.state
    actor.deliver(DurationEnded(0))
    assert actor.state == before


def test_experiment_without_a_limit_sets_no_timer() -> None:
    actor = experiment(None)
    actor.deliver(TrialPlaced(0, 0, 5_000))
    assert timers(actor) == []
    assert actor.state.ends_ms is None
