"""The end of a trial that runs once, as the program of a command."""

from dataclasses import replace

import pytest

from control_plane.actors.messages.experiment import TrialEnded
from control_plane.actors.messages.pool import SlotsReleased, SlotsRequested
from control_plane.actors.messages.trial import (
    AllocationExited,
    AllocationLost,
    ContainerStateReported,
    ExperimentStatusChanged,
    PreemptionRequested,
    SlotsAssigned,
    TrialKillRequested,
    TrialMoved,
)
from control_plane.actors.records import Place, Status
from control_plane.actors.trial.state import DesiredState
from control_plane.searchers.method import ENDLESS, ExitReason
from tests.unit.actors.actor_harness import ActorHarness
from tests.unit.actors.sample_messages import trial_created, trial_settings

POOL, EXPERIMENT = "pool#default", "experiment#1"
AGAIN = "it runs once, so start another one"


def queued_run() -> ActorHarness:
    actor = ActorHarness("trial#4")
    settings = replace(trial_settings(max_restarts=0, slots=1), runs_once=True)
    actor.deliver(trial_created(length=ENDLESS, of=settings))
    return actor


def running(state: str = "RUNNING") -> ActorHarness:
    actor = queued_run()
    actor.deliver(SlotsAssigned(1, (Place("a", (0,)),)), ContainerStateReported(1, state))
    return actor


def end_of(actor: ActorHarness) -> tuple[Status, str, int | None]:
    """Return the trial's state, message and exit code; check that no slots are requested."""
    assert actor.state.allocation is None
    assert [type(message) for message in actor.messages_to(POOL)] == [SlotsReleased]
    [ended] = actor.messages_to(EXPERIMENT)
    assert isinstance(ended, TrialEnded)
    assert ended.status is actor.state.status
    return actor.state.status, actor.state.message, actor.state.exit_code


@pytest.mark.parametrize("reason", ["completed", "idle", "preempted", "stop_requested"])
def test_program_that_returns_0_has_completed(reason: str) -> None:
    actor = running()
    actor.deliver(AllocationExited(1, reason, 0))
    assert end_of(actor) == (Status.COMPLETED, "", 0)


def test_failing_program_ends_in_error_with_the_exit_code() -> None:
    actor = running()
    actor.deliver(AllocationExited(1, "errored", 3, message="exit code 3"))
    assert end_of(actor) == (Status.ERROR, "exit code 3", 3)
    [ended] = actor.messages_to(EXPERIMENT)
    assert ended == TrialEnded(3, Status.ERROR, ExitReason.ERRORED, "exit code 3")


def test_good_report_does_not_hide_a_bad_exit_code() -> None:
    actor = running()
    actor.deliver(AllocationExited(1, "preempted", 2))
    assert end_of(actor) == (Status.ERROR, "the program failed (preempted)", 2)


@pytest.mark.parametrize("state", ["PULLING", "RUNNING"])
def test_lost_machine_ends_the_trial(state: str) -> None:
    actor = running(state)
    actor.deliver(AllocationLost(1, "no word from agent a for 60 s"))
    text = f"lost: no word from agent a for 60 s; {AGAIN}"
    assert end_of(actor) == (Status.ERROR, text, None)
    assert actor.state.losses == 1


def test_program_that_exits_after_a_notice_is_lost() -> None:
    actor = running()
    actor.deliver(AllocationExited(1, "preempted", 0, notice="spot interruption"))
    assert end_of(actor) == (Status.ERROR, f"lost: spot interruption; {AGAIN}", 0)


def test_failed_start_is_not_retried() -> None:
    actor = running("PULLING")
    actor.deliver(AllocationExited(1, "start_failed", message="there is no such image"))
    assert end_of(actor) == (Status.ERROR, "there is no such image", None)


@pytest.mark.parametrize("forced", [True, False])
def test_disabled_agent_ends_the_trial_immediately(forced: bool) -> None:
    actor = running()
    actor.deliver(PreemptionRequested(1, "agent a was disabled", forced=forced))
    assert actor.state.allocation.desired_state is DesiredState.KILL
    actor.deliver(AllocationExited(1, "killed"))
    assert end_of(actor) == (Status.ERROR, f"stopped: agent a was disabled; {AGAIN}", None)


def test_pause_by_the_cost_limit_ends_the_trial() -> None:
    actor = running()
    actor.deliver(ExperimentStatusChanged(Status.PAUSED))
    actor.deliver(AllocationExited(1, "killed"))
    assert end_of(actor) == (Status.ERROR, f"stopped: it has come to its max_cost; {AGAIN}", None)


@pytest.mark.parametrize("status", [Status.STOPPING_KILLED, Status.STOPPING_CANCELED])
@pytest.mark.parametrize(
    "exited",
    [
        AllocationExited(1, "killed"),
        AllocationExited(1, "errored", 143),
        AllocationExited(1, "lost"),
        AllocationExited(1, "completed", 0),
        AllocationExited(1, "stop_requested", 0),
    ],
)
def test_trial_ended_by_a_user_is_canceled(status: Status, exited: AllocationExited) -> None:
    actor = running()
    actor.deliver(ExperimentStatusChanged(status))
    assert actor.state.allocation.desired_state is DesiredState.KILL
    actor.deliver(exited)
    assert end_of(actor) == (Status.CANCELED, "", exited.code)


def test_killed_trial_on_a_lost_agent_is_canceled() -> None:
    actor = running()
    actor.deliver(TrialKillRequested(), AllocationLost(1, "no word from agent a"))
    assert end_of(actor) == (Status.CANCELED, "", None)


def test_queued_trial_moves_to_a_new_pool_and_a_running_trial_stays() -> None:
    actor = queued_run()
    actor.deliver(TrialMoved("fast"))
    assert [type(message) for message in actor.messages_to("pool#fast")] == [SlotsRequested]
    actor = running()
    actor.deliver(TrialMoved("fast"))
    assert actor.state.allocation.desired_state is DesiredState.RUN
    actor.deliver(AllocationExited(1, "completed", 0))
    assert end_of(actor) == (Status.COMPLETED, "", 0)
