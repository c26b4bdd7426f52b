"""The pool's books: its queue, its agents' slots, and who hears of a change."""

import pytest

from control_plane.actors.agent_messages import (
    AgentDeclaredLost,
    AllocationPlaced,
    AllocationRemoved,
)
from control_plane.actors.pool import agents_of, parse_allocation, waiting_in
from control_plane.actors.pool_messages import (
    AgentJoined,
    AgentLost,
    AuditFound,
    PoolConfigured,
    SlotsReleased,
    SlotsRequested,
)
from control_plane.actors.records import Place
from control_plane.actors.slots import AgentSlots, Part
from control_plane.actors.step import Turn
from control_plane.actors.trial_messages import AllocationLost, SlotsAssigned
from tests.unit.actors.desk import Desk


def pool(*messages: object) -> Desk:
    desk = Desk("pool#default")
    desk.tell(PoolConfigured("default"), *messages)
    return desk


def joined(agent: str, slots: int, epoch: int = 1) -> AgentJoined:
    return AgentJoined(agent, epoch, tuple(range(slots)))


def requested(trial_id: int, slots: int = 1, epoch: int = 1) -> SlotsRequested:
    return SlotsRequested(trial_id, epoch, slots, ticket(trial_id))


def released(trial_id: int, agent: str = "", epoch: int = 1) -> SlotsReleased:
    agents = (agent,) if agent else ()
    return SlotsReleased(trial_id, epoch, ticket(trial_id), agents)


def ticket(trial_id: int) -> str:
    return f"{trial_id:06d}"


def queue(desk: Desk) -> list[str]:
    turn = Turn(desk.address, 0, desk)
    return [request.ticket for request in waiting_in(turn).items()]


def slots_of(desk: Desk, agent: str) -> AgentSlots:
    found = agents_of(Turn(desk.address, 0, desk)).get(agent)
    assert found is not None
    return found


def counts(desk: Desk) -> tuple[int, int, int, int, int]:
    """Agents, slots, free slots, queued, running."""
    state = desk.state
    return state.agents, state.slots, state.free, state.queued, state.running


def test_a_pool_is_listed_once() -> None:
    desk = pool()
    assert desk.row("pools", "default").revision == 1
    desk.tell(requested(1), PoolConfigured("default"))
    assert desk.row("pools", "default").revision == 1
    assert desk.state.queued == 1


def test_only_a_configuration_makes_a_pool() -> None:
    desk = Desk("pool#default")
    desk.tell(requested(1), joined("a", 2))
    assert desk.state is None
    assert desk.sent == []


def test_a_request_starts_where_there_is_room_and_trial_and_agent_hear_of_it() -> None:
    desk = pool(joined("a", 4))
    desk.tell(requested(7, slots=2))
    assert desk.sent_to("trial#7") == [SlotsAssigned(1, (Place("a", (0, 1)),))]
    assert desk.sent_to("agent#a") == [AllocationPlaced(7, 1, (0, 1))]
    assert counts(desk) == (1, 4, 2, 0, 1)


def test_a_request_waits_for_an_agent() -> None:
    desk = pool(requested(7))
    assert desk.sent == []
    assert desk.state.waits == "there is no agent"
    desk.tell(joined("a", 1))
    assert desk.sent_to("trial#7") == [SlotsAssigned(1, (Place("a", (0,)),))]
    assert desk.state.waits == ""


def test_requests_start_in_the_order_of_their_tickets_whatever_order_they_came_in() -> None:
    desk = pool(requested(3), requested(1), requested(2))
    assert queue(desk) == [ticket(1), ticket(2), ticket(3)]
    desk.tell(joined("a", 2))
    assert sorted(slots_of(desk, "a").running) == ["1.1", "2.1"]
    assert queue(desk) == [ticket(3)]


def test_a_smaller_request_passes_a_larger_one_that_does_not_fit() -> None:
    desk = pool(joined("a", 2), requested(1, slots=1), requested(2, slots=2), requested(3, slots=1))
    assert list(slots_of(desk, "a").running) == ["1.1", "3.1"]
    assert desk.state.waits.startswith("needs 2 slots, 0 free")


def test_a_release_lets_the_next_one_start_on_the_same_slots() -> None:
    desk = pool(joined("a", 2), requested(1, slots=2), requested(2, slots=2))
    desk.tell(released(1, "a"))
    assert desk.sent_to("agent#a") == [AllocationRemoved(1, 1), AllocationPlaced(2, 1, (0, 1))]
    assert counts(desk) == (1, 2, 0, 0, 1)


