"""The context of an actor's step, and the effects that a step may have.

A step is `step(state, message, context) -> state`: given the same state, message and readings it
returns the same state and leaves the same effects in the context. The context only collects them:
the engine commits all of them, or none. A state of None means that there is no such actor.
"""

from dataclasses import dataclass
from typing import NamedTuple, Protocol, TypeVar

from control_plane.errors import Code, RequestError

P = TypeVar("P")


@dataclass(frozen=True, slots=True)
class Send:
    """An effect: mail `message` to the actor at address `to`."""

    to: str
    message: object


@dataclass(frozen=True, slots=True)
class SetTimer:
    """An effect: mail `message` to the actor itself at `due_ms`. Timers are never revoked, so a
    step ignores one that comes too late.
    """

    due_ms: int
    message: object


class ObservedRow(NamedTuple):
    """A row outside the actor as a step read it; revision 0 and no body: there was none."""

    revision: int
    body: bytes


@dataclass(frozen=True, slots=True)
class WriteRow:
    """An effect: write a row outside the actor, or remove it where `body` is None. With
    `expected`, the commit fails if the row has changed since it was read so.
    """

    partition: str
    sort: str
    body: bytes | None
    expected: ObservedRow | None = None


class CommandRefused(RequestError):
    """A user's command that an actor does not carry out: nothing changes and the user reads why."""

    def __init__(self, code: str, message: str) -> None:
        super().__init__(Code(code), message)


class Reader(Protocol):
    """The source of a step's readings. Reading what is not loaded yet aborts the step, which then
    runs again.
    """

    def part(self, name: str) -> object | None:
        """A part of the actor as committed, or None."""

    def row(self, partition: str, sort: str) -> ObservedRow:
        """A row outside the actor."""


class StepContext:
    """The context in which one message is handled: the time, what the actor may read, and the
    effects so far.

    A part that was written in this context reads back as written.
    """

    __slots__ = (
        "_reader",
        "address",
        "now_ms",
        "parts",
        "reasons",
        "reply",
        "rows",
        "sends",
        "timers",
    )

    def __init__(self, address: str, now_ms: int, reader: Reader) -> None:
        self.address = address
        self.now_ms = now_ms
        self.sends: list[Send] = []
        self.timers: list[SetTimer] = []
        self.parts: dict[str, object | None] = {}
        self.rows: list[WriteRow] = []
        self.reasons: list[str] = []
        self.reply: object = None
        self._reader = reader

    def part(self, name: str, kind: type[P]) -> P | None:
        """The actor's part `name`, or None if there is none."""
        value = self.parts[name] if name in self.parts else self._reader.part(name)
        assert value is None or isinstance(value, kind), (name, type(value))
        return value

    def row(self, partition: str, sort: str) -> ObservedRow:
        """A row outside the actor. Guard decisions based on it with `write_row(expected=...)`."""
        return self._reader.row(partition, sort)

    def send(self, to: str, message: object) -> None:
        """Send a message to another actor, or to this one."""
        self.sends.append(Send(to, message))

    def set_timer(self, due_ms: int, message: object) -> None:
        """Send a message to this actor at `due_ms`, epoch ms."""
        self.timers.append(SetTimer(due_ms, message))

    def write_part(self, name: str, value: object | None) -> None:
        """Replace a part of the actor, or remove it with None."""
        self.parts[name] = value

    def write_row(
        self, partition: str, sort: str, body: bytes | None, *, expected: ObservedRow | None = None
    ) -> None:
        """Write a row outside the actor, or remove it with None; `expected` as in WriteRow."""
        self.rows.append(WriteRow(partition, sort, body, expected))

    def add_reason(self, reason: str) -> None:
        """Add a reason for what this step does to the journal's entry."""
        self.reasons.append(reason)
