"""The `max_trial_duration` of a trial: the time with slots over all runs."""

from __future__ import annotations

from dataclasses import replace

import pytest

from control_plane.actors.messages.experiment import TrialEnded
from control_plane.actors.messages.pool import SlotsRequested
from control_plane.actors.messages.trial import (
    AllocationExited,
    AllocationLost,
    ContainerStateReported,
    DurationExceeded,
    ExperimentStatusChanged,
    PreemptionRequested,
    SlotsAssigned,
    TrialContinued,
)
from control_plane.actors.records import Place, Status
from control_plane.actors.step import SetTimer
from control_plane.actors.trial.state import DesiredState
from control_plane.searchers.method import ExitReason
from tests.unit.actors.actor_harness import ActorHarness
from tests.unit.actors.sample_messages import trial_created, trial_settings

HOUR_MS = 3_600_000
LIMITED = replace(trial_settings(slots=1), trial_duration_ms=3 * HOUR_MS)
TEXT = (
    "trial 4 was canceled: it has come to its max_trial_duration; `detcloud experiment continue 1`"
    " continues for as long again"
)


def waiting_trial() -> ActorHarness:
    actor = ActorHarness("trial#4")
    actor.deliver(trial_created(of=LIMITED))
    return actor


def start_run(actor: ActorHarness, agent: str = "a") -> None:
    epoch = actor.state.epoch
    actor.deliver(
        SlotsAssigned(epoch, (Place(agent, (0,)),)), ContainerStateReported(epoch, "RUNNING")
    )


def running_trial() -> ActorHarness:
    actor = waiting_trial()
    start_run(actor)
    return actor


def let_time_pass(actor: ActorHarness, hours: int) -> None:
    actor.now_ms += hours * HOUR_MS


def preempt_and_exit(actor: ActorHarness) -> None:
    epoch = actor.state.epoch
    actor.deliver(PreemptionRequested(epoch, "room"), AllocationExited(epoch, "preempted", 0))


def test_time_counts_from_the_assignment_of_slots() -> None:
    actor = waiting_trial()
    let_time_pass(actor, 5)
    assert actor.timers == []
    start_run(actor)
    assert actor.timers == [SetTimer(actor.now_ms + 3 * HOUR_MS, DurationExceeded(1))]


def test_run_at_the_limit_saves_a_checkpoint_and_the_trial_is_canceled() -> None:
    actor = running_trial()
    let_time_pass(actor, 3)
    actor.deliver(DurationExceeded(1))
    assert actor.state.allocation.desired_state is DesiredState.PREEMPT
    assert actor.state.allocation.desired_state_reason == "it has come to its max_trial_duration"
    actor.deliver(AllocationExited(1, "preempted", 0))
    assert (actor.state.status, actor.state.message) == (Status.CANCELED, TEXT)
    ended = actor.messages_to("experiment#1")[-1]
    assert isinstance(ended, TrialEnded)
    assert (ended.early_exit, ended.message) == (ExitReason.USER_CANCELED, TEXT)


def test_waits_do_not_count_and_earlier_runs_do() -> None:
    actor = running_trial()
    let_time_pass(actor, 2)
    preempt_and_exit(actor)
    assert actor.messages_to("pool#default")[-1].__class__ is SlotsRequested
    let_time_pass(actor, 24)
    actor.timers.clear()
    start_run(actor)
    # Two of the three hours are used.
    assert SetTimer(actor.now_ms + HOUR_MS, DurationExceeded(2)) in actor.timers


@pytest.mark.parametrize("status", [Status.PAUSED, Status.ACTIVE])
def test_timer_of_an_earlier_run_changes_nothing(status: Status) -> None:
    actor = running_trial()
    let_time_pass(actor, 2)
    preempt_and_exit(actor)
    actor.deliver(ExperimentStatusChanged(status))
    before = actor.state
    actor.deliver(DurationExceeded(1))
    assert actor.state == before


def test_lost_machine_at_the_limit_starts_no_further_run() -> None:
    actor = running_trial()
    let_time_pass(actor, 3)
    actor.deliver(AllocationLost(1, "the machine is gone"))
    assert (actor.state.status, actor.state.message) == (Status.CANCELED, TEXT)


def test_slow_clock_at_the_exit_does_not_start_a_further_run() -> None:
    actor = running_trial()
    let_time_pass(actor, 3)
    actor.deliver(DurationExceeded(1))
    actor.now_ms -= 1_000
    actor.deliver(AllocationExited(1, "preempted", 0))
    assert actor.state.status is Status.CANCELED


def test_training_that_completes_at_the_limit_is_completed() -> None:
    actor = running_trial()
    let_time_pass(actor, 3)
    actor.deliver(DurationExceeded(1), AllocationExited(1, "completed", 0))
    assert actor.state.status is Status.COMPLETED


def test_pause_at_the_limit_cancels_after_the_activation() -> None:
    actor = running_trial()
    let_time_pass(actor, 3)
    actor.deliver(
        ExperimentStatusChanged(Status.PAUSED),
        DurationExceeded(1),
        AllocationExited(1, "preempted", 0),
    )
    assert actor.state.status is Status.ACTIVE
    actor.deliver(ExperimentStatusChanged(Status.ACTIVE))
    assert (actor.state.status, actor.state.message) == (Status.CANCELED, TEXT)


def test_run_that_does_not_save_in_time_is_killed() -> None:
    actor = ActorHarness("trial#4")
    actor.deliver(trial_created(of=replace(LIMITED, preempt_ms=60_000)))
    start_run(actor)
    let_time_pass(actor, 3)
    actor.timers.clear()
    actor.deliver(DurationExceeded(1))
    [timer] = actor.timers
    assert timer.due_ms == actor.now_ms + 60_000
    actor.deliver(timer.message, AllocationExited(1, "killed", -9))
    assert actor.state.status is Status.CANCELED


def test_continuation_has_the_whole_time_again() -> None:
    actor = running_trial()
    let_time_pass(actor, 3)
    actor.deliver(DurationExceeded(1), AllocationExited(1, "preempted", 0))
    actor.deliver(TrialContinued(1, LIMITED))
    assert actor.state.status is Status.ACTIVE
    actor.timers.clear()
    start_run(actor)
    assert actor.timers == [SetTimer(actor.now_ms + 3 * HOUR_MS, DurationExceeded(2))]


def test_trial_without_a_limit_counts_no_time() -> None:
    actor = ActorHarness("trial#4")
    actor.deliver(trial_created())
    start_run(actor)
    let_time_pass(actor, 3)
    preempt_and_exit(actor)
    assert actor.state.used_ms == 0
    assert actor.timers == []
