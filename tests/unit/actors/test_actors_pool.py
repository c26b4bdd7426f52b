"""The pool's queue and slots, and the messages after each change."""

import pytest

from control_plane.actors.messages.agent import (
    AgentDeclaredLost,
    AllocationPlaced,
    AllocationRemoved,
)
from control_plane.actors.messages.pool import (
    AgentJoined,
    AgentLost,
    PoolConfigured,
    SlotsReleased,
    SlotsRequested,
    StaleAllocationsFound,
)
from control_plane.actors.messages.trial import AllocationLost, SlotsAssigned
from control_plane.actors.pool.actor import agents_of, job_queue_of, parse_allocation
from control_plane.actors.pool.agent_slots import AgentSlots, AllocationPart
from control_plane.actors.records import Place
from control_plane.actors.step import StepContext
from tests.unit.actors.actor_harness import ActorHarness


def pool(*messages: object) -> ActorHarness:
    actor = ActorHarness("pool#default")
    actor.deliver(PoolConfigured("default"), *messages)
    return actor


def agent_joined(agent: str, slots: int, epoch: int = 1) -> AgentJoined:
    return AgentJoined(agent, epoch, tuple(range(slots)))


def slots_requested(trial_id: int, slots: int = 1, epoch: int = 1) -> SlotsRequested:
    return SlotsRequested(trial_id, epoch, slots, ticket(trial_id))


def slots_released(trial_id: int, agent: str = "", epoch: int = 1) -> SlotsReleased:
    agents = (agent,) if agent else ()
    return SlotsReleased(trial_id, epoch, ticket(trial_id), agents)


def ticket(trial_id: int) -> str:
    return f"{trial_id:06d}"


def queue(actor: ActorHarness) -> list[str]:
    context = StepContext(actor.address, 0, actor)
    return [request.ticket for request in job_queue_of(context).all_requests()]


def slots_of(actor: ActorHarness, agent: str) -> AgentSlots:
    state = agents_of(StepContext(actor.address, 0, actor)).get(agent)
    assert state is not None
    return state


def counts(actor: ActorHarness) -> tuple[int, int, int, int, int]:
    """Return the numbers of agents, slots, free slots, queued requests and running allocations."""
    state = actor.state
    return state.agents, state.slots, state.free, state.queued, state.running


def test_pool_is_listed_once() -> None:
    actor = pool()
    assert actor.row("pools", "default").revision == 1
    actor.deliver(slots_requested(1), PoolConfigured("default"))
    assert actor.row("pools", "default").revision == 1
    assert actor.state.queued == 1


def test_only_a_configuration_creates_a_pool() -> None:
    actor = ActorHarness("pool#default")
    actor.deliver(slots_requested(1), agent_joined("a", 2))
    assert actor.state is None
    assert actor.sent == []


def test_request_starts_on_free_slots_and_notifies_trial_and_agent() -> None:
    actor = pool(agent_joined("a", 4))
    actor.deliver(slots_requested(7, slots=2))
    assert actor.messages_to("trial#7") == [SlotsAssigned(1, (Place("a", (0, 1)),))]
    assert actor.messages_to("agent#a") == [AllocationPlaced(7, 1, (0, 1))]
    assert counts(actor) == (1, 4, 2, 0, 1)


def test_request_waits_for_an_agent() -> None:
    actor = pool(slots_requested(7))
    assert actor.sent == []
    assert actor.state.wait_reason == "there is no agent"
    actor.deliver(agent_joined("a", 1))
    assert actor.messages_to("trial#7") == [SlotsAssigned(1, (Place("a", (0,)),))]
    assert actor.state.wait_reason == ""


def test_requests_start_in_the_order_of_their_tickets() -> None:
    actor = pool(slots_requested(3), slots_requested(1), slots_requested(2))
    assert queue(actor) == [ticket(1), ticket(2), ticket(3)]
    actor.deliver(agent_joined("a", 2))
    assert sorted(slots_of(actor, "a").slots_by_allocation) == ["1.1", "2.1"]
    assert queue(actor) == [ticket(3)]


def test_smaller_request_passes_a_larger_request_that_does_not_fit() -> None:
    actor = pool(
        agent_joined("a", 2),
        slots_requested(1, slots=1),
        slots_requested(2, slots=2),
        slots_requested(3, slots=1),
    )
    assert list(slots_of(actor, "a").slots_by_allocation) == ["1.1", "3.1"]
    assert actor.state.wait_reason.startswith("needs 2 slots, 0 free")


def test_release_starts_the_next_request_on_the_same_slots() -> None:
    actor = pool(agent_joined("a", 2), slots_requested(1, slots=2), slots_requested(2, slots=2))
    actor.deliver(slots_released(1, "a"))
    assert actor.messages_to("agent#a") == [AllocationRemoved(1, 1), AllocationPlaced(2, 1, (0, 1))]
    assert counts(actor) == (1, 2, 0, 0, 1)


