"""Disabled agents and slots: stopped allocations, remaining allocations, and totals."""

from dataclasses import replace

import pytest

from control_plane.actors.messages.pool import (
    AgentAvailabilityChanged,
    AgentJoined,
    AgentLost,
    PoolConfigured,
    SlotsReleased,
    SlotsRequested,
)
from control_plane.actors.messages.trial import PreemptionRequested, SlotsAssigned
from control_plane.actors.pool.agent_slots import AgentSlots, AllocationPart
from control_plane.actors.records import OPEN, Availability, Place
from tests.unit.actors.actor_harness import ActorHarness

DISABLED = Availability(enabled=False)
DRAINING = Availability(enabled=False, draining=True)
JOINED = AgentJoined("a", 1, (0, 1, 2))


def pool(*messages: object) -> ActorHarness:
    actor = ActorHarness("pool#default")
    actor.deliver(PoolConfigured("default"), *messages)
    return actor


def availability_changed(availability: Availability, epoch: int = 1) -> AgentAvailabilityChanged:
    return AgentAvailabilityChanged("a", epoch, availability)


def slots_requested(trial_id: int, slots: int = 1) -> SlotsRequested:
    return SlotsRequested(trial_id, 1, slots, f"{trial_id:06d}")


def slots_released(trial_id: int) -> SlotsReleased:
    return SlotsReleased(trial_id, 1, f"{trial_id:06d}", ("a",))


def totals(actor: ActorHarness) -> tuple[int, int, int, int]:
    """Return the numbers of slots, free slots, queued requests and running allocations."""
    return actor.state.slots, actor.state.free, actor.state.queued, actor.state.running


def test_allocation_on_a_disabled_agent_is_stopped_immediately() -> None:
    actor = pool(JOINED, slots_requested(1), slots_requested(2))
    actor.deliver(availability_changed(DISABLED))
    asked = PreemptionRequested(1, "agent a was disabled", forced=True)
    assert actor.messages_to("trial#1") == [asked]
    assert actor.messages_to("trial#2") == [asked]
    # Two slots are still held, the third is of no use any more.
    assert totals(actor) == (2, 0, 0, 2)
    actor.deliver(slots_released(1))
    assert totals(actor) == (1, 0, 0, 1)


def test_draining_agent_finishes_work_and_starts_no_allocation() -> None:
    actor = pool(JOINED, slots_requested(1))
    actor.deliver(availability_changed(DRAINING), slots_requested(2))
    assert actor.sent == []
    assert totals(actor) == (1, 0, 1, 1)
    actor.deliver(slots_released(1))
    assert totals(actor) == (0, 0, 1, 0)
    assert actor.state.wait_reason == "needs 1 slot: no agent has slots"


def test_draining_agent_may_be_disabled() -> None:
    actor = pool(JOINED, slots_requested(1))
    actor.deliver(availability_changed(DRAINING))
    actor.deliver(availability_changed(DISABLED))
    assert actor.messages_to("trial#1") == [
        PreemptionRequested(1, "agent a was disabled", forced=True)
    ]


def test_enabled_agent_starts_requests_immediately() -> None:
    actor = pool(JOINED, availability_changed(DISABLED), slots_requested(1))
    assert totals(actor) == (0, 0, 1, 0)
    actor.deliver(availability_changed(OPEN))
    assert actor.messages_to("trial#1") == [SlotsAssigned(1, (Place("a", (0,)),))]
    assert totals(actor) == (3, 2, 0, 1)


def test_zero_slot_requests_start_on_no_disabled_agent() -> None:
    actor = pool(JOINED, availability_changed(DRAINING), slots_requested(1, slots=0))
    assert totals(actor) == (0, 0, 1, 0)
    actor.deliver(availability_changed(Availability(disabled=(0, 1, 2))))
    assert totals(actor) == (0, 0, 1, 0)
    actor.deliver(availability_changed(Availability(disabled=(0, 1))))
    assert totals(actor) == (1, 1, 0, 1)


def test_disabled_slot_is_released_and_not_assigned() -> None:
    # 1 holds slot 0, 2 holds slots 1 and 2.
    actor = pool(JOINED, slots_requested(1), slots_requested(2, slots=2))
    actor.deliver(availability_changed(Availability(disabled=(2,))))
    assert actor.messages_to("trial#1") == []
    asked = PreemptionRequested(1, "a slot of agent a was disabled", forced=True)
    assert actor.messages_to("trial#2") == [asked]
    actor.deliver(slots_released(2), slots_requested(3), slots_requested(4))
    assert actor.messages_to("trial#3") == [SlotsAssigned(1, (Place("a", (1,)),))]
    assert totals(actor) == (2, 0, 1, 2)


def test_zero_slot_allocation_stays_on_a_disabled_slot_and_leaves_a_disabled_agent() -> None:
    actor = pool(JOINED, slots_requested(1, slots=0))
    actor.deliver(availability_changed(Availability(disabled=(0, 1, 2))))
    assert actor.sent == []
    actor.deliver(availability_changed(DISABLED))
    assert actor.messages_to("trial#1") == [
        PreemptionRequested(1, "agent a was disabled", forced=True)
    ]


@pytest.mark.parametrize("availability", [DISABLED, DRAINING, Availability(disabled=(1,))])
def test_availability_survives_the_next_session(availability: Availability) -> None:
    actor = pool(JOINED, slots_requested(1))
    actor.deliver(availability_changed(availability))
    before = totals(actor)
    actor.deliver(AgentJoined("a", 2, (0, 1, 2), availability))
    assert totals(actor) == before
    actor.deliver(AgentLost("a", 2, "silence"))
    assert totals(actor) == (0, 0, 0, 0)
    actor.deliver(AgentJoined("a", 3, (0, 1, 2), availability))
    open_slots = sum(map(availability.is_slot_open, (0, 1, 2)))
    assert totals(actor) == (open_slots, open_slots, 0, 0)


@pytest.mark.parametrize("epoch", [1, 3])
def test_availability_of_a_different_session_changes_no_state(epoch: int) -> None:
    actor = pool(JOINED, AgentJoined("a", 2, (0, 1, 2)))
    before = actor.state
    actor.deliver(availability_changed(DISABLED, epoch), AgentAvailabilityChanged("b", 1, DISABLED))
    assert replace(actor.state, wait_reason="") == before


def test_open_agent_is_encoded_without_defaults() -> None:
    actor = pool(JOINED, slots_requested(1))
    assert actor.parts["agents/0"] == b'{"entries":[["a",[1,[0,1,2],{"1.1":[[0],0,1]}]]]}'
    actor.deliver(availability_changed(DRAINING))
    assert b"[false,true,[]]" in actor.parts["agents/0"]


def test_disabled_slots_are_not_free() -> None:
    slots = AgentSlots(
        1, (0, 1, 2, 3), {"1.1": AllocationPart((0,))}, Availability(disabled=(0, 2))
    )
    assert slots.free_slots == (1, 3)
    assert slots.usable_count == 3
    assert slots.allocations_to_stop == ("1.1",)
    assert replace(slots, availability=DISABLED).usable_count == 1