def test_a_freed_slot_is_given_again_not_a_held_one() -> None:
    desk = pool(joined("a", 3), requested(1), requested(2), requested(3))
    desk.tell(released(2, "a"), requested(4))
    # 1 holds 0, 3 holds 2: the free one is 1.
    assert desk.sent_to("trial#4") == [SlotsAssigned(1, (Place("a", (1,)),))]


def test_a_release_frees_nothing_twice() -> None:
    desk = pool(joined("a", 2), requested(1))
    desk.tell(released(1, "a"))
    before = desk.state
    desk.tell(released(1, "a"), released(1))
    assert desk.state == before
    assert desk.sent == []


def test_a_queued_request_is_withdrawn() -> None:
    desk = pool(requested(1), requested(2))
    desk.tell(released(1))
    assert queue(desk) == [ticket(2)]
    assert counts(desk) == (0, 0, 0, 1, 0)
    assert desk.sent == []


def test_a_trial_that_does_not_know_yet_where_it_was_placed_is_found() -> None:
    desk = pool(joined("a", 1), joined("b", 1), requested(1), requested(2))
    desk.tell(released(2))
    holder = "a" if "1.1" in slots_of(desk, "b").running else "b"
    assert slots_of(desk, holder).running == {}
    assert desk.sent_to(f"agent#{holder}") == [AllocationRemoved(2, 1)]


def test_a_release_of_an_older_allocation_leaves_the_current_one() -> None:
    # Both were asked for in one millisecond, so they have one ticket.
    desk = pool(requested(1, epoch=2))
    desk.tell(released(1, epoch=1))
    assert desk.state.queued == 1
    desk.tell(joined("a", 1))
    desk.tell(released(1, "a", epoch=1))
    assert list(slots_of(desk, "a").running) == ["1.2"]


def test_withdrawing_the_head_lets_the_next_one_start() -> None:
    desk = pool(joined("a", 1), requested(1), requested(2), requested(3))
    desk.tell(released(2))
    desk.tell(released(1, "a"))
    assert desk.sent_to("trial#3") == [SlotsAssigned(1, (Place("a", (0,)),))]


def test_a_zero_slot_request_starts_on_a_full_agent_and_takes_nothing() -> None:
    desk = pool(joined("a", 1), requested(1), requested(2, slots=0))
    assert desk.sent_to("trial#2") == [SlotsAssigned(1, (Place("a", ()),))]
    assert counts(desk) == (1, 1, 0, 0, 2)
    desk.tell(released(2, "a"))
    assert counts(desk) == (1, 1, 0, 0, 1)


def test_a_zero_slot_request_waits_for_an_agent_too() -> None:
    assert pool(requested(1, slots=0)).state.queued == 1


def test_an_agent_that_joins_again_keeps_what_runs_there() -> None:
    desk = pool(joined("a", 2), requested(1))
    desk.tell(joined("a", 2, epoch=2))
    assert desk.sent == []
    assert slots_of(desk, "a") == AgentSlots(2, (0, 1), {"1.1": Part((0,), start=1)})
    assert counts(desk) == (1, 2, 1, 0, 1)


def test_an_agent_that_joins_again_with_fewer_slots_loses_what_ran_on_the_others() -> None:
    desk = pool(joined("a", 3), requested(1, slots=1), requested(2, slots=2))
    desk.tell(joined("a", 2, epoch=2))
    # 2 held the slots 1 and 2, and 2 is gone.
    assert [type(message) for message in desk.sent_to("trial#2")] == [AllocationLost]
    assert desk.sent_to("agent#a") == [AllocationRemoved(2, 1)]
    assert desk.sent_to("trial#1") == []
    assert counts(desk) == (1, 2, 1, 0, 1)


def test_an_agent_that_joins_again_with_more_slots_starts_what_waits() -> None:
    desk = pool(joined("a", 1), requested(1), requested(2))
    desk.tell(joined("a", 2, epoch=2))
    assert desk.sent_to("trial#2") == [SlotsAssigned(1, (Place("a", (1,)),))]


@pytest.mark.parametrize("epoch", [1, 2])
def test_an_older_session_joins_in_vain(epoch: int) -> None:
    desk = pool(joined("a", 2, epoch=2))
    before = desk.state
    desk.tell(joined("a", 5, epoch=epoch))
    assert desk.state == before


