"""The requests that wait for a pool's slots, by group: an experiment's trials share a limit.

Three ordered maps in parts. `queue` says by ticket whose turn may come: a request that is in no
group, or a group by the first of its requests. `requests` holds the requests of groups, by group
and ticket; `groups` the limit of each and the slots it has. A group without room for its first
request is not in the queue, so its thousands of requests are not looked at until it has.
"""

from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace

from control_plane.actors.ordered import Ordered
from control_plane.actors.step import Turn
from control_plane.scheduling.model import Line, Request
from control_plane.scheduling.turns import has_room

# A request that was on its way when the limit changed carries the one before.
LIMIT_KEPT_MS = 600_000
# Half of what other maps hold: these keys are long.
LEAF_MAX = 32


@dataclass(frozen=True, slots=True)
class Group:
    """The slots that a group has, at most `max_slots` unless None. `limited_ms`: when the limit was
    changed last while it ran, 0 for never.
    """

    max_slots: int | None = None
    running: int = 0
    limited_ms: int = 0

    @property
    def room(self) -> int | None:
        """Slots that it may have beside, None for any number; below 0 where it has too many."""
        return None if self.max_slots is None else self.max_slots - self.running


class Waiting:
    """Who waits in the pool whose turn it is."""

    def __init__(self, turn: Turn) -> None:
        self._now_ms = turn.now_ms
        self._queue = Ordered(turn, "queue")
        self._requests = Ordered(turn, "requests", LEAF_MAX)
        self._groups = Ordered(turn, "groups")

    def add(self, request: Request) -> None:
        """Lets a request wait."""
        value = (request.allocation, request.slots)
        if not request.group:
            self._queue.put(request.ticket, value)
            return
        key = _request_key(request.group, request.ticket)
        self._change(request.group, lambda: self._requests.put(key, value))

    def remove(self, request: Request) -> bool:
        """Takes a request out, found by its allocation, ticket and group; whether it waited."""
        if _allocation(self._queue.get(request.ticket)) == request.allocation:
            self._queue.remove(request.ticket)
            return True
        group = request.group or self._group_of(request.ticket)
        key = _request_key(group, request.ticket)
        if _allocation(self._requests.get(key)) != request.allocation:
            return False
        self._change(group, lambda: self._requests.remove(key))
        return True

    def start(self, request: Request) -> None:
        """The request waits no more: it has its slots."""
        if not request.group:
            self._queue.remove(request.ticket)
            return

        def started() -> None:
            self._requests.remove(_request_key(request.group, request.ticket))
            self._add_running(request.group, request.slots)

        self._change(request.group, started)

    def free(self, group: int, slots: int) -> None:
        """The group has given slots back."""
        if group:
            self._change(group, lambda: self._add_running(group, -slots))

    def heed(self, group: int, max_slots: int | None) -> int:
        """Takes the limit that a request carries, unless a later change of it is known; the slots
        the group has too many then.
        """
        known = self.group(group)
        if known.max_slots == max_slots or self._is_recent(known):
            return 0
        return self._set_limit(group, replace(known, max_slots=max_slots))

    def limit(self, group: int, max_slots: int | None) -> int:
        """Changes the limit; the slots the group has too many then."""
        known = self.group(group)
        return self._set_limit(group, replace(known, max_slots=max_slots, limited_ms=self._now_ms))

    def group(self, group: int) -> Group:
        """What is known of a group."""
        found = self._groups.get(_group_key(group))
        if not isinstance(found, list | tuple):
            return Group()
        max_slots, running, limited_ms = found
        return Group(max_slots, running, limited_ms)

    def lines(self) -> Iterator[Line]:
        """Who may start, by ticket. What a line holds is read when it is asked for."""
        for ticket, value in self._queue.items():
            assert isinstance(value, list | tuple)
            if len(value) == 1:
                group = value[0]
                yield Line(ticket, self.requests(group), self.group(group).room)
            else:
                yield Line(ticket, (Request(value[0], value[1], ticket),))

    def requests(self, group: int) -> Iterator[Request]:
        """The requests of a group, by ticket."""
        for key, value in self._requests.items(_request_key(group, "")):
            request = _parsed(key, value)
            if request.group != group:
                return
            yield request

    def items(self) -> Iterator[Request]:
        """Every request that waits, in no order that matters."""
        for ticket, value in self._queue.items():
            assert isinstance(value, list | tuple)
            if len(value) > 1:
                yield Request(value[0], value[1], ticket)
        for key, value in self._requests.items():
            yield _parsed(key, value)

    def held_back(self, group: int) -> str:
        """Why none of the group's requests may start; "" if one may or none waits."""
        first = self._first(group)
        known = self.group(group)
        if first is None or has_room(first.slots, known.room):
            return ""
        return (
            f"{first.allocation} needs {first.slots} slots; experiment {group} has {known.running}"
            f" of its max_slots {known.max_slots}"
        )

    def first_held_back(self) -> str:
        """Why the first group's requests may not start, where nobody's may."""
        first = next(self._requests.items(), None)
        return "" if first is None else self.held_back(_parsed(*first).group)

    def _set_limit(self, group: int, after: Group) -> int:
        self._change(group, lambda: self._put_group(group, after))
        room = after.room
        return 0 if room is None else max(0, -room)

    def _add_running(self, group: int, slots: int) -> None:
        known = self.group(group)
        self._put_group(group, replace(known, running=max(0, known.running + slots)))

    def _put_group(self, group: int, after: Group) -> None:
        if after == Group():
            self._groups.remove(_group_key(group))
            return
        value = (after.max_slots, after.running, after.limited_ms)
        self._groups.put(_group_key(group), value)

    def _change(self, group: int, change: Callable[[], None]) -> None:
        """Keeps the group's place in the queue true to a change, and forgets a group that has
        nothing and wants nothing.
        """
        before = self._next_ticket(group)
        change()
        after = self._next_ticket(group)
        if after != before:
            # First in, so that a leaf of one entry is not given up for a new one.
            if after:
                self._queue.put(after, (group,))
            if before:
                self._queue.remove(before)
        known = self.group(group)
        if not (known.running or self._is_recent(known) or self._first(group)):
            self._groups.remove(_group_key(group))

    def _is_recent(self, known: Group) -> bool:
        return known.limited_ms > 0 and self._now_ms - known.limited_ms < LIMIT_KEPT_MS

    def _next_ticket(self, group: int) -> str:
        first = self._first(group)
        if first is None or not has_room(first.slots, self.group(group).room):
            return ""
        return first.ticket

    def _first(self, group: int) -> Request | None:
        found = self._requests.first(_request_key(group, ""))
        request = None if found is None else _parsed(*found)
        return request if request is not None and request.group == group else None

    def _group_of(self, ticket: str) -> int:
        """For those who do not say it, as requests once had no group."""
        found = (_parsed(key, value) for key, value in self._requests.items())
        return next((request.group for request in found if request.ticket == ticket), 0)


def _group_key(group: int) -> str:
    return f"{group:012d}"


def _request_key(group: int, ticket: str) -> str:
    return f"{group:012d}.{ticket}"


def _parsed(key: str, value: object) -> Request:
    assert isinstance(value, list | tuple)
    group, _, ticket = key.partition(".")
    return Request(value[0], value[1], ticket, int(group))


def _allocation(value: object) -> str:
    """Of the request that a place holds; "" for a group's place and for none."""
    return str(value[0]) if isinstance(value, list | tuple) and len(value) > 1 else ""
