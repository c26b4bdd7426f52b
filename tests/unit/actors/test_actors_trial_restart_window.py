"""The failures that count against `max_restarts`, with and without a `restart_window`."""

from __future__ import annotations

from dataclasses import replace

from control_plane.actors.messages.trial import (
    AllocationExited,
    ContainerStateReported,
    SlotsAssigned,
    TrialContinued,
)
from control_plane.actors.records import Place, Status
from tests.unit.actors.actor_harness import ActorHarness
from tests.unit.actors.sample_messages import trial_created, trial_settings

HOUR_MS = 3_600_000
DAY_MS = 24 * HOUR_MS


def trial(max_restarts: int, window_ms: int | None = DAY_MS) -> ActorHarness:
    actor = ActorHarness("trial#4")
    settings = trial_settings(max_restarts=max_restarts, slots=1)
    actor.deliver(trial_created(of=replace(settings, restart_window_ms=window_ms)))
    return actor


def fail(actor: ActorHarness, wait_ms: int = 0) -> None:
    actor.now_ms += wait_ms
    epoch = actor.state.epoch
    actor.deliver(
        SlotsAssigned(epoch, (Place("a", (0,)),)),
        ContainerStateReported(epoch, "RUNNING"),
        AllocationExited(epoch, "errored", 1, message="boom"),
    )


def test_failures_outside_the_window_do_not_count() -> None:
    actor = trial(max_restarts=1)
    for count in range(1, 11):
        fail(actor, 7 * DAY_MS)
        assert (actor.state.status, actor.state.restarts) == (Status.ACTIVE, count)
        assert "restart 1 of 1 within restart_window" in actor.reasons


def test_more_failures_than_max_restarts_within_the_window_end_the_trial() -> None:
    actor = trial(max_restarts=2)
    fail(actor)
    fail(actor, DAY_MS - HOUR_MS)
    fail(actor, HOUR_MS - 1)
    assert actor.state.status is Status.ERROR
    assert "it failed 3 times within restart_window; max_restarts is 2" in actor.reasons


def test_failure_as_long_ago_as_the_window_does_not_count() -> None:
    actor = trial(max_restarts=1)
    fail(actor)
    fail(actor, DAY_MS)
    assert actor.state.status is Status.ACTIVE
    assert actor.state.failure_times == (actor.now_ms,)


def test_failures_count_for_ever_without_a_window() -> None:
    actor = trial(max_restarts=1, window_ms=None)
    fail(actor)
    assert "restart 1 of 1" in actor.reasons
    fail(actor, 365 * DAY_MS)
    assert actor.state.status is Status.ERROR
    assert actor.state.failure_times == ()


def test_only_max_restarts_earlier_times_are_stored() -> None:
    actor = trial(max_restarts=3, window_ms=10 * DAY_MS)
    for _ in range(4):
        fail(actor, HOUR_MS)
    assert len(actor.state.failure_times) == 4
    assert actor.state.status is Status.ERROR


def test_time_of_a_fast_clock_leaves_the_window() -> None:
    actor = trial(max_restarts=2)
    fail(actor, 365 * DAY_MS)
    actor.now_ms -= 365 * DAY_MS
    fail(actor)
    # The first time moves to the second failure, and leaves the window with it.
    fail(actor, DAY_MS)
    assert actor.state.status is Status.ACTIVE
    assert actor.state.failure_times == (actor.now_ms,)


def test_no_restart_is_allowed_with_a_window_and_no_restarts() -> None:
    actor = trial(max_restarts=0)
    fail(actor)
    assert actor.state.status is Status.ERROR


def test_continuation_begins_without_failures() -> None:
    actor = trial(max_restarts=1)
    fail(actor)
    fail(actor)
    assert actor.state.status.is_final
    actor.deliver(TrialContinued(1, actor.state.settings))
    assert actor.state.failure_times == ()
    fail(actor)
    assert actor.state.status is Status.ACTIVE
