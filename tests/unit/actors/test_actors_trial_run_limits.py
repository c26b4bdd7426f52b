"""The end of a run by its limits: `max_duration`, and an idle run that the agent has ended."""

from __future__ import annotations

from dataclasses import replace

import pytest

from control_plane.actors.messages.experiment import TrialEnded
from control_plane.actors.messages.trial import (
    AllocationExited,
    AllocationLost,
    ContainerStateReported,
    DurationExceeded,
    SlotsAssigned,
    TrialKillRequested,
)
from control_plane.actors.records import Place, Status
from control_plane.actors.step import SetTimer
from control_plane.actors.trial.state import DesiredState
from control_plane.searchers.method import ENDLESS
from tests.unit.actors.actor_harness import ActorHarness
from tests.unit.actors.sample_messages import trial_created, trial_settings

HOUR_MS = 3_600_000
REASON = "it has come to its max_duration"
PLACED = SlotsAssigned(1, (Place("a", (0,)),))


def limited_run(*, max_duration_ms: int | None = HOUR_MS) -> ActorHarness:
    actor = ActorHarness("trial#4")
    settings = replace(
        trial_settings(max_restarts=0, slots=1), runs_once=True, max_duration_ms=max_duration_ms
    )
    actor.deliver(trial_created(length=ENDLESS, of=settings))
    return actor


def running() -> ActorHarness:
    actor = limited_run()
    actor.deliver(PLACED, ContainerStateReported(1, "RUNNING"))
    return actor


def end_of(actor: ActorHarness) -> tuple[Status, str]:
    """Return the state and the message of the trial, which the experiment was told."""
    ended = actor.messages_to("experiment#1")[-1]
    assert isinstance(ended, TrialEnded)
    assert (ended.status, ended.message) == (actor.state.status, actor.state.message)
    return actor.state.status, actor.state.message


def test_duration_counts_from_the_assignment_of_slots() -> None:
    actor = limited_run()
    assert actor.timers == []
    actor.deliver(PLACED)
    assert actor.timers == [SetTimer(actor.now_ms + HOUR_MS, DurationExceeded(1))]
    unlimited = limited_run(max_duration_ms=None)
    unlimited.deliver(PLACED)
    assert unlimited.timers == []


def test_long_run_ends_regularly_with_the_reason() -> None:
    actor = running()
    actor.deliver(DurationExceeded(1), DurationExceeded(1))
    allocation = actor.state.allocation
    assert (allocation.desired_state, allocation.desired_state_reason) == (
        DesiredState.KILL,
        REASON,
    )
    actor.deliver(AllocationExited(1, "killed", -15))
    assert end_of(actor) == (Status.COMPLETED, REASON)


def test_timer_of_another_epoch_or_after_the_end_changes_nothing() -> None:
    actor = running()
    actor.deliver(DurationExceeded(2))
    assert actor.state.allocation.desired_state is DesiredState.RUN
    actor.deliver(AllocationExited(1, "completed", 0), DurationExceeded(1))
    assert end_of(actor) == (Status.COMPLETED, "")


def test_killed_run_stays_canceled() -> None:
    actor = running()
    actor.deliver(TrialKillRequested(), DurationExceeded(1), AllocationExited(1, "killed", -15))
    assert end_of(actor)[0] is Status.CANCELED


def test_lost_machine_is_an_error_also_at_the_limit() -> None:
    actor = running()
    actor.deliver(DurationExceeded(1), AllocationLost(1, "no word from agent a"))
    status, message = end_of(actor)
    assert status is Status.ERROR
    assert message.startswith("lost: no word from agent a")


@pytest.mark.parametrize("code", [None, 0, -15])
def test_idle_run_ends_regularly_with_the_agents_reason(code: int | None) -> None:
    actor = running()
    actor.deliver(AllocationExited(1, "idle", code, message="it was idle for 2 h (idle_timeout)"))
    assert end_of(actor) == (Status.COMPLETED, "it was idle for 2 h (idle_timeout)")
