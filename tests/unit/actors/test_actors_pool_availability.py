"""Agents and slots that are disabled: what leaves, what stays, and what the sums say."""

from dataclasses import replace

import pytest

from control_plane.actors.pool_messages import (
    AgentAvailabilityChanged,
    AgentJoined,
    AgentLost,
    PoolConfigured,
    SlotsReleased,
    SlotsRequested,
)
from control_plane.actors.records import Place
from control_plane.actors.slots import OPEN, AgentSlots, Availability, Part
from control_plane.actors.trial_messages import PreemptionRequested, SlotsAssigned
from tests.unit.actors.desk import Desk

DISABLED = Availability(enabled=False)
DRAINING = Availability(enabled=False, draining=True)
JOINED = AgentJoined("a", 1, (0, 1, 2))


def pool(*messages: object) -> Desk:
    desk = Desk("pool#default")
    desk.tell(PoolConfigured("default"), *messages)
    return desk


def changed(availability: Availability, epoch: int = 1) -> AgentAvailabilityChanged:
    return AgentAvailabilityChanged("a", epoch, availability)


def requested(trial_id: int, slots: int = 1) -> SlotsRequested:
    return SlotsRequested(trial_id, 1, slots, f"{trial_id:06d}")


def released(trial_id: int) -> SlotsReleased:
    return SlotsReleased(trial_id, 1, f"{trial_id:06d}", ("a",))


def sums(desk: Desk) -> tuple[int, int, int, int]:
    """Slots, free slots, queued, running."""
    return desk.state.slots, desk.state.free, desk.state.queued, desk.state.running


def test_what_runs_on_a_disabled_agent_is_stopped_at_once() -> None:
    desk = pool(JOINED, requested(1), requested(2))
    desk.tell(changed(DISABLED))
    asked = PreemptionRequested(1, "agent a was disabled", forced=True)
    assert desk.sent_to("trial#1") == [asked]
    assert desk.sent_to("trial#2") == [asked]
    # Two slots are still held, the third is of no use any more.
    assert sums(desk) == (2, 0, 0, 2)
    desk.tell(released(1))
    assert sums(desk) == (1, 0, 0, 1)


def test_what_runs_on_a_draining_agent_may_finish_and_nothing_new_starts() -> None:
    desk = pool(JOINED, requested(1))
    desk.tell(changed(DRAINING), requested(2))
    assert desk.sent == []
    assert sums(desk) == (1, 0, 1, 1)
    desk.tell(released(1))
    assert sums(desk) == (0, 0, 1, 0)
    assert desk.state.waits == "needs 1 slot: agents have none"


def test_draining_may_turn_into_disabling() -> None:
    desk = pool(JOINED, requested(1))
    desk.tell(changed(DRAINING))
    desk.tell(changed(DISABLED))
    assert desk.sent_to("trial#1") == [PreemptionRequested(1, "agent a was disabled", forced=True)]


def test_an_agent_that_is_enabled_again_takes_work_at_once() -> None:
    desk = pool(JOINED, changed(DISABLED), requested(1))
    assert sums(desk) == (0, 0, 1, 0)
    desk.tell(changed(OPEN))
    assert desk.sent_to("trial#1") == [SlotsAssigned(1, (Place("a", (0,)),))]
    assert sums(desk) == (3, 2, 0, 1)


def test_zero_slot_requests_start_on_no_agent_that_takes_no_work() -> None:
    desk = pool(JOINED, changed(DRAINING), requested(1, slots=0))
    assert sums(desk) == (0, 0, 1, 0)
    desk.tell(changed(Availability(disabled=(0, 1, 2))))
    assert sums(desk) == (0, 0, 1, 0)
    desk.tell(changed(Availability(disabled=(0, 1))))
    assert sums(desk) == (1, 1, 0, 1)


def test_a_disabled_slot_is_left_by_who_holds_it_and_given_to_nobody() -> None:
    # 1 holds slot 0, 2 holds slots 1 and 2.
    desk = pool(JOINED, requested(1), requested(2, slots=2))
    desk.tell(changed(Availability(disabled=(2,))))
    assert desk.sent_to("trial#1") == []
    asked = PreemptionRequested(1, "a slot of agent a was disabled", forced=True)
    assert desk.sent_to("trial#2") == [asked]
    desk.tell(released(2), requested(3), requested(4))
    assert desk.sent_to("trial#3") == [SlotsAssigned(1, (Place("a", (1,)),))]
    assert sums(desk) == (2, 0, 1, 2)


def test_zero_slot_work_stays_where_a_slot_is_disabled_and_leaves_a_disabled_agent() -> None:
    desk = pool(JOINED, requested(1, slots=0))
    desk.tell(changed(Availability(disabled=(0, 1, 2))))
    assert desk.sent == []
    desk.tell(changed(DISABLED))
    assert desk.sent_to("trial#1") == [PreemptionRequested(1, "agent a was disabled", forced=True)]


@pytest.mark.parametrize("availability", [DISABLED, DRAINING, Availability(disabled=(1,))])
def test_what_was_disabled_stays_so_in_the_next_session(availability: Availability) -> None:
    desk = pool(JOINED, requested(1))
    desk.tell(changed(availability))
    before = sums(desk)
    desk.tell(AgentJoined("a", 2, (0, 1, 2), availability))
    assert sums(desk) == before
    desk.tell(AgentLost("a", 2, "silence"))
    assert sums(desk) == (0, 0, 0, 0)
    desk.tell(AgentJoined("a", 3, (0, 1, 2), availability))
    open_slots = sum(map(availability.takes, (0, 1, 2)))
    assert sums(desk) == (open_slots, open_slots, 0, 0)


@pytest.mark.parametrize("epoch", [1, 3])
def test_a_word_of_another_session_changes_nothing(epoch: int) -> None:
    desk = pool(JOINED, AgentJoined("a", 2, (0, 1, 2)))
    before = desk.state
    desk.tell(changed(DISABLED, epoch), AgentAvailabilityChanged("b", 1, DISABLED))
    assert replace(desk.state, waits="") == before


def test_an_open_agent_is_written_without_what_says_nothing() -> None:
    desk = pool(JOINED, requested(1))
    assert desk.parts["agents/0"] == b'{"entries":[["a",[1,[0,1,2],{"1.1":[[0],0,1]}]]]}'
    desk.tell(changed(DRAINING))
    assert b"[false,true,[]]" in desk.parts["agents/0"]


def test_slots_that_take_no_work_are_not_free() -> None:
    slots = AgentSlots(1, (0, 1, 2, 3), {"1.1": Part((0,))}, Availability(disabled=(0, 2)))
    assert slots.free == (1, 3)
    assert slots.total == 3
    assert slots.unwelcome == ("1.1",)
    assert replace(slots, availability=DISABLED).total == 1
