"""What every scheduler sees and answers."""

from collections.abc import Iterable
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Request:
    """A queued allocation: its identity, its slots, its place (tickets sort in queue order) and
    the group it counts for, 0 for none.
    """

    allocation: str
    slots: int
    ticket: str = ""
    group: int = 0


@dataclass(frozen=True, slots=True)
class Line:
    """The waiting requests of one group, in order. `ticket` is that of the first of them; `room`
    the slots that the group may take beside those it has, None for any number.
    """

    ticket: str
    requests: Iterable[Request]
    room: int | None = None


@dataclass(frozen=True, slots=True)
class Capacity:
    """An agent that takes work: `total` slots, of which `free` are."""

    agent: str
    total: int
    free: int


@dataclass(frozen=True, slots=True)
class Start:
    """Give `request` its slots on `agent`."""

    request: Request
    agent: str


@dataclass(frozen=True, slots=True)
class SchedulePlan:
    """What to start, in order, and why the first request left behind waits ("" if none does)."""

    starts: tuple[Start, ...]
    waits: str = ""