def test_only_free_slots_are_assigned() -> None:
    actor = pool(agent_joined("a", 3), slots_requested(1), slots_requested(2), slots_requested(3))
    actor.deliver(slots_released(2, "a"), slots_requested(4))
    # 1 uses slot 0, 3 uses slot 2: slot 1 is free.
    assert actor.messages_to("trial#4") == [SlotsAssigned(1, (Place("a", (1,)),))]


def test_repeated_release_frees_no_slots() -> None:
    actor = pool(agent_joined("a", 2), slots_requested(1))
    actor.deliver(slots_released(1, "a"))
    before = actor.state
    actor.deliver(slots_released(1, "a"), slots_released(1))
    assert actor.state == before
    assert actor.sent == []


def test_queued_request_is_withdrawn() -> None:
    actor = pool(slots_requested(1), slots_requested(2))
    actor.deliver(slots_released(1))
    assert queue(actor) == [ticket(2)]
    assert counts(actor) == (0, 0, 0, 1, 0)
    assert actor.sent == []


def test_release_without_agents_finds_a_placed_allocation() -> None:
    actor = pool(agent_joined("a", 1), agent_joined("b", 1), slots_requested(1), slots_requested(2))
    actor.deliver(slots_released(2))
    holder = "a" if "1.1" in slots_of(actor, "b").slots_by_allocation else "b"
    assert slots_of(actor, holder).slots_by_allocation == {}
    assert actor.messages_to(f"agent#{holder}") == [AllocationRemoved(2, 1)]


def test_release_of_an_older_allocation_keeps_the_present_allocation() -> None:
    # Both requests were sent in one millisecond, so the tickets are equal.
    actor = pool(slots_requested(1, epoch=2))
    actor.deliver(slots_released(1, epoch=1))
    assert actor.state.queued == 1
    actor.deliver(agent_joined("a", 1))
    actor.deliver(slots_released(1, "a", epoch=1))
    assert list(slots_of(actor, "a").slots_by_allocation) == ["1.2"]


def test_withdrawal_of_the_first_request_starts_the_next() -> None:
    actor = pool(agent_joined("a", 1), slots_requested(1), slots_requested(2), slots_requested(3))
    actor.deliver(slots_released(2))
    actor.deliver(slots_released(1, "a"))
    assert actor.messages_to("trial#3") == [SlotsAssigned(1, (Place("a", (0,)),))]


def test_zero_slot_request_starts_on_a_full_agent() -> None:
    actor = pool(agent_joined("a", 1), slots_requested(1), slots_requested(2, slots=0))
    assert actor.messages_to("trial#2") == [SlotsAssigned(1, (Place("a", ()),))]
    assert counts(actor) == (1, 1, 0, 0, 2)
    actor.deliver(slots_released(2, "a"))
    assert counts(actor) == (1, 1, 0, 0, 1)


def test_zero_slot_request_waits_for_an_agent() -> None:
    assert pool(slots_requested(1, slots=0)).state.queued == 1


def test_agent_that_joins_again_keeps_all_allocations() -> None:
    actor = pool(agent_joined("a", 2), slots_requested(1))
    actor.deliver(agent_joined("a", 2, epoch=2))
    assert actor.sent == []
    assert slots_of(actor, "a") == AgentSlots(2, (0, 1), {"1.1": AllocationPart((0,), start=1)})
    assert counts(actor) == (1, 2, 1, 0, 1)


def test_agent_that_joins_again_with_fewer_slots_loses_allocations() -> None:
    actor = pool(agent_joined("a", 3), slots_requested(1, slots=1), slots_requested(2, slots=2))
    actor.deliver(agent_joined("a", 2, epoch=2))
    # 2 used the slots 1 and 2, and slot 2 is gone.
    assert [type(message) for message in actor.messages_to("trial#2")] == [AllocationLost]
    assert actor.messages_to("agent#a") == [AllocationRemoved(2, 1)]
    assert actor.messages_to("trial#1") == []
    assert counts(actor) == (1, 2, 1, 0, 1)


def test_agent_that_joins_again_with_more_slots_starts_requests() -> None:
    actor = pool(agent_joined("a", 1), slots_requested(1), slots_requested(2))
    actor.deliver(agent_joined("a", 2, epoch=2))
    assert actor.messages_to("trial#2") == [SlotsAssigned(1, (Place("a", (1,)),))]


@pytest.mark.parametrize("epoch", [1, 2])
def test_older_session_does_not_join(epoch: int) -> None:
    actor = pool(agent_joined("a", 2, epoch=2))
    before = actor.state
    actor.deliver(agent_joined("a", 5, epoch=epoch))
    assert actor.state == before


