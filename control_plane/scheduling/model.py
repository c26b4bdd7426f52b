"""What every scheduler sees and answers."""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Request:
    """A queued allocation: its identity, its slots and its place (requests come in queue order)."""

    allocation: str
    slots: int


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
