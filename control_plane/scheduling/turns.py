"""The order of a queue whose requests belong to groups with limits."""

from collections.abc import Iterable, Iterator
from heapq import heappop, heappush
from itertools import count

from control_plane.scheduling.model import Line, Request

_Head = tuple[str, int, Request, Iterator[Request], int | None]


def in_turn(lines: Iterable[Line]) -> Iterator[Request]:
    """The requests by ticket, as if each started before the next is asked for.

    `lines` come in the order of their tickets. A line ends where its group has no room for the
    next request: the others go on. Nothing is read before its turn: of a line, what may start and
    one more; of the lines, those whose turn it is and one more.
    """
    coming = iter(lines)
    numbers = count()
    line = next(coming, None)
    heads: list[_Head] = []
    while line is not None or heads:
        if line is not None and (not heads or line.ticket < heads[0][0]):
            _step_up(heads, iter(line.requests), line.room, next(numbers))
            line = next(coming, None)
        else:
            _, number, request, rest, room = heappop(heads)
            yield request
            left = None if room is None else room - request.slots
            _step_up(heads, rest, left, number)


def has_room(slots: int, room: int | None) -> bool:
    """Whether a request of `slots` may start in a group with `room`; one of none always may."""
    return room is None or slots == 0 or slots <= room


def _step_up(heads: list[_Head], rest: Iterator[Request], room: int | None, number: int) -> None:
    request = next(rest, None)
    if request is not None and has_room(request.slots, room):
        heappush(heads, (request.ticket, number, request, rest, room))
