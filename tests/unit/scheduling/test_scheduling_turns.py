"""The order of requests whose groups have limits."""

from collections.abc import Iterable, Iterator
from random import Random

from hypothesis import given, settings
from hypothesis import strategies as st

from control_plane.scheduling import fifo
from control_plane.scheduling.model import Capacity, Line, Request
from control_plane.scheduling.turns import has_room, in_turn


def line(tickets: str, room: int | None = None, slots: int = 1) -> Line:
    """Requests with one letter each for a ticket, which is their name too."""
    requests = [Request(ticket, slots, ticket) for ticket in tickets]
    return Line(tickets[0], requests, room)


def order(*lines: Line) -> str:
    return "".join(request.allocation for request in in_turn(lines))


def test_groups_take_turns_by_ticket() -> None:
    assert order(line("ad"), line("bc"), line("e")) == "abcde"


def test_a_group_goes_no_further_than_its_room() -> None:
    # The second group has room for 2 of its 3 requests.
    assert order(line("af"), line("bcd", room=2), line("e")) == "abcef"


def test_a_group_without_room_holds_nobody_up() -> None:
    assert order(line("ab", room=0), line("cd")) == "cd"
    assert order(line("ab", room=-3), line("cd")) == "cd"


def test_room_counts_slots_not_requests() -> None:
    # 5 slots of room hold two requests of 2; the third needs 2 of the 1 that is left.
    assert order(line("abc", room=5, slots=2)) == "ab"


def test_a_request_for_no_slots_needs_no_room() -> None:
    assert order(line("ab", room=0, slots=0)) == "ab"
    assert has_room(0, -1)
    assert not has_room(1, 0)


def test_no_more_is_read_than_whose_turn_it_is() -> None:
    read: list[str] = []

    def noted(tickets: str) -> Iterator[Request]:
        for ticket in tickets:
            read.append(ticket)
            yield Request(ticket, 1, ticket)

    def lines() -> Iterable[Line]:
        for tickets in ("ax", "bc", "def"):
            yield Line(tickets[0], noted(tickets))

    plan = fifo.plan(in_turn(lines()), [Capacity("node", 2, 2)])
    # a and b start, c does not fit: x and c were looked at behind them, nothing of the third.
    assert [start.request.allocation for start in plan.starts] == ["a", "b"]
    assert sorted(read) == ["a", "b", "c", "x"]


GROUPS = st.lists(
    st.tuples(st.lists(st.integers(0, 3), min_size=1, max_size=4), st.integers(-1, 6) | st.none()),
    max_size=5,
)


@settings(deadline=None, derandomize=True)
@given(GROUPS, st.randoms(use_true_random=False))
def test_it_is_the_same_as_asking_all_of_them_each_time(
    groups: list[tuple[list[int], int | None]], chance: Random
) -> None:
    tickets = [f"{number:02d}" for number in range(sum(len(slots) for slots, _ in groups))]
    chance.shuffle(tickets)
    waiting: list[list[Request]] = []
    for slots, _ in groups:
        mine, tickets = sorted(tickets[: len(slots)]), tickets[len(slots) :]
        requests = zip(mine, slots, strict=True)
        waiting.append([Request(ticket, count, ticket) for ticket, count in requests])
    rooms = [room for _, room in groups]
    lines = [Line(one[0].ticket, one, room) for one, room in zip(waiting, rooms, strict=True)]
    found = list(in_turn(sorted(lines, key=lambda one: one.ticket)))
    assert found == _by_asking_all(waiting, rooms)


def _by_asking_all(waiting: list[list[Request]], rooms: list[int | None]) -> list[Request]:
    left, room = [list(one) for one in waiting], list(rooms)
    found: list[Request] = []
    while True:
        may = [n for n, one in enumerate(left) if one and has_room(one[0].slots, room[n])]
        if not may:
            return found
        first = min(may, key=lambda n: left[n][0].ticket)
        request = left[first].pop(0)
        has = room[first]
        room[first] = None if has is None else has - request.slots
        found.append(request)
