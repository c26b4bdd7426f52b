"""Positions in the queue of a pool."""

from decimal import Decimal

import pytest

from control_plane.scheduling.queue_positions import (
    PositionError,
    QueueEntry,
    check_operation_supported,
    check_priority,
    check_weight,
    initial_position,
    jobs_ahead,
    moved_entry,
    queue_order,
    reprioritised_entry,
)

NOW_MS = 1_000


def standing(group: int, position: str = "", priority: int = 42) -> QueueEntry:
    """Return the entry of a job submitted `group` x 100 ms after the epoch."""
    at = Decimal(position) if position else initial_position(group * 100)
    return QueueEntry(group, group * 100, priority, at)


def move(
    queue: list[QueueEntry], group: int, *, ahead: int = 0, behind: int = 0
) -> list[QueueEntry]:
    """Return the queue after the move."""
    after = moved_entry(queue, group, ahead or behind, ahead=ahead > 0, now_ms=NOW_MS)
    return queue_order([after, *(one for one in queue if one.group != group)])


def groups(queue: list[QueueEntry]) -> list[int]:
    return [one.group for one in queue]


def entry_of(queue: list[QueueEntry], group: int) -> QueueEntry:
    return next(one for one in queue if one.group == group)


def test_initial_position_is_submission_in_microseconds() -> None:
    assert initial_position(1_640_995_260_000) == 1_640_995_260_000_000


def test_example_of_determineds_manual() -> None:
    # Job 1 runs and job 2 waits. Moved ahead, job 2 gets the middle between the head of the queue
    # and job 1: (1 + 100000) / 2.
    queue = move([standing(1), standing(2)], 2, ahead=1)
    assert groups(queue) == [2, 1]
    assert entry_of(queue, 2).position == Decimal("50000.5")
    # Both jobs get priority 1 in a batch, which keeps their order.
    batch = [reprioritised_entry(one, 1, keep_position=True) for one in queue]
    assert groups(queue_order(batch)) == [2, 1]
    assert [one.priority for one in batch] == [1, 1]
    # Outside a batch, each job returns to the position of its submission.
    alone = [reprioritised_entry(one, 1) for one in queue]
    assert groups(queue_order(alone)) == [1, 2]


@pytest.mark.parametrize(
    ("group", "ahead", "behind", "order", "position"),
    [
        # Between 1 and 2: (100000 + 200000) / 2.
        (3, 2, 0, [1, 3, 2, 4], "150000"),
        (4, 0, 1, [1, 4, 2, 3], "150000"),
        # At the ends: (1 + 100000) / 2 and (400000 + 1000000) / 2.
        (3, 1, 0, [3, 1, 2, 4], "50000.5"),
        (1, 0, 4, [2, 3, 4, 1], "700000"),
        # Already at the position.
        (1, 2, 0, [1, 2, 3, 4], "100000"),
        (2, 0, 1, [1, 2, 3, 4], "200000"),
        (2, 2, 0, [1, 2, 3, 4], "200000"),
    ],
)
def test_moved_job_gets_middle_of_neighbours(
    group: int, ahead: int, behind: int, order: list[int], position: str
) -> None:
    queue = move([standing(n) for n in (1, 2, 3, 4)], group, ahead=ahead, behind=behind)
    assert groups(queue) == order
    assert entry_of(queue, group).position == Decimal(position)


def test_moved_job_gets_priority_of_anchor() -> None:
    queue = [standing(1, priority=10), standing(2, priority=10), standing(3)]
    after = move(queue, 3, ahead=2)
    assert groups(after) == [1, 3, 2]
    assert entry_of(after, 3) == QueueEntry(3, 300, 10, Decimal(150_000))


def test_job_between_neighbours_keeps_submission_position() -> None:
    # Job 2 stood at 7 and belongs at 200000: between 100000 and 300000.
    queue = [standing(1, priority=10), standing(3, priority=10), standing(2, "7")]
    after = move(queue, 2, ahead=3)
    assert entry_of(after, 2) == QueueEntry(2, 200, 10, Decimal(200_000))


def test_neighbour_of_other_priority_keeps_job_on_its_side() -> None:
    # Job 9, ahead of job 1, is more important and was submitted far later. The middle (900000 +
    # 100000) / 2 = 500000 would be behind job 1, so job 2 gets a microsecond ahead of job 1.
    queue = [standing(9, priority=1), standing(1), standing(2)]
    after = move(queue, 2, ahead=1)
    assert groups(after) == [9, 2, 1]
    assert entry_of(after, 2).position == Decimal(99_999)
    # The same behind the last job of a priority, whose next neighbour is less important and older.
    queue = [standing(8), standing(9), standing(1, priority=50)]
    after = move(queue, 8, behind=9)
    assert groups(after) == [9, 8, 1]
    assert entry_of(after, 8).position == Decimal(900_001)


def test_hundreds_of_moves_between_two_jobs() -> None:
    queue = [standing(n) for n in (1, 2, 3, 4)]
    for n in range(250):
        mover = 3 + n % 2
        queue = move(queue, mover, behind=1)
        assert groups(queue)[:2] == [1, mover]
    assert len(str(entry_of(queue, 3).position)) < 320


def test_rejects_move_without_number_between_neighbours() -> None:
    queue = [standing(1), QueueEntry(2, 100, 42, Decimal(100_000)), standing(3)]
    with pytest.raises(PositionError, match="unable to compute a new job position: no position is"):
        move(queue, 3, ahead=2)


def test_rejects_job_outside_queue() -> None:
    with pytest.raises(PositionError, match="job 7 not found"):
        move([standing(1)], 1, ahead=7)
    with pytest.raises(PositionError, match="job 7 not found"):
        move([standing(1)], 7, ahead=1)


def test_new_priority_resets_position() -> None:
    assert reprioritised_entry(standing(3, "7"), 1) == standing(3, priority=1)
    assert reprioritised_entry(standing(3, "7"), 42) == standing(3, "7")


@pytest.mark.parametrize("priority", [0, 100, -1])
def test_rejects_priorities_outside_1_to_99(priority: int) -> None:
    with pytest.raises(PositionError, match=r"priority must be between 1 and 99"):
        reprioritised_entry(standing(1), priority)
    check_priority(1)
    check_priority(99)


@pytest.mark.parametrize("weight", [0, -1.0, float("nan"), float("inf")])
def test_rejects_weights_not_finite_and_positive(weight: float) -> None:
    with pytest.raises(PositionError, match="weight must be greater than 0"):
        check_weight(weight)
    check_weight(0.1)


@pytest.mark.parametrize(
    ("operation", "scheduler", "other"),
    [
        ("ahead-of", "fair_share", "priority"),
        ("behind-of", "round_robin", "priority"),
        ("priority", "fair_share", "priority"),
        ("weight", "priority", "fair_share"),
    ],
)
def test_rejects_change_unsupported_by_scheduler(
    operation: str, scheduler: str, other: str
) -> None:
    message = f"unable to perform operation on resource pool with {scheduler}: {operation} needs"
    with pytest.raises(PositionError, match=message):
        check_operation_supported(operation, scheduler)
    check_operation_supported(operation, other)


def test_jobs_ahead_counts_from_head_of_queue() -> None:
    assert jobs_ahead([standing(1), standing(2, priority=1), standing(3, "7")]) == {
        2: 0,
        3: 1,
        1: 2,
    }
