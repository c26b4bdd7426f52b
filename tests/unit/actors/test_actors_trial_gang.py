"""A trial on several nodes, which begin together and end together. One exit decides the end."""

import pytest

from control_plane.actors.messages.experiment import TrialEnded, TrialValidationReported
from control_plane.actors.messages.pool import SlotsReleased, SlotsRequested
from control_plane.actors.messages.trial import (
    AllocationExited,
    AllocationLost,
    ContainerStateReported,
    EarlyExitReported,
    ExperimentStatusChanged,
    LengthReached,
    SlotsAssigned,
    ValidationReported,
)
from control_plane.actors.records import Place, Status
from control_plane.actors.trial.state import AllocationState, DesiredState, Loss
from control_plane.searchers.method import ExitReason
from tests.unit.actors.actor_harness import START_MS, ActorHarness
from tests.unit.actors.sample_messages import trial_created, trial_settings

POOL = "pool#default"
PLACES = (Place("a", (0, 1)), Place("b", (0, 1)))
SILENCE = "agent b was lost: it has not been heard of for 31 s"


def state(rank: int, container: str = "RUNNING") -> ContainerStateReported:
    return ContainerStateReported(1, container, rank, 2)


def node_exit(rank: int, reason: str, message: str = "", notice: str = "") -> AllocationExited:
    return AllocationExited(1, reason, None, 0, message, rank, 2, notice)


def gang(*, max_restarts: int = 5, running: bool = True) -> ActorHarness:
    actor = ActorHarness("trial#4")
    actor.deliver(
        trial_created(of=trial_settings(slots=4, max_restarts=max_restarts)),
        SlotsAssigned(1, PLACES),
    )
    if running:
        actor.deliver(state(0), state(1))
    return actor


def desired_state(actor: ActorHarness) -> tuple[DesiredState, str]:
    allocation = actor.state.allocation
    return allocation.desired_state, allocation.desired_state_reason


def messages_to_pool(actor: ActorHarness) -> list[type]:
    return [type(message) for message in actor.messages_to(POOL)]


def test_gang_has_the_state_of_the_slowest_node() -> None:
    actor = gang(running=False)
    expected = [
        (state(0, "STARTING"), "ASSIGNED"),
        (state(1, "PULLING"), "PULLING"),
        (state(0), "PULLING"),
        (state(0, "PULLING"), "PULLING"),
        (state(1), "RUNNING"),
        (state(1, "STARTING"), "RUNNING"),
    ]
    for message, common in expected:
        actor.deliver(message)
        assert actor.state.allocation.state.value == common


def test_states_reported_before_the_placement_count() -> None:
    actor = ActorHarness("trial#4")
    actor.deliver(trial_created(of=trial_settings(slots=4)), state(0), state(1))
    assert actor.state.allocation.state is AllocationState.RUNNING
    actor.deliver(SlotsAssigned(1, PLACES))
    assert actor.state.allocation.state is AllocationState.RUNNING
    assert actor.state.allocation.agents == ("a", "b")


def test_gang_is_over_after_every_node_has_exited() -> None:
    actor = gang()
    actor.deliver(node_exit(0, "completed"), node_exit(0, "completed"))
    assert actor.state.allocation is not None
    assert desired_state(actor) == (DesiredState.RUN, "")
    actor.deliver(node_exit(1, "completed"))
    assert actor.state.status is Status.COMPLETED
    assert actor.all_messages(SlotsReleased)[0].agents == ("a", "b")


def test_first_failure_stops_all_nodes_and_counts_once() -> None:
    actor = gang()
    actor.deliver(node_exit(1, "errored", "out of memory"))
    assert desired_state(actor) == (DesiredState.KILL, "node 1 of 2 is gone: out of memory")
    assert (actor.state.restarts, messages_to_pool(actor)) == (0, [])
    actor.deliver(node_exit(0, "killed"))
    # The kill of node 0 followed from the failure of node 1, so it is no loss.
    assert (actor.state.restarts, actor.state.losses) == (1, 0)
    assert actor.state.message == "out of memory"
    assert messages_to_pool(actor) == [SlotsReleased, SlotsRequested]
    assert actor.state.epoch == 2


