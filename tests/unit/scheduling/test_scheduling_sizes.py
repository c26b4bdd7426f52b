"""Which sizes agents can hold, and what to advise instead."""

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
        # The biggest size that divides and of which there are enough: 12 = 3 x 4.
        (12, {8: 3, 4: 3}, ((4, 3),)),
        (16, {8: 1, 4: 4}, ((4, 4),)),
        (16, {8: 2, 4: 4}, ((8, 2),)),
        (16, {}, ()),
        (16, {8: 0, 0: 5}, ()),
    ],
)
def test_a_gang_takes_whole_agents_of_one_size_biggest_first(
    slots: int, unused: dict[int, int], expected: tuple[tuple[int, int], ...]
) -> None:
    assert gang_shape(slots, unused, heterogeneous=False) == expected


@pytest.mark.parametrize(
    ("slots", "unused", "expected"),
    [
        # 20 = 2 x 8 + 1 x 4.
        (20, {8: 3, 4: 3}, ((8, 2), (4, 1))),
        # One size is preferred where one size will do, though 8 + 4 would hold 12 as well.
        (12, {8: 1, 4: 3}, ((4, 3),)),
        (12, {8: 1, 4: 1}, ((8, 1), (4, 1))),
        # 14: one of 8, one of 5, 1 left. 5 + 5 + 4 is not looked for.
        (14, {8: 1, 5: 2, 4: 1}, ()),
        (14, {5: 2, 4: 1}, ((5, 2), (4, 1))),
    ],
)
def test_a_heterogeneous_gang_takes_the_most_of_the_biggest_and_must_come_out_even(
    slots: int, unused: dict[int, int], expected: tuple[tuple[int, int], ...]
) -> None:
    assert gang_shape(slots, unused, heterogeneous=True) == expected


@pytest.mark.parametrize(
    ("slots", "single_agent", "expected"),
    [(1, False, True), (8, True, True), (9, False, False), (16, False, True), (16, True, False)],
)
def test_what_fits_on_one_agent_or_makes_whole_ones_can_be_held(
    slots: int, single_agent: bool, expected: bool
) -> None:
    assert can_hold(slots, {8: 4}, single_agent) is expected


@pytest.mark.parametrize(
    ("slots", "agents", "single_agent", "heterogeneous", "expected"),
    [
        # 12 on agents of 8: below it 8, above it the multiples.
        (12, {8: 10}, False, False, (8, 16, 24)),
        (8, {8: 10}, False, False, (8,)),
        (12, {8: 10}, True, False, (8,)),
        # Three agents of 8 are 24 at most.
        (30, {8: 3}, False, False, (24,)),
        (20, {8: 3}, False, False, (16, 24)),
        # With 4s beside the 8s, 12 is 3 x 4; 20 = 5 x 4 lacks a 4, but 8 + 8 + 4 is mixed.
        (12, {8: 2, 4: 4}, False, False, (12,)),
        (20, {8: 2, 4: 4}, False, False, (16,)),
        (20, {8: 2, 4: 4}, False, True, (20,)),
        (3, {}, False, False, ()),
    ],
)
def test_the_nearest_sizes_that_would_work_are_one_smaller_and_two_larger(
    slots: int,
    agents: dict[int, int],
    single_agent: bool,
    heterogeneous: bool,
    expected: tuple[int, ...],
) -> None:
    assert fitting_sizes(slots, agents, single_agent, heterogeneous) == expected


def test_the_advice_names_the_sizes() -> None:
    twelve = "needs 12 slots: agents have 8; it would fit with 8, 16 or 24"
    assert size_advice(12, {8: 10}) == twelve
    single = "needs 12 slots on one agent: agents have 4 or 8; it would fit with 8"
    assert size_advice(12, {8: 1, 4: 2}, single_agent=True) == single
    assert size_advice(2, {}) == "needs 2 slots: no agent has slots"
    assert size_advice(2, {0: 3}) == "needs 2 slots: no agent has slots"


def test_a_gang_is_of_no_more_agents_than_one_commit_holds() -> None:
    assert gang_shape(8 * AGENTS_MAX, {8: 40}, False) == ((8, AGENTS_MAX),)
    assert gang_shape(8 * AGENTS_MAX + 8, {8: 40}, False) == ()
    assert gang_shape(8 * AGENTS_MAX + 8, {8: 40, 4: 99}, True) == ()
    advised = (
        "needs 240 slots: agents have 8, and a trial spans at most 29 agents; it would fit with 232"
    )
    assert size_advice(240, {8: 40}) == advised
