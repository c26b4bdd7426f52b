"""What the scheduler sees of agents, however much of them is open."""

from hypothesis import given
from hypothesis import strategies as st

from control_plane.actors.ordered import Ordered
from control_plane.actors.slots import AGENTS_PER_PART, OPEN, Agents, AgentSlots, Availability
from control_plane.actors.step import RowSeen, Turn
from control_plane.scheduling.model import Capacity


class Nothing:
    """There are no parts but those of the turn."""

    def part(self, name: str) -> object | None:
        return None

    def row(self, partition: str, sort: str) -> RowSeen:
        raise AssertionError("agents are parts")


def agents() -> Agents:
    return Agents(Ordered(Turn("pool#p", 0, Nothing()), "agents", AGENTS_PER_PART))


@given(
    slots=st.integers(0, 8),
    held=st.integers(0, 8),
    enabled=st.booleans(),
    disabled=st.sets(st.integers(0, 8)),
    group=st.integers(0, 2),
)
def test_a_capacity_is_what_the_slots_say(
    slots: int, held: int, enabled: bool, disabled: set[int], group: int
) -> None:
    availability = Availability(enabled, False, tuple(sorted(disabled)))
    if availability == OPEN:
        availability = OPEN
    agent = AgentSlots(1, tuple(range(slots)))
    agent = agent.placing("1.1", min(held, slots), group, 1)
    agent = AgentSlots(agent.epoch, agent.slots, agent.running, agent.groups, availability)
    known = agents()
    known.put("a", agent)
    assert known.get("a") == agent
    free = len(agent.free)
    assert agent.free_count == free
    expected = [Capacity("a", free + min(held, slots), free)] if agent.takes_work else []
    assert list(known.capacities()) == expected


def test_a_change_of_an_agent_is_seen_at_once() -> None:
    known = agents()
    for name in "abc":
        known.put(name, AgentSlots(1, (0, 1)))
    assert [one.free for one in known.capacities()] == [2, 2, 2]
    known.put("b", AgentSlots(1, (0, 1)).placing("1.1", 2))
    assert [one.free for one in known.capacities()] == [2, 0, 2]
    known.remove("a")
    assert [one.agent for one in known.capacities()] == ["b", "c"]
