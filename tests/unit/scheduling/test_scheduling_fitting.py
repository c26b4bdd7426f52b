"""The choice of agents for a request."""

from hashlib import md5

import pytest

from control_plane.scheduling.fitting import AgentSet
from control_plane.scheduling.model import (
    AgentCapacity,
    AllocationRequest,
    FittingPolicy,
    Placement,
    RunningAllocation,
)
from tests.unit.scheduling.clusters import agent


def chosen_agents(
    request: AllocationRequest,
    *agents: AgentCapacity,
    fitting: FittingPolicy = "best",
    mixed: bool = False,
) -> list[str]:
    return [place.agent for place in AgentSet(agents, fitting, mixed).find_placements(request)]


@pytest.mark.parametrize(
    ("slots", "expected"),
    [(1, ["b"]), (2, ["b"]), (3, ["c"]), (4, ["a"]), (5, [])],
)
def test_best_fit_chooses_fewest_free_slots(slots: int, expected: list[str]) -> None:
    agents = (agent("a", 8, 4), agent("b", 4, 2), agent("c", 4, 3), agent("d", 4, 0))
    assert chosen_agents(AllocationRequest("1.1", slots), *agents) == expected


@pytest.mark.parametrize(
    ("slots", "expected"),
    # Free parts: a 5/8 = 0.625, b 3/4 = 0.75, c 4/8 = 0.5.
    [(1, ["b"]), (3, ["b"]), (4, ["a"]), (5, ["a"]), (6, [])],
)
def test_worst_fit_chooses_largest_free_fraction(slots: int, expected: list[str]) -> None:
    agents = (agent("a", 8, 5), agent("b", 4, 3), agent("c", 8, 4))
    assert chosen_agents(AllocationRequest("1.1", slots), *agents, fitting="worst") == expected


def test_no_request_fits_without_agents() -> None:
    assert chosen_agents(AllocationRequest("1.1", 0)) == []
    assert chosen_agents(AllocationRequest("1.1", 1)) == []
    assert chosen_agents(AllocationRequest("1.1", 16)) == []


def test_zero_slot_request_uses_auxiliary_place() -> None:
    request = AllocationRequest("1.1", 0)
    assert chosen_agents(request, agent("a", 4, aux_free=0), agent("b", 4, 0, aux_free=1)) == ["b"]
    assert chosen_agents(request, agent("a", 4, aux_free=0)) == []
    # An agent for zero-slot work alone has no slots at all.
    assert chosen_agents(request, agent("a", 0)) == ["a"]


def test_auxiliary_places_decide_on_unused_agents() -> None:
    # Best fit: a is in use and scores 1/(1+3) = 0.25. b is unused and scores 1/(1+2) = 0.33 by its
    # 2 free auxiliary places. By its slots, b would score 1/(1+99).
    used, unused = agent("a", 4, 3, aux_free=5), agent("b", 99, aux_free=2)
    assert chosen_agents(AllocationRequest("1.1", 0), used, unused) == ["b"]
    # Worst fit: a 3/4 = 0.75, b 2/100 = 0.02.
    assert chosen_agents(AllocationRequest("1.1", 0), used, unused, fitting="worst") == ["a"]


def test_draining_agent_neither_accepts_nor_frees_slots() -> None:
    fleet = AgentSet([agent("a", 4, 0, aux_free=0, draining=True)])
    fleet.release_placements([Placement("a", 4), Placement("a", 0)])
    assert not fleet.can_fit_now(1, False)
    assert not fleet.can_fit_now(0, False)
    assert fleet.sizes.total_slots == 4
    # The slots in use will not return, so a request of 4 slots waits for a new agent.
    assert not fleet.sizes.can_ever_fit(4, False)


def test_released_slots_can_be_assigned_again() -> None:
    fleet = AgentSet([agent("a", 4, 0), agent("b", 4, 0)])
    fleet.release_placements([Placement("a", 2), Placement("nobody", 4)])
    assert fleet.place_request(AllocationRequest("1.1", 2)) == (Placement("a", 2),)
    assert not fleet.can_fit_now(1, False)


def test_releasing_allocations_frees_slots_and_auxiliary_places() -> None:
    fleet = AgentSet([agent("a", 4, 0, aux_free=0), agent("b", 4, 0)])
    gang = RunningAllocation("1.1", 4, 1, 1, placements=(Placement("a", 2), Placement("b", 2)))
    single = RunningAllocation("2.1", 1, 2, 2, placements=(Placement("a", 1),))
    helper = RunningAllocation("3.1", 0, 3, 3, placements=(Placement("a", 0),))
    assert fleet.release_allocations([gang, single, helper])
    # a has 2 + 1 free slots, b has 2.
    assert fleet.most_free_slots == 3
    assert fleet.count_free_slots() == 5
    assert fleet.can_fit_now(0, True)