def test_a_lost_agent_takes_its_slots_along_and_its_trials_hear_of_it() -> None:
    desk = pool(joined("a", 2), requested(1), requested(2), requested(3))
    desk.tell(AgentLost("a", 1, "silence"))
    text = "agent a was lost: silence"
    assert desk.sent_to("trial#1") == [AllocationLost(1, text, "a")]
    assert desk.sent_to("trial#2") == [AllocationLost(1, text, "a")]
    assert desk.sent_to("trial#3") == []
    assert desk.sent_to("agent#a") == [
        AllocationRemoved(1, 1),
        AllocationRemoved(2, 1),
        AgentDeclaredLost(1),
    ]
    assert counts(desk) == (0, 0, 0, 1, 0)


def test_a_trial_of_a_lost_agent_may_release_afterwards() -> None:
    desk = pool(joined("a", 2), requested(1))
    desk.tell(AgentLost("a", 1, "silence"))
    before = desk.state
    desk.tell(released(1, "a"))
    assert desk.state == before


@pytest.mark.parametrize(("agent", "epoch"), [("a", 1), ("a", 3), ("b", 2)])
def test_a_loss_of_another_session_is_ignored(agent: str, epoch: int) -> None:
    desk = pool(joined("a", 2, epoch=2), requested(1))
    before = desk.state
    desk.tell(AgentLost(agent, epoch, "silence"))
    assert desk.state == before
    assert desk.sent == []


def test_a_lost_agent_may_come_back() -> None:
    desk = pool(joined("a", 2), AgentLost("a", 1, "silence"))
    desk.tell(joined("a", 2, epoch=2))
    assert counts(desk) == (1, 2, 2, 0, 0)


def test_the_audit_frees_what_was_queued_and_what_ran() -> None:
    desk = pool(joined("a", 1), requested(1), requested(2), requested(3))
    desk.tell(AuditFound((released(1, "a"), released(2), released(9, "a"))))
    assert desk.sent_to("trial#3") == [SlotsAssigned(1, (Place("a", (0,)),))]
    assert counts(desk) == (1, 1, 0, 0, 1)


def test_the_scheduler_runs_once_in_a_fold_and_only_if_something_changed() -> None:
    # All three requests come in one fold, before anything is placed: 1 is not overtaken by 9.
    desk = pool(joined("a", 1))
    desk.tell(requested(9), requested(1))
    assert list(slots_of(desk, "a").running) == ["1.1"]
    assert desk.reasons == [desk.state.waits]
    assert desk.state.waits.startswith("needs 1 slot, 0 free")
    desk.tell(released(77))
    assert desk.reasons == []
    assert desk.parts_written == []


def test_a_decision_writes_as_much_for_a_long_queue_as_for_a_short_one() -> None:
    # Places one request: a leaf of requests, the job's leaf and a leaf of agents.
    short, long = pool(*map(requested, range(1, 11))), pool(*map(requested, range(1, 1001)))
    for desk in (short, long):
        desk.tell(joined("a", 1))
        desk.tell(released(1, "a"))
        assert sorted(set(desk.parts_written)) == ["agents/0", "groups/0", "requests/0"]


def test_a_thousand_requests_start_in_order_and_never_on_a_slot_twice() -> None:
    desk = pool(*map(requested, range(1000, 0, -1)))
    for number in range(10):
        desk.tell(joined(f"agent-{number}", 7))
    running = [name for n in range(10) for name in slots_of(desk, f"agent-{n}").running]
    assert sorted(running) == sorted(f"{n}.1" for n in range(1, 71))
    assert counts(desk) == (10, 70, 0, 930, 70)
    for number in range(10):
        held = slots_of(desk, f"agent-{number}").running.values()
        assert sorted(slot for slots in held for slot in slots) == list(range(7))


def test_a_pool_goes_on_without_a_message_it_cannot_take() -> None:
    desk = pool(joined("a", 2), requested(1))
    before = desk.state
    desk.bury(released(1, "a"))
    assert desk.state == before
    # The trial has let go of it, which the audit will find.
    desk.tell(AuditFound((released(1, "a"),)))
    assert counts(desk) == (1, 2, 2, 0, 0)


def test_an_allocations_name_is_its_trial_and_epoch() -> None:
    assert parse_allocation("12.3") == (12, 3)