def test_failure_beyond_the_restarts_ends_the_trial_after_all_exits() -> None:
    actor = gang(max_restarts=0)
    actor.deliver(node_exit(0, "errored", "first"))
    assert actor.state.status is Status.ACTIVE
    actor.deliver(node_exit(1, "errored", "second"))
    assert (actor.state.status, actor.state.message) == (Status.ERROR, "first")


def test_failure_after_good_exits_restarts_the_gang() -> None:
    actor = gang()
    actor.deliver(node_exit(0, "completed"), node_exit(1, "errored", "boom"))
    assert (actor.state.status, actor.state.restarts) == (Status.ACTIVE, 1)


def test_lost_node_stops_the_gang_and_slots_are_requested_after_all_exits() -> None:
    actor = gang()
    actor.deliver(AllocationLost(1, SILENCE, "b"))
    assert desired_state(actor) == (DesiredState.KILL, f"node 1 of 2 is gone: {SILENCE}")
    assert messages_to_pool(actor) == []
    actor.deliver(AllocationLost(1, SILENCE, "b"), node_exit(0, "preempted"))
    assert messages_to_pool(actor) == [SlotsReleased, SlotsRequested]
    assert (actor.state.restarts, actor.state.losses) == (0, 1)
    assert actor.state.recent_losses == (Loss(START_MS, "b", SILENCE),)


def test_all_nodes_may_be_lost() -> None:
    actor = gang()
    actor.deliver(
        AllocationLost(1, SILENCE, "b"), AllocationLost(1, "agent a was lost: it left", "a")
    )
    assert messages_to_pool(actor) == [SlotsReleased, SlotsRequested]
    # A single allocation was lost, by the first message.
    assert [loss.agent for loss in actor.state.recent_losses] == ["b"]


def test_failure_that_follows_from_a_loss_does_not_count() -> None:
    """Node 0 fails immediately because node 1 was lost.

    The cluster learns of the loss much later.
    """
    actor = gang()
    actor.deliver(
        node_exit(0, "errored", "connection reset by peer"), AllocationLost(1, SILENCE, "b")
    )
    assert (actor.state.restarts, actor.state.losses, actor.state.epoch) == (0, 1, 2)
    assert actor.state.recent_losses[0].cause == SILENCE


def test_loss_of_an_agent_after_the_nodes_exit_changes_no_state() -> None:
    actor = gang()
    actor.deliver(node_exit(1, "completed"), AllocationLost(1, SILENCE, "b"))
    assert desired_state(actor) == (DesiredState.RUN, "")
    actor.deliver(node_exit(0, "completed"))
    assert (actor.state.status, actor.state.losses) == (Status.COMPLETED, 0)


@pytest.mark.parametrize("reason", ["preempted", "errored", "killed"])
def test_node_with_a_notice_is_lost_after_any_exit(reason: str) -> None:
    actor = gang()
    actor.deliver(
        node_exit(0, "errored", "connection reset"),
        node_exit(1, reason, notice="spot interruption"),
    )
    assert (actor.state.restarts, actor.state.losses) == (0, 1)
    assert actor.state.recent_losses == (Loss(START_MS, "b", "spot interruption"),)


def test_node_killed_from_outside_is_lost() -> None:
    actor = gang()
    actor.deliver(node_exit(1, "killed"), node_exit(0, "errored", "connection reset"))
    assert (actor.state.restarts, actor.state.losses) == (0, 1)


def test_preempted_gang_continues_later() -> None:
    actor = gang()
    actor.deliver(ExperimentStatusChanged(Status.PAUSED))
    assert desired_state(actor)[0] is DesiredState.PREEMPT
    actor.deliver(node_exit(1, "preempted"))
    assert actor.state.allocation is not None
    actor.deliver(node_exit(0, "preempted"))
    assert actor.state.allocation is None
    assert (actor.state.restarts, actor.state.losses) == (0, 0)


