"""One actor at a desk: it takes messages, and what it writes and sends lies there to be read."""

from typing import Any, TypeVar

from control_plane.actors.step import RowSeen, Send, SetTimer, Turn, WriteRow
from control_plane.dispatch.kinds import encode_for, kind_at, parse_json

T = TypeVar("T")

ABSENT = RowSeen(0, b"")
START_MS = 1_000


class Desk:
    """An actor without an engine. It is stored and read back after every message, as a table
    would, so whatever does not survive that fails here. `rows` may be shared between desks.
    """

    def __init__(self, address: str, rows: dict[tuple[str, str], RowSeen] | None = None) -> None:
        self.address = address
        self.now_ms = START_MS
        self.state: Any = None
        self.rows = {} if rows is None else rows
        self.parts: dict[str, bytes] = {}
        self.sent: list[Send] = []
        self.all_sent: list[Send] = []
        self.timers: list[SetTimer] = []
        self.parts_written: list[str] = []
        self.reasons: list[str] = []
        self._kind = kind_at(address)

    def tell(self, *messages: object) -> object:
        """Folds messages as one commit does; returns the reply to the last of them."""
        self.sent, self.parts_written, self.reasons = [], [], []
        reply: object = None
        for message in messages:
            turn = Turn(self.address, self.now_ms, self)
            self._take(self._kind.step(self.state, self._mailed(message), turn), turn)
            reply = turn.reply
        if self._kind.settle is not None and self.state is not None:
            turn = Turn(self.address, self.now_ms, self)
            self._take(self._kind.settle(self.state, turn), turn)
        self.all_sent += self.sent
        return reply

    def bury(self, message: object) -> None:
        """Takes a message as a dead letter."""
        self.sent = []
        turn = Turn(self.address, self.now_ms, self)
        self._take(self._kind.fallback(self.state, self._mailed(message), turn), turn)
        self.all_sent += self.sent

    def sent_to(self, address: str) -> list[object]:
        """What the last messages made it send to `address`."""
        return [send.message for send in self.sent if send.to == address]

    def ever_sent(self, kind: type[T]) -> list[T]:
        """Everything of a kind that it sent so far, to anybody."""
        return [send.message for send in self.all_sent if isinstance(send.message, kind)]

    def part(self, name: str) -> object | None:
        """See Reader."""
        body = self.parts.get(name)
        return None if body is None else self._kind.decode_part(name, body)

    def row(self, partition: str, sort: str) -> RowSeen:
        """See Reader."""
        return self.rows.get((partition, sort), ABSENT)

    def _mailed(self, message: object) -> object:
        name, body = self._kind.encode_message(message)
        return self._kind.decode_message(name, parse_json(body))

    def _take(self, state: object, turn: Turn) -> None:
        for name, value in turn.parts.items():
            if value is None:
                self.parts.pop(name, None)
            else:
                self.parts[name] = self._kind.encode_part(name, value)
        for row in turn.rows:
            self._write(row)
        for send in turn.sends:
            encode_for(send.to, send.message)
        self.sent += turn.sends
        self.timers += turn.timers
        self.parts_written += turn.parts
        self.reasons += turn.reasons
        if state is not None:
            stored = self._kind.decode_state(self._kind.encode_state(state))
            assert stored == state
            state = stored
        self.state = state

    def _write(self, row: WriteRow) -> None:
        found = self.row(row.partition, row.sort)
        assert row.seen is None or row.seen == found, "a guard would fail the commit"
        if row.body is None:
            self.rows.pop((row.partition, row.sort), None)
        else:
            self.rows[row.partition, row.sort] = RowSeen(found.revision + 1, row.body)
