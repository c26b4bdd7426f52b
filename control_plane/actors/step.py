"""The context of an actor's step, and the effects of a step.

A step is `step(state, message, context) -> state`. The same state, message and readings always
yield the same state and effects. The context only collects the effects: the engine commits all of
them, or none. A state of None means that the actor does not exist.
"""

from dataclasses import dataclass
from typing import NamedTuple, Protocol, TypeVar

from control_plane.errors import Code, RequestError

P = TypeVar("P")


@dataclass(frozen=True, slots=True)
class Send:
    """An effect: put `message` into the mailbox of the actor at the address `to`."""

    to: str
    message: object


@dataclass(frozen=True, slots=True)
class SetTimer:
    """An effect: put `message` into the actor's own mailbox at `due_ms`.

    Timers cannot be canceled, so a step ignores a timer message that is out of date.
    """

    due_ms: int
    """The due time, in epoch ms."""
    message: object


class ObservedRow(NamedTuple):
    """A row outside the actor, in the state that a step read."""

    revision: int
    """The row's revision, 0 if the row does not exist."""
    body: bytes
    """The row's body, empty if the row does not exist."""


@dataclass(frozen=True, slots=True)
class WriteRow:
    """An effect: write a row outside the actor, or remove the row."""

    partition: str
    """The partition of the row."""
    sort: str
    """The sort key of the row."""
    body: bytes | None
    """The new body. None removes the row."""
    expected: ObservedRow | None = None
    """The row as the step read it. If the row has changed since, the commit fails. None: no
    condition.
    """
    expires_ms: int | None = None
    """The time at which the row is deleted, in epoch ms. None: never."""
    due_ms: int | None = None
    """The time at which the due index returns the row, in epoch ms. None: never."""


class CommandRefused(RequestError):
    """The refusal of a user's command. The command has no effect, and the user gets the message."""

    def __init__(self, code: str, message: str) -> None:
        """Create the refusal with a code of `control_plane.errors.Code` and a message for the user.

        Raises:
            ValueError: the code is unknown.
        """
        super().__init__(Code(code), message)


class Reader(Protocol):
    """The source of a step's readings.

    Reading a part or row that is not loaded yet aborts the step. The engine loads the part or row
    and runs the step again.
    """

    def part(self, name: str) -> object | None:
        """Return the committed value of a part of the actor's state.

        Return None if the part does not exist.
        """

    def row(self, partition: str, sort: str) -> ObservedRow:
        """Return a row outside the actor, with revision 0 if the row does not exist."""


class StepContext:
    """The context of a step that handles a message: the time, the readings, and the collected
    effects.

    The engine commits the effects after the step. `reply` is the answer to a user's command, None
    for no answer. Nothing is committed if the step raises an error.
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
        """Return the part `name` of the actor's state. Return None if the part does not exist.

        Each part is stored in a separate row. A part that was written in this context is returned
        as it was written. The read of a part that is not loaded yet aborts the step, and the engine
        runs the step again.

        Raises:
            AssertionError: the part is not an instance of `kind`.
        """
        value = self.parts[name] if name in self.parts else self._reader.part(name)
        assert value is None or isinstance(value, kind), (name, type(value))
        return value

    def row(self, partition: str, sort: str) -> ObservedRow:
        """Return a row outside the actor as committed, with revision 0 if the row does not exist.

        Writes of this context are not included. A decision that depends on the row is guarded with
        `write_row(expected=...)`. The read of a row that is not loaded yet aborts the step, and the
        engine runs the step again.
        """
        return self._reader.row(partition, sort)

    def send(self, to: str, message: object) -> None:
        """Collect a message to the actor at the address `to`, which may be this actor."""
        self.sends.append(Send(to, message))

    def set_timer(self, due_ms: int, message: object) -> None:
        """Collect a message to this actor that arrives at `due_ms`, in epoch ms, or soon after.

        Timers cannot be canceled.
        """
        self.timers.append(SetTimer(due_ms, message))

    def write_part(self, name: str, value: object | None) -> None:
        """Collect the replacement of a part of the actor's state. A value of None removes the part.

        Later calls of `part` in this context return the new value.
        """
        self.parts[name] = value

    def write_row(
        self,
        partition: str,
        sort: str,
        body: bytes | None,
        *,
        expected: ObservedRow | None = None,
        expires_ms: int | None = None,
        due_ms: int | None = None,
    ) -> None:
        """Collect the write of a row outside the actor. A body of None removes the row.

        Args:
            expected: the row as a call of `row` returned it. If the row has changed since, the
                commit fails and the step runs again. None: no condition.
            expires_ms: the time at which the row is deleted, in epoch ms. None: never.
            due_ms: the time at which the due index returns the row, in epoch ms. None: never. A row
                that expires has no other due time.
        """
        assert expires_ms is None or due_ms is None, sort
        self.rows.append(WriteRow(partition, sort, body, expected, expires_ms, due_ms))

    def add_reason(self, reason: str) -> None:
        """Add a sentence to the journal entry of this step that explains an effect."""
        self.reasons.append(reason)