def test_releasing_allocations_reports_draining_and_unknown_agents() -> None:
    fleet = AgentSet([agent("a", 4, 0, draining=True), agent("b", 4, 0)])
    draining = RunningAllocation("1.1", 2, 1, 1, placements=(Placement("a", 2),))
    unknown = RunningAllocation("2.1", 2, 2, 2, placements=(Placement("nobody", 2),))
    gang = RunningAllocation("3.1", 4, 3, 3, placements=(Placement("a", 2), Placement("b", 2)))
    assert not fleet.release_allocations([draining])
    assert not fleet.release_allocations([unknown])
    # An agent of the gang returns its slots.
    assert fleet.release_allocations([gang])
    assert fleet.count_free_slots() == 2


def number(text: str) -> int:
    """Return the first eight bytes of the MD5 digest as a little-endian number."""
    digest = md5(text.encode(), usedforsecurity=False).digest()
    return sum(byte << 8 * place for place, byte in enumerate(digest[:8]))


@pytest.mark.parametrize("allocation", [f"{n}.1" for n in range(1, 9)])
def test_equal_agents_are_chosen_by_hash_distance(allocation: str) -> None:
    names = ["a", "b", "c", "d"]
    expected = sorted(names, key=lambda name: (number(allocation) - number(name)) % 2**64)
    for order in (names, names[::-1]):
        some = [agent(name, 4, 2) for name in order]
        assert chosen_agents(AllocationRequest(allocation, 1), *some) == expected[:1]
        # 2 of 4 and 4 of 8 slots are equal fractions, hence also a tie.
        some[0] = agent(order[0], 8, 4)
        assert (
            chosen_agents(AllocationRequest(allocation, 1), *some, fitting="worst") == expected[:1]
        )
        # A gang gets the nearest agents, in this order.
        whole = [agent(name, 4) for name in order]
        assert chosen_agents(AllocationRequest(allocation, 12), *whole) == expected[:3]


def test_hash_distance_wraps_around() -> None:
    # RFC 1321: MD5("a") is 0cc175b9c0f1b6a8... Little-endian: 0xa8b6f1c0b975c10c.
    a, b = number("a"), number("b")
    assert a == 0xA8B6F1C0B975C10C < b
    # A request with b's hash has distance 0 to b and b - a > 0 to a. A request with a's hash has
    # distance 0 to a and 2^64 + a - b to b.
    agents = (agent("a", 4), agent("b", 4))
    assert chosen_agents(AllocationRequest("b", 1), *agents) == ["b"]
    assert chosen_agents(AllocationRequest("a", 1), *agents) == ["a"]
    assert chosen_agents(AllocationRequest("b", 8), *agents) == ["b", "a"]


def test_equal_agents_are_all_used() -> None:
    agents = [agent(f"agent-{n}", 4) for n in range(4)]
    counts = dict.fromkeys((one.agent for one in agents), 0)
    for trial in range(400):
        (name,) = chosen_agents(AllocationRequest(f"{trial}.1", 1), *agents)
        counts[name] += 1
    # An agent's frequency is the length of its part of the hash ring.
    assert min(counts.values()) > 0


def test_gang_gets_only_unused_agents() -> None:
    one_used = (agent("a", 8), agent("b", 8, 7), agent("c", 8))
    assert sorted(chosen_agents(AllocationRequest("1.1", 16), *one_used)) == ["a", "c"]
    assert chosen_agents(AllocationRequest("1.1", 24), *one_used) == []
    # Zero-slot work does not matter.
    assert (
        len(chosen_agents(AllocationRequest("1.1", 16), agent("a", 8, aux_free=0), agent("c", 8)))
        == 2
    )


def test_request_for_an_agent_size_is_never_spread() -> None:
    assert chosen_agents(
        AllocationRequest("1.1", 8), agent("a", 8, 8), agent("b", 4), agent("c", 4)
    ) == ["a"]


def test_single_agent_request_is_not_spread() -> None:
    agents = (agent("a", 8), agent("b", 8))
    assert chosen_agents(AllocationRequest("1.1", 16, single_agent=True), *agents) == []


def test_mixed_gang_needs_heterogeneous_pool() -> None:
    # 12 = 8 + 4. The pool has two agents of 8 slots and an agent of 4.
    agents = (agent("a", 8), agent("b", 8), agent("c", 4))
    assert chosen_agents(AllocationRequest("1.1", 12), *agents) == []
    places = AgentSet(agents, heterogeneous=True).find_placements(AllocationRequest("1.1", 12))
    assert [place.slots for place in places] == [8, 4]


def test_copy_is_independent() -> None:
    fleet = AgentSet([agent("a", 4, aux_free=1)])
    assert fleet.can_fit_now(0, False)
    other = fleet.copy()
    other.place_request(AllocationRequest("1.1", 4))
    other.place_request(AllocationRequest("2.1", 0))
    assert not other.can_fit_now(1, False)
    assert not other.can_fit_now(0, False)
    assert fleet.can_fit_now(4, False)
    assert fleet.can_fit_now(0, False)
