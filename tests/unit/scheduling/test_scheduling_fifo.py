"""First in, first out."""

from collections.abc import Iterator

import pytest

from control_plane.scheduling import fifo
from control_plane.scheduling.model import Capacity, Request, SchedulePlan


def starts(plan: SchedulePlan) -> list[tuple[str, str]]:
    return [(start.request.allocation, start.agent) for start in plan.starts]


def queue(*slots: int) -> list[Request]:
    return [Request(f"{number}.1", count) for number, count in enumerate(slots, 1)]


def test_an_empty_queue_starts_nothing_and_waits_for_nothing() -> None:
    assert fifo.plan([], [Capacity("a", 4, 4)]) == SchedulePlan(())


def test_requests_start_until_one_does_not_fit() -> None:
    plan = fifo.plan(queue(2, 1, 2, 1), [Capacity("a", 4, 4)])
    # 4 - 2 - 1 leaves 1: the third needs 2, and the fourth must not overtake it.
    assert starts(plan) == [("1.1", "a"), ("2.1", "a")]
    assert plan.waits == "3.1 needs 2 slots; 1 free"


def test_a_plan_counts_what_it_has_given_away() -> None:
    plan = fifo.plan(queue(1, 1, 1, 1, 1), [Capacity("a", 2, 2), Capacity("b", 2, 2)])
    assert len(plan.starts) == 4
    assert plan.waits == "5.1 needs 1 slots; 0 free"
    assert sorted(agent for _, agent in starts(plan)) == ["a", "a", "b", "b"]


def test_the_second_request_joins_the_first_on_its_agent() -> None:
    # After the first start one agent has 3 free slots and the other 4: best fit packs.
    (_, first), (_, second) = starts(
        fifo.plan(queue(1, 1), [Capacity("a", 4, 4), Capacity("b", 4, 4)])
    )
    assert first == second


@pytest.mark.parametrize(
    ("agents", "free"), [([], 0), ([Capacity("a", 8, 3), Capacity("b", 8, 5)], 5)]
)
def test_what_waits_is_told_the_most_that_is_free_on_one_agent(
    agents: list[Capacity], free: int
) -> None:
    assert fifo.plan(queue(6), agents).waits == f"1.1 needs 6 slots; {free} free"


def test_the_queue_is_read_no_further_than_to_the_first_that_waits() -> None:
    read: list[str] = []

    def requests() -> Iterator[Request]:
        for request in queue(1, 9, 1, 1):
            read.append(request.allocation)
            yield request

    fifo.plan(requests(), [Capacity("a", 1, 1)])
    assert read == ["1.1", "2.1"]
