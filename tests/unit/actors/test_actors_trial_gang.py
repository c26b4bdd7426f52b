"""A trial on several nodes: they begin together, end together, and one exit says how."""

import pytest

from control_plane.actors.experiment_messages import TrialValidated
from control_plane.actors.pool_messages import SlotsReleased, SlotsRequested
from control_plane.actors.records import Place, Status
from control_plane.actors.trial_messages import (
    AllocationExited,
    AllocationLost,
    ContainerStateReported,
    EarlyExitReported,
    ExperimentStatusChanged,
    LengthReported,
    SlotsAssigned,
    ValidationReported,
)
from control_plane.actors.trial_state import AllocationState, Loss, Wish
from tests.unit.actors.desk import START_MS, Desk
from tests.unit.actors.samples import created, settings

POOL = "pool#default"
PLACES = (Place("a", (0, 1)), Place("b", (0, 1)))
SILENCE = "agent b was lost: it has not been heard of for 31 s"


def state(rank: int, container: str = "RUNNING") -> ContainerStateReported:
    return ContainerStateReported(1, container, rank, 2)


def exited(rank: int, reason: str, message: str = "", notice: str = "") -> AllocationExited:
    return AllocationExited(1, reason, None, 0, message, rank, 2, notice)


def gang(*, max_restarts: int = 5, running: bool = True) -> Desk:
    desk = Desk("trial#4")
    desk.tell(created(of=settings(slots=4, max_restarts=max_restarts)), SlotsAssigned(1, PLACES))
    if running:
        desk.tell(state(0), state(1))
    return desk


def wish(desk: Desk) -> tuple[Wish, str]:
    allocation = desk.state.allocation
    return allocation.wish, allocation.wish_reason


def pool_heard(desk: Desk) -> list[type]:
    return [type(message) for message in desk.sent_to(POOL)]


def test_a_gang_is_as_far_as_the_node_that_is_behind() -> None:
    desk = gang(running=False)
    expected = [
        (state(0, "STARTING"), "ASSIGNED"),
        (state(1, "PULLING"), "PULLING"),
        (state(0), "PULLING"),
        (state(0, "PULLING"), "PULLING"),
        (state(1), "RUNNING"),
        (state(1, "STARTING"), "RUNNING"),
    ]
    for message, common in expected:
        desk.tell(message)
        assert desk.state.allocation.state.value == common


def test_states_that_come_before_the_placement_count() -> None:
    desk = Desk("trial#4")
    desk.tell(created(of=settings(slots=4)), state(0), state(1))
    assert desk.state.allocation.state is AllocationState.RUNNING
    desk.tell(SlotsAssigned(1, PLACES))
    assert desk.state.allocation.state is AllocationState.RUNNING
    assert desk.state.allocation.agents == ("a", "b")


def test_it_is_over_when_every_node_has_exited() -> None:
    desk = gang()
    desk.tell(exited(0, "completed"), exited(0, "completed"))
    assert desk.state.allocation is not None
    assert wish(desk) == (Wish.RUN, "")
    desk.tell(exited(1, "completed"))
    assert desk.state.status is Status.COMPLETED
    assert desk.ever_sent(SlotsReleased)[0].agents == ("a", "b")


def test_the_first_failure_stops_the_rest_and_counts_once() -> None:
    desk = gang()
    desk.tell(exited(1, "errored", "out of memory"))
    assert wish(desk) == (Wish.KILL, "node 1 of 2 is gone: out of memory")
    assert (desk.state.restarts, pool_heard(desk)) == (0, [])
    desk.tell(exited(0, "killed"))
    # The other was killed for it, which is no loss.
    assert (desk.state.restarts, desk.state.losses) == (1, 0)
    assert desk.state.message == "out of memory"
    assert pool_heard(desk) == [SlotsReleased, SlotsRequested]
    assert desk.state.epoch == 2


def test_a_failure_beyond_the_restarts_ends_the_trial_once_all_are_gone() -> None:
    desk = gang(max_restarts=0)
    desk.tell(exited(0, "errored", "first"))
    assert desk.state.status is Status.ACTIVE
    desk.tell(exited(1, "errored", "second"))
    assert (desk.state.status, desk.state.message) == (Status.ERROR, "first")


def test_one_that_fails_after_others_were_done_has_the_gang_run_again() -> None:
    desk = gang()
    desk.tell(exited(0, "completed"), exited(1, "errored", "boom"))
    assert (desk.state.status, desk.state.restarts) == (Status.ACTIVE, 1)


