"""Which agents take a request."""

from hashlib import md5

import pytest

from control_plane.scheduling.fitting import AgentSet
from control_plane.scheduling.model import (
    AgentCapacity,
    AllocationRequest,
    FittingPolicy,
    Placement,
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
def test_best_fit_takes_the_agent_with_the_fewest_free_slots(
    slots: int, expected: list[str]
) -> None:
    agents = (agent("a", 8, 4), agent("b", 4, 2), agent("c", 4, 3), agent("d", 4, 0))
    assert chosen_agents(AllocationRequest("1.1", slots), *agents) == expected


@pytest.mark.parametrize(
    ("slots", "expected"),
    # Free parts: a 5/8 = 0.625, b 3/4 = 0.75, c 4/8 = 0.5.
    [(1, ["b"]), (3, ["b"]), (4, ["a"]), (5, ["a"]), (6, [])],
)
def test_worst_fit_takes_the_agent_of_which_the_largest_part_is_free(
    slots: int, expected: list[str]
) -> None:
    agents = (agent("a", 8, 5), agent("b", 4, 3), agent("c", 8, 4))
    assert chosen_agents(AllocationRequest("1.1", slots), *agents, fitting="worst") == expected


def test_without_agents_nothing_fits() -> None:
    assert chosen_agents(AllocationRequest("1.1", 0)) == []
    assert chosen_agents(AllocationRequest("1.1", 1)) == []
    assert chosen_agents(AllocationRequest("1.1", 16)) == []


def test_a_request_without_slots_takes_a_place_beside_them() -> None:
    request = AllocationRequest("1.1", 0)
    assert chosen_agents(request, agent("a", 4, aux_free=0), agent("b", 4, 0, aux_free=1)) == ["b"]
    assert chosen_agents(request, agent("a", 4, aux_free=0)) == []
    # An agent that is only there for such work has no slots at all.
    assert chosen_agents(request, agent("a", 0)) == ["a"]


def test_places_beside_the_slots_count_where_nobody_uses_the_slots() -> None:
    # Best fit: a, in use, 1/(1+3) = 0.25; b, not in use, 1/(1+2) = 0.33 by its 2 free places, and
    # 1/(1+99) by the slots that it would be scored with otherwise.
    used, unused = agent("a", 4, 3, aux_free=5), agent("b", 99, aux_free=2)
    assert chosen_agents(AllocationRequest("1.1", 0), used, unused) == ["b"]
    # Worst fit: a 3/4 = 0.75, b 2/100 = 0.02.
    assert chosen_agents(AllocationRequest("1.1", 0), used, unused, fitting="worst") == ["a"]


def test_an_agent_that_drains_takes_nothing_and_gives_nothing_back() -> None:
    fleet = AgentSet([agent("a", 4, 0, aux_free=0, draining=True)])
    fleet.release_placements([Placement("a", 4), Placement("a", 0)])
    assert not fleet.can_fit_now(1, False)
    assert not fleet.can_fit_now(0, False)
    assert fleet.total_slots == 4
    # What it holds will not come back: a request of 4 waits for another agent.
    assert not fleet.can_ever_fit(4, False)


def test_what_is_given_back_can_be_taken_again() -> None:
    fleet = AgentSet([agent("a", 4, 0), agent("b", 4, 0)])
    fleet.release_placements([Placement("a", 2), Placement("nobody", 4)])
    assert fleet.place_request(AllocationRequest("1.1", 2)) == (Placement("a", 2),)
    assert not fleet.can_fit_now(1, False)


def number(text: str) -> int:
    """The first eight bytes of the MD5 digest, little-endian."""
    digest = md5(text.encode(), usedforsecurity=False).digest()
    return sum(byte << 8 * place for place, byte in enumerate(digest[:8]))


@pytest.mark.parametrize("allocation", [f"{n}.1" for n in range(1, 9)])
def test_equal_agents_are_told_apart_by_the_smaller_distance_of_hashes(allocation: str) -> None:
    names = ["a", "b", "c", "d"]
    expected = sorted(names, key=lambda name: (number(allocation) - number(name)) % 2**64)
    for order in (names, names[::-1]):
        some = [agent(name, 4, 2) for name in order]
        assert chosen_agents(AllocationRequest(allocation, 1), *some) == expected[:1]
        # 2 of 4 and 4 of 8 slots are the same part and a tie as well.
        some[0] = agent(order[0], 8, 4)
        assert (
            chosen_agents(AllocationRequest(allocation, 1), *some, fitting="worst") == expected[:1]
        )
        # A gang takes the nearest ones, in this order.
        whole = [agent(name, 4) for name in order]
        assert chosen_agents(AllocationRequest(allocation, 12), *whole) == expected[:3]


def test_the_distance_wraps_around() -> None:
    # RFC 1321: MD5("a") is 0cc175b9c0f1b6a8... Little-endian: 0xa8b6f1c0b975c10c.
    a, b = number("a"), number("b")
    assert a == 0xA8B6F1C0B975C10C < b
    # A request whose hash equals b's lies 0 behind b and b - a > 0 behind a; one that equals a's
    # lies 0 behind a and 2^64 + a - b behind b.
    agents = (agent("a", 4), agent("b", 4))
    assert chosen_agents(AllocationRequest("b", 1), *agents) == ["b"]
    assert chosen_agents(AllocationRequest("a", 1), *agents) == ["a"]
    assert chosen_agents(AllocationRequest("b", 8), *agents) == ["b", "a"]


def test_all_of_some_equal_agents_are_used() -> None:
    agents = [agent(f"agent-{n}", 4) for n in range(4)]
    counts = dict.fromkeys((one.agent for one in agents), 0)
    for trial in range(400):
        (name,) = chosen_agents(AllocationRequest(f"{trial}.1", 1), *agents)
        counts[name] += 1
    # As often as its part of the ring of hashes is long.
    assert min(counts.values()) > 0


def test_a_gang_gets_only_agents_whose_slots_nobody_uses() -> None:
    one_used = (agent("a", 8), agent("b", 8, 7), agent("c", 8))
    assert sorted(chosen_agents(AllocationRequest("1.1", 16), *one_used)) == ["a", "c"]
    assert chosen_agents(AllocationRequest("1.1", 24), *one_used) == []
    # Work beside the slots does not matter.
    assert (
        len(chosen_agents(AllocationRequest("1.1", 16), agent("a", 8, aux_free=0), agent("c", 8)))
        == 2
    )


def test_what_fits_on_one_agent_is_never_spread() -> None:
    assert chosen_agents(
        AllocationRequest("1.1", 8), agent("a", 8, 8), agent("b", 4), agent("c", 4)
    ) == ["a"]


def test_a_request_for_one_agent_waits_where_a_gang_would_start() -> None:
    agents = (agent("a", 8), agent("b", 8))
    assert chosen_agents(AllocationRequest("1.1", 16, single_agent=True), *agents) == []


def test_agents_of_several_sizes_work_together_only_where_the_pool_allows_it() -> None:
    # 12 = 8 + 4, with two agents of 8 and one of 4.
    agents = (agent("a", 8), agent("b", 8), agent("c", 4))
    assert chosen_agents(AllocationRequest("1.1", 12), *agents) == []
    places = AgentSet(agents, heterogeneous=True).find_placements(AllocationRequest("1.1", 12))
    assert [place.slots for place in places] == [8, 4]


def test_a_copy_is_changed_on_its_own() -> None:
    fleet = AgentSet([agent("a", 4, aux_free=1)])
    assert fleet.can_fit_now(0, False)
    other = fleet.copy()
    other.place_request(AllocationRequest("1.1", 4))
    other.place_request(AllocationRequest("2.1", 0))
    assert not other.can_fit_now(1, False)
    assert not other.can_fit_now(0, False)
    assert fleet.can_fit_now(4, False)
    assert fleet.can_fit_now(0, False)
