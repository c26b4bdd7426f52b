"""Best fit: the fullest agent that still holds the request, ties by a hash."""

from hashlib import md5

import pytest

from control_plane.scheduling.fitting import best_fit
from control_plane.scheduling.model import Capacity, Request


def chosen(request: Request, *agents: Capacity) -> str | None:
    found = best_fit(request, agents)
    return found.agent if found else None


@pytest.mark.parametrize(
    ("slots", "agent"),
    [(1, "b"), (2, "b"), (3, "c"), (4, "a"), (5, None)],
)
def test_the_agent_with_the_fewest_free_slots_that_fit_is_chosen(
    slots: int, agent: str | None
) -> None:
    agents = (Capacity("a", 8, 4), Capacity("b", 4, 2), Capacity("c", 4, 3), Capacity("d", 4, 0))
    assert chosen(Request("1.1", slots), *agents) == agent


def test_free_slots_count_and_not_the_share_of_them() -> None:
    assert chosen(Request("1.1", 1), Capacity("a", 100, 3), Capacity("b", 4, 4)) == "a"


def test_without_agents_nothing_fits() -> None:
    assert chosen(Request("1.1", 0)) is None


def test_an_agent_without_slots_takes_nothing() -> None:
    # An agent that drains or is disabled has a capacity of 0.
    assert chosen(Request("1.1", 0), Capacity("a", 0, 0)) is None


def test_a_zero_slot_request_goes_to_the_fullest_agent() -> None:
    assert chosen(Request("1.1", 0), Capacity("a", 2, 2), Capacity("b", 2, 0)) == "b"


def number(text: str) -> int:
    """The first eight bytes of the MD5 digest, little-endian."""
    digest = md5(text.encode(), usedforsecurity=False).digest()
    return sum(byte << 8 * place for place, byte in enumerate(digest[:8]))


@pytest.mark.parametrize("allocation", [f"{n}.1" for n in range(1, 9)])
def test_equal_agents_are_told_apart_by_the_smaller_distance_of_hashes(allocation: str) -> None:
    names = ["a", "b", "c", "d"]
    expected = min(names, key=lambda name: (number(allocation) - number(name)) % 2**64)
    for order in (names, names[::-1]):
        assert chosen(Request(allocation, 1), *(Capacity(name, 4, 2) for name in order)) == expected


def test_the_distance_wraps_around() -> None:
    # RFC 1321: MD5("a") is 0cc175b9c0f1b6a8... Little-endian: 0xa8b6f1c0b975c10c.
    a, b = number("a"), number("b")
    assert a == 0xA8B6F1C0B975C10C < b
    # A request whose hash equals b's lies 0 behind b and b - a > 0 behind a; one that equals a's
    # lies 0 behind a and 2^64 + a - b behind b.
    agents = (Capacity("a", 4, 4), Capacity("b", 4, 4))
    assert chosen(Request("b", 1), *agents) == "b"
    assert chosen(Request("a", 1), *agents) == "a"


def test_equal_agents_are_used_about_evenly() -> None:
    agents = [Capacity(f"agent-{n}", 4, 4) for n in range(4)]
    counts = dict.fromkeys((agent.agent for agent in agents), 0)
    for trial in range(400):
        found = chosen(Request(f"{trial}.1", 1), *agents)
        assert found is not None
        counts[found] += 1
    assert min(counts.values()) > 0