def test_failure_during_a_preemption_does_not_count() -> None:
    actor = gang()
    actor.deliver(ExperimentStatusChanged(Status.PAUSED))
    actor.deliver(node_exit(1, "errored", "connection reset"), node_exit(0, "preempted"))
    assert actor.state.allocation is None
    assert (actor.state.restarts, actor.state.losses) == (0, 0)


def test_failed_start_of_a_node_retries_the_gang_later() -> None:
    actor = gang(running=False)
    actor.deliver(node_exit(1, "start_failed", "the disk is full"), node_exit(0, "killed"))
    assert actor.state.awaits_restart_delay
    assert (actor.state.restarts, actor.state.stalls) == (0, 1)


def test_refused_hyperparameters_end_all_nodes() -> None:
    actor = gang()
    actor.deliver(EarlyExitReported(1, "INVALID_HP"), node_exit(0, "invalid_hp", "lr is too high"))
    assert desired_state(actor)[0] is DesiredState.KILL
    actor.deliver(node_exit(1, "killed"))
    assert (actor.state.status, actor.state.restarts) == (Status.COMPLETED, 0)


@pytest.mark.parametrize("refuses_first", [True, False])
def test_failure_or_loss_of_a_second_node_does_not_hide_a_refusal(refuses_first: bool) -> None:
    """Node 0 fails because node 1 exited, and the report of node 0 may arrive first.

    A third node is lost.
    """
    actor = ActorHarness("trial#4")
    places = (*PLACES, Place("c", (0, 1)))
    actor.deliver(
        trial_created(of=trial_settings(slots=6)),
        SlotsAssigned(1, places),
        *(ContainerStateReported(1, "RUNNING", rank, 3) for rank in range(3)),
    )
    refusal = [
        EarlyExitReported(1, "INVALID_HP"),
        AllocationExited(1, "invalid_hp", None, 0, "InvalidHP: too wide", 1, 3),
    ]
    others = [
        AllocationExited(1, "errored", None, 0, "connection reset by peer", 0, 3),
        AllocationLost(1, "agent c was lost: it left", "c"),
    ]
    actor.deliver(*(refusal + others if refuses_first else others + refusal))
    [ended] = actor.all_messages(TrialEnded)
    assert (ended.status, ended.early_exit) == (Status.COMPLETED, ExitReason.INVALID_HP)
    assert actor.state.message == "InvalidHP: too wide"
    assert (actor.state.restarts, actor.state.losses) == (0, 0)


def test_stop_request_of_a_second_process_does_not_hide_a_refusal() -> None:
    actor = gang()
    for reason in ("USER_REQUESTED_STOP", "INVALID_HP", "USER_REQUESTED_STOP"):
        actor.deliver(EarlyExitReported(1, reason))
    actor.deliver(node_exit(0, "stop_requested"), node_exit(1, "stop_requested"))
    [ended] = actor.all_messages(TrialEnded)
    assert ended.early_exit == ExitReason.INVALID_HP


def test_repeated_reports_of_several_nodes_count_once() -> None:
    actor = gang()
    for steps in (50, 50, 100, 100):
        actor.deliver(ValidationReported(1, steps, 0.5, nodes=2), LengthReached(1, 100, 0.5))
    validated = [message.units for message in actor.all_messages(TrialValidationReported)]
    assert validated == [50, 100]
    assert actor.state.reached == 100


def test_only_the_latest_losses_are_kept() -> None:
    actor = ActorHarness("trial#4")
    actor.deliver(trial_created(of=trial_settings(slots=4, max_restarts=0)))
    for epoch in range(1, 8):
        actor.deliver(SlotsAssigned(epoch, PLACES[:1]), AllocationLost(epoch, f"loss {epoch}", "a"))
    assert (actor.state.losses, actor.state.restarts) == (7, 0)
    causes = [loss.cause for loss in actor.state.recent_losses]
    assert causes == [f"loss {epoch}" for epoch in range(3, 8)]