def test_a_lost_member_has_the_rest_stopped_and_slots_asked_for_when_they_are_free() -> None:
    desk = gang()
    desk.tell(AllocationLost(1, SILENCE, "b"))
    assert wish(desk) == (Wish.KILL, f"node 1 of 2 is gone: {SILENCE}")
    assert pool_heard(desk) == []
    desk.tell(AllocationLost(1, SILENCE, "b"), exited(0, "preempted"))
    assert pool_heard(desk) == [SlotsReleased, SlotsRequested]
    assert (desk.state.restarts, desk.state.losses) == (0, 1)
    assert desk.state.recent_losses == (Loss(START_MS, "b", SILENCE),)


def test_all_members_may_be_lost() -> None:
    desk = gang()
    desk.tell(AllocationLost(1, SILENCE, "b"), AllocationLost(1, "agent a was lost: it left", "a"))
    assert pool_heard(desk) == [SlotsReleased, SlotsRequested]
    # One allocation was lost, by the first of the two.
    assert [loss.agent for loss in desk.state.recent_losses] == ["b"]


def test_a_failure_that_came_of_a_loss_is_none() -> None:
    """Node 0 fails at once where node 1 has vanished, of which the cluster hears much later."""
    desk = gang()
    desk.tell(exited(0, "errored", "connection reset by peer"), AllocationLost(1, SILENCE, "b"))
    assert (desk.state.restarts, desk.state.losses, desk.state.epoch) == (0, 1, 2)
    assert desk.state.recent_losses[0].cause == SILENCE


def test_the_loss_of_an_agent_whose_node_had_exited_changes_nothing() -> None:
    desk = gang()
    desk.tell(exited(1, "completed"), AllocationLost(1, SILENCE, "b"))
    assert wish(desk) == (Wish.RUN, "")
    desk.tell(exited(0, "completed"))
    assert (desk.state.status, desk.state.losses) == (Status.COMPLETED, 0)


@pytest.mark.parametrize("reason", ["preempted", "errored", "killed"])
def test_a_node_whose_machine_ends_is_lost_however_it_exits(reason: str) -> None:
    desk = gang()
    desk.tell(
        exited(0, "errored", "connection reset"), exited(1, reason, notice="spot interruption")
    )
    assert (desk.state.restarts, desk.state.losses) == (0, 1)
    assert desk.state.recent_losses == (Loss(START_MS, "b", "spot interruption"),)


def test_a_node_that_was_killed_by_nobody_here_is_lost() -> None:
    desk = gang()
    desk.tell(exited(1, "killed"), exited(0, "errored", "connection reset"))
    assert (desk.state.restarts, desk.state.losses) == (0, 1)


def test_all_that_were_preempted_go_on_later() -> None:
    desk = gang()
    desk.tell(ExperimentStatusChanged(Status.PAUSED))
    assert wish(desk)[0] is Wish.PREEMPT
    desk.tell(exited(1, "preempted"))
    assert desk.state.allocation is not None
    desk.tell(exited(0, "preempted"))
    assert desk.state.allocation is None
    assert (desk.state.restarts, desk.state.losses) == (0, 0)


def test_one_that_fails_of_a_preemption_is_no_failure() -> None:
    desk = gang()
    desk.tell(ExperimentStatusChanged(Status.PAUSED))
    desk.tell(exited(1, "errored", "connection reset"), exited(0, "preempted"))
    assert desk.state.allocation is None
    assert (desk.state.restarts, desk.state.losses) == (0, 0)


def test_a_node_that_cannot_be_started_has_the_gang_tried_again_later() -> None:
    desk = gang(running=False)
    desk.tell(exited(1, "start_failed", "the disk is full"), exited(0, "killed"))
    assert desk.state.held_back
    assert (desk.state.restarts, desk.state.stalls) == (0, 1)


def test_refused_hyperparameters_end_all_nodes() -> None:
    desk = gang()
    desk.tell(EarlyExitReported(1, "INVALID_HP"), exited(0, "invalid_hp", "lr is too high"))
    assert wish(desk)[0] is Wish.KILL
    desk.tell(exited(1, "killed"))
    assert (desk.state.status, desk.state.restarts) == (Status.COMPLETED, 0)


def test_what_several_nodes_report_counts_once() -> None:
    desk = gang()
    for steps in (50, 50, 100, 100):
        desk.tell(ValidationReported(1, steps, 0.5, nodes=2), LengthReported(1, 100, 0.5))
    validated = [message.units for message in desk.ever_sent(TrialValidated)]
    assert validated == [50, 100]
    assert desk.state.reached == 100


def test_losses_are_kept_with_their_causes_but_not_for_ever() -> None:
    desk = Desk("trial#4")
    desk.tell(created(of=settings(slots=4, max_restarts=0)))
    for epoch in range(1, 8):
        desk.tell(SlotsAssigned(epoch, PLACES[:1]), AllocationLost(epoch, f"loss {epoch}", "a"))
    assert (desk.state.losses, desk.state.restarts) == (7, 0)
    causes = [loss.cause for loss in desk.state.recent_losses]
    assert causes == [f"loss {epoch}" for epoch in range(3, 8)]
