"""What an actor's step works with. A turn only collects values: the engine commits them, or none.

A step is `step(state, message, turn) -> state`: given the same state, message and readings it
returns the same state and leaves the same effects in the turn. None for a state means that there
is no such actor.
"""

from dataclasses import dataclass
from typing import NamedTuple, Protocol, TypeVar

P = TypeVar("P")


@dataclass(frozen=True, slots=True)
class Send:
    """Mails `message` to the actor at address `to`."""

    to: str
    message: object


@dataclass(frozen=True, slots=True)
class SetTimer:
    """Mails `message` to the actor itself at `due_ms`. Timers are not revoked: a late one is
    harmless.
    """

    due_ms: int
    message: object


class RowSeen(NamedTuple):
    """A row outside the actor as a step saw it; revision 0 and no body: there was none."""

    revision: int
    body: bytes


@dataclass(frozen=True, slots=True)
class WriteRow:
    """Writes a row outside the actor, or removes it where `body` is None. With `seen` it is a
    guard: the commit fails if the row moved on.
    """

    partition: str
    sort: str
    body: bytes | None
    seen: RowSeen | None = None


class Refused(Exception):
    """A user's command cannot be carried out: nothing changes and the user reads why."""

    def __init__(self, code: str, message: str) -> None:
        super().__init__(message)
        self.code = code


class Reader(Protocol):
    """Where a turn's readings come from; a reading that is not at hand aborts the step, to be run
    again.
    """

    def part(self, name: str) -> object | None:
        """A part of the actor as committed, or None."""

    def row(self, partition: str, sort: str) -> RowSeen:
        """A row outside the actor."""


class Turn:
    """One message's turn: the time, what the actor may read, and the effects it has so far.

    A part that the turn wrote reads back as written.
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
        found = self.parts[name] if name in self.parts else self._reader.part(name)
        assert found is None or isinstance(found, kind), (name, type(found))
        return found

    def row(self, partition: str, sort: str) -> RowSeen:
        """A row outside the actor. Guard what is decided upon it with `write_row(seen=...)`."""
        return self._reader.row(partition, sort)

    def send(self, to: str, message: object) -> None:
        """Mails a message to another actor, or to this one."""
        self.sends.append(Send(to, message))

    def set_timer(self, due_ms: int, message: object) -> None:
        """Mails a message to this actor at `due_ms`, epoch ms."""
        self.timers.append(SetTimer(due_ms, message))

    def write_part(self, name: str, value: object | None) -> None:
        """Replaces a part, or removes it with None."""
        self.parts[name] = value

    def write_row(
        self, partition: str, sort: str, body: bytes | None, *, seen: RowSeen | None = None
    ) -> None:
        """Writes a row outside the actor; see WriteRow."""
        self.rows.append(WriteRow(partition, sort, body, seen))

    def because(self, reason: str) -> None:
        """Notes why, for the journal."""
        self.reasons.append(reason)
