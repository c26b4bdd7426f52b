"""The sizes that agents can run, and the advice for other sizes."""

import pytest

from control_plane.scheduling.sizes import (
    AGENTS_MAX,
    can_hold,
    fitting_sizes,
    gang_shape,
    size_advice,
)


@pytest.mark.parametrize(
    ("slots", "unused", "expected"),
    [
        # 16 = 2 x 8; 24 = 3 x 8 takes all three.
        (16, {8: 3}, ((8, 2),)),
        (24, {8: 3}, ((8, 3),)),
        # 32 needs four, 12 is no multiple of 8.
        (32, {8: 3}, ()),
        (12, {8: 3}, ()),
        # The largest size that divides 12 and has enough agents: 12 = 3 x 4.
        (12, {8: 3, 4: 3}, ((4, 3),)),
        (16, {8: 1, 4: 4}, ((4, 4),)),
        (16, {8: 2, 4: 4}, ((8, 2),)),
        (16, {}, ()),
        (16, {8: 0, 0: 5}, ()),
    ],
)
def test_gang_uses_largest_size_that_divides(
    slots: int, unused: dict[int, int], expected: tuple[tuple[int, int], ...]
) -> None:
    assert gang_shape(slots, unused, heterogeneous=False) == expected


@pytest.mark.parametrize(
    ("slots", "unused", "expected"),
    [
        # 20 = 2 x 8 + 1 x 4.
        (20, {8: 3, 4: 3}, ((8, 2), (4, 1))),
        # A single size is preferred, although 8 + 4 would also make 12.
        (12, {8: 1, 4: 3}, ((4, 3),)),
        (12, {8: 1, 4: 1}, ((8, 1), (4, 1))),
        # 14: an agent of 8 and an agent of 5 leave 1. The combination 5 + 5 + 4 is not searched.
        (14, {8: 1, 5: 2, 4: 1}, ()),
        (14, {5: 2, 4: 1}, ((5, 2), (4, 1))),
    ],
)
def test_mixed_gang_is_greedy_and_exact(
    slots: int, unused: dict[int, int], expected: tuple[tuple[int, int], ...]
) -> None:
    assert gang_shape(slots, unused, heterogeneous=True) == expected


@pytest.mark.parametrize(
    ("slots", "single_agent", "expected"),
    [(1, False, True), (8, True, True), (9, False, False), (16, False, True), (16, True, False)],
)
def test_can_hold_a_single_agent_or_whole_agents(
    slots: int, single_agent: bool, expected: bool
) -> None:
    assert can_hold(slots, {8: 4}, single_agent) is expected


@pytest.mark.parametrize(
    ("slots", "agents", "single_agent", "heterogeneous", "expected"),
    [
        # For 12 on agents of 8: the smaller size is 8, the larger sizes are multiples of 8.
        (12, {8: 10}, False, False, (8, 16, 24)),
        (8, {8: 10}, False, False, (8,)),
        (12, {8: 10}, True, False, (8,)),
        # Three agents of 8 are 24 at most.
        (30, {8: 3}, False, False, (24,)),
        (20, {8: 3}, False, False, (16, 24)),
        # With agents of 4 and 8, 12 is 3 x 4. For 20 = 5 x 4 an agent is missing, but 8 + 8 + 4
        # fits.
        (12, {8: 2, 4: 4}, False, False, (12,)),
        (20, {8: 2, 4: 4}, False, False, (16,)),
        (20, {8: 2, 4: 4}, False, True, (20,)),
        (3, {}, False, False, ()),
    ],
)
def test_advises_a_smaller_and_two_larger_sizes(
    slots: int,
    agents: dict[int, int],
    single_agent: bool,
    heterogeneous: bool,
    expected: tuple[int, ...],
) -> None:
    assert fitting_sizes(slots, agents, single_agent, heterogeneous) == expected


def test_advice_names_sizes() -> None:
    twelve = "needs 12 slots: agents have 8; it would fit with 8, 16 or 24"
    assert size_advice(12, {8: 10}) == twelve
    single = "needs 12 slots on one agent: agents have 4 or 8; it would fit with 8"
    assert size_advice(12, {8: 1, 4: 2}, single_agent=True) == single
    assert size_advice(2, {}) == "needs 2 slots: no agent has slots"
    assert size_advice(2, {0: 3}) == "needs 2 slots: no agent has slots"


def test_gang_is_limited_by_commit_size() -> None:
    assert gang_shape(8 * AGENTS_MAX, {8: 40}, False) == ((8, AGENTS_MAX),)
    assert gang_shape(8 * AGENTS_MAX + 8, {8: 40}, False) == ()
    assert gang_shape(8 * AGENTS_MAX + 8, {8: 40, 4: 99}, True) == ()
    advised = (
        "needs 240 slots: agents have 8, and a trial spans at most 29 agents; it would fit with 232"
    )
    assert size_advice(240, {8: 40}) == advised
