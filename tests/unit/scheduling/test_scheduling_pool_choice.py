"""The time when a job leaves a preferred pool, and the next pool."""

from collections.abc import Sequence
from itertools import pairwise

import pytest

from control_plane.scheduling.pool_choice import (
    DOUBLED_ROUNDS_MAX,
    PoolWait,
    leave_time_ms,
    next_pool,
    round_number,
)

SINCE, PATIENCE = 1_000, 600


@pytest.mark.parametrize(
    ("rounds", "closed", "is_held", "leaves_ms"),
    [
        # First round: after the patience, or at once in a closed pool.
        (0, False, False, SINCE + PATIENCE),
        (0, True, False, SINCE),
        # In the first round, held slots do not keep the job: the next pool may be faster.
        (0, False, True, SINCE + PATIENCE),
        (0, True, True, SINCE),
        # Later rounds: after a whole patience, or longer in an open pool.
        (1, True, False, SINCE + PATIENCE),
        (1, False, False, SINCE + 2 * PATIENCE),
        (2, False, False, SINCE + 4 * PATIENCE),
        (9, True, False, SINCE + PATIENCE),
        # Held slots become available.
        (1, False, True, None),
        # The pool has been closed since, so held slots do not count.
        (1, True, True, SINCE + PATIENCE),
        # An unrealistic number of rounds still gives a time.
        (10_000, False, False, SINCE + PATIENCE * 2**DOUBLED_ROUNDS_MAX),
    ],
)
def test_leave_time_depends_on_round_and_pool(
    rounds: int, closed: bool, is_held: bool, leaves_ms: int | None
) -> None:
    wait = PoolWait(SINCE, PATIENCE, rounds, closed=closed, is_held=is_held)
    assert leave_time_ms(wait) == leaves_ms


@pytest.mark.parametrize(
    ("present", "existing", "following"),
    [
        ("a", "abc", "b"),
        ("b", "abc", "c"),
        ("c", "abc", "a"),
        # Removed pools are skipped.
        ("a", "ac", "c"),
        ("b", "ab", "a"),
        ("a", "a", None),
        ("a", "", None),
        # A user has moved the job to a pool outside the list.
        ("x", "abcx", None),
    ],
)
def test_next_pool_is_next_existing_in_list(
    present: str, existing: str, following: str | None
) -> None:
    assert next_pool("abc", present, lambda name: name in existing) == following


@pytest.mark.parametrize(("moves", "pools", "number"), [(0, 2, 0), (1, 2, 0), (2, 2, 1), (7, 3, 2)])
def test_round_ends_after_visit_of_each_pool(moves: int, pools: int, number: int) -> None:
    assert round_number(moves, pools) == number


@pytest.mark.parametrize("closed", [(), (0,), (1,), (0, 1), (0, 1, 2)])
def test_later_moves_are_a_patience_apart(
    closed: Sequence[int],
) -> None:
    pools = 3
    now_ms, moved_ms = 0, list[int]()
    while now_ms < 100 * PATIENCE:
        number = len(moved_ms)
        is_closed = number % pools in closed
        wait = PoolWait(now_ms, PATIENCE, round_number(number, pools), closed=is_closed)
        leaves_ms = leave_time_ms(wait)
        assert leaves_ms is not None
        now_ms = leaves_ms
        moved_ms.append(now_ms)
    # The first round has three moves, later moves are at least a whole patience apart.
    later = moved_ms[pools - 1 :]
    assert all(b - a >= PATIENCE for a, b in pairwise(later))
    assert len(moved_ms) <= pools + 100