def test_lost_agent_removes_all_slots_and_notifies_trials() -> None:
    actor = pool(agent_joined("a", 2), slots_requested(1), slots_requested(2), slots_requested(3))
    actor.deliver(AgentLost("a", 1, "silence"))
    text = "agent a was lost: silence"
    assert actor.messages_to("trial#1") == [AllocationLost(1, text, "a")]
    assert actor.messages_to("trial#2") == [AllocationLost(1, text, "a")]
    assert actor.messages_to("trial#3") == []
    assert actor.messages_to("agent#a") == [
        AllocationRemoved(1, 1),
        AllocationRemoved(2, 1),
        AgentDeclaredLost(1),
    ]
    assert counts(actor) == (0, 0, 0, 1, 0)


def test_release_after_the_loss_of_an_agent_is_accepted() -> None:
    actor = pool(agent_joined("a", 2), slots_requested(1))
    actor.deliver(AgentLost("a", 1, "silence"))
    before = actor.state
    actor.deliver(slots_released(1, "a"))
    assert actor.state == before


@pytest.mark.parametrize(("agent", "epoch"), [("a", 1), ("a", 3), ("b", 2)])
def test_loss_of_a_different_session_is_ignored(agent: str, epoch: int) -> None:
    actor = pool(agent_joined("a", 2, epoch=2), slots_requested(1))
    before = actor.state
    actor.deliver(AgentLost(agent, epoch, "silence"))
    assert actor.state == before
    assert actor.sent == []


def test_lost_agent_may_join_again() -> None:
    actor = pool(agent_joined("a", 2), AgentLost("a", 1, "silence"))
    actor.deliver(agent_joined("a", 2, epoch=2))
    assert counts(actor) == (1, 2, 2, 0, 0)


def test_audit_releases_queued_and_running_allocations() -> None:
    actor = pool(agent_joined("a", 1), slots_requested(1), slots_requested(2), slots_requested(3))
    actor.deliver(
        StaleAllocationsFound((slots_released(1, "a"), slots_released(2), slots_released(9, "a")))
    )
    assert actor.messages_to("trial#3") == [SlotsAssigned(1, (Place("a", (0,)),))]
    assert counts(actor) == (1, 1, 0, 0, 1)


def test_scheduler_runs_once_in_a_fold_and_only_after_a_change() -> None:
    # All three requests are in the same fold before any placement: 9 does not overtake 1.
    actor = pool(agent_joined("a", 1))
    actor.deliver(slots_requested(9), slots_requested(1))
    assert list(slots_of(actor, "a").slots_by_allocation) == ["1.1"]
    assert actor.reasons == [actor.state.wait_reason]
    assert actor.state.wait_reason.startswith("needs 1 slot, 0 free")
    actor.deliver(slots_released(77))
    assert actor.reasons == []
    assert actor.parts_written == []


def test_writes_do_not_grow_with_the_queue() -> None:
    # Places one request: a leaf of requests, the job's leaf and a leaf of agents.
    short, long = (
        pool(*map(slots_requested, range(1, 11))),
        pool(*map(slots_requested, range(1, 1001))),
    )
    for actor in (short, long):
        actor.deliver(agent_joined("a", 1))
        actor.deliver(slots_released(1, "a"))
        assert sorted(set(actor.parts_written)) == ["agents/0", "groups/0", "requests/0"]


def test_thousand_requests_start_in_order_and_share_no_slot() -> None:
    actor = pool(*map(slots_requested, range(1000, 0, -1)))
    for number in range(10):
        actor.deliver(agent_joined(f"agent-{number}", 7))
    running = [
        name for n in range(10) for name in slots_of(actor, f"agent-{n}").slots_by_allocation
    ]
    assert sorted(running) == sorted(f"{n}.1" for n in range(1, 71))
    assert counts(actor) == (10, 70, 0, 930, 70)
    for number in range(10):
        held = slots_of(actor, f"agent-{number}").slots_by_allocation.values()
        assert sorted(slot for slots in held for slot in slots) == list(range(7))


def test_pool_drops_a_message_that_it_cannot_process() -> None:
    actor = pool(agent_joined("a", 2), slots_requested(1))
    before = actor.state
    actor.deliver_dead_letter(slots_released(1, "a"))
    assert actor.state == before
    # The trial has released the allocation, which the audit finds.
    actor.deliver(StaleAllocationsFound((slots_released(1, "a"),)))
    assert counts(actor) == (1, 2, 2, 0, 0)


def test_allocation_name_has_trial_and_epoch() -> None:
    assert parse_allocation("12.3") == (12, 3)
