"""The capacities and running allocations of agents, as input of the scheduler."""

from dataclasses import replace

from hypothesis import given
from hypothesis import strategies as st

from control_plane.actors.ordered_map import OrderedMap
from control_plane.actors.pool.agent_slots import (
    AGENTS_PER_PART,
    Agents,
    AgentSlots,
    AllocationPart,
)
from control_plane.actors.records import OPEN, Availability
from control_plane.actors.step import ObservedRow, StepContext
from control_plane.scheduling.model import AgentCapacity, Placement, RunningAllocation


class EmptyReader:
    """A reader without any part."""

    def part(self, name: str) -> object | None:
        return None

    def row(self, partition: str, sort: str) -> ObservedRow:
        raise AssertionError("agents are parts")


def agents() -> Agents:
    return Agents(OrderedMap(StepContext("pool#p", 0, EmptyReader()), "agents", AGENTS_PER_PART))


@given(
    slots=st.integers(0, 8),
    held=st.integers(0, 8),
    availability=st.builds(
        Availability,
        enabled=st.booleans(),
        disabled=st.sets(st.integers(0, 8)).map(lambda found: tuple(sorted(found))),
    ),
    draining=st.booleans(),
    label=st.sampled_from(["", "a100"]),
)
def test_capacity_is_computed_from_the_slots(
    slots: int, held: int, availability: Availability, draining: bool, label: str
) -> None:
    if draining and not availability.enabled:
        availability = replace(availability, draining=True)
    if availability == OPEN:
        availability = OPEN
    part = AllocationPart(tuple(range(min(held, slots))), 1, 1)
    agent = AgentSlots(1, tuple(range(slots)), {"1.1": part}, availability, label)
    known = agents()
    known.put("a", agent)
    assert known.get("a") == agent
    free, used = len(agent.free_slots), len(part.slots)
    assert agent.free_count == free
    aux = 0 if used else 1
    expected = [AgentCapacity("a", free + used, free, label, 5, 5 - aux)]
    if availability.draining:
        expected = [AgentCapacity("a", used, 0, label, aux, 0, draining=True)]
    elif not agent.can_take_work:
        expected = []
    assert list(known.capacities(5)) == expected


def test_agent_without_slots_accepts_zero_slot_requests() -> None:
    known = agents()
    for name, availability in (("a", OPEN), ("b", Availability(enabled=False))):
        known.put(name, AgentSlots(1, (), availability=availability))
    assert list(known.capacities(5)) == [AgentCapacity("a", 0, 0, "", 5, 5)]


def test_cached_capacities_follow_changes_of_an_agent() -> None:
    known = agents()
    for name in "abc":
        known.put(name, AgentSlots(1, (0, 1)))
    assert [one.free for one in known.capacities(100)] == [2, 2, 2]
    known.put("b", AgentSlots(1, (0, 1), {"1.1": AllocationPart((0, 1))}))
    assert [one.free for one in known.capacities(100)] == [2, 0, 2]
    assert [one.aux_free for one in known.capacities(7)] == [7, 7, 7]
    known.remove("a")
    assert [one.agent for one in known.capacities(100)] == ["b", "c"]


def test_allocation_is_found_by_group_and_by_name() -> None:
    known = agents()
    places = (Placement("a", 2), Placement("b", 2))
    known.put("a", AgentSlots(1, (0, 1), {"1.1": AllocationPart((0, 1), 3, 7, places=places)}))
    known.put(
        "b", AgentSlots(1, (0, 1), {"1.1": AllocationPart((0, 1), 3, 7, rank=1, places=places)})
    )
    known.put("c", AgentSlots(1, (0, 1), {"2.1": AllocationPart((1,), 3, 8, leaving=True)}))
    assert list(known.running_allocations(3)) == [
        RunningAllocation("1.1", 4, 3, 7, placements=places),
        RunningAllocation("2.1", 1, 3, 8, leaving=True, placements=(Placement("c", 1),)),
    ]
    assert list(known.running_allocations(4)) == []
    assert [known.find_agent(name) for name in ("2.1", "3.1")] == ["c", ""]
    assert known.find_agent("1.1") in ("a", "b")
