"""A harness for an actor without an engine, which delivers messages and collects the effects."""

from typing import Any, TypeVar

from control_plane.actors.step import ObservedRow, Send, SetTimer, StepContext, WriteRow
from control_plane.engine.actor_types import actor_type_at, encode_message_for, parse_json

T = TypeVar("T")

ABSENT = ObservedRow(0, b"")
START_MS = 1_000


class ActorHarness:
    """An actor without an engine.

    The state is encoded and decoded after every message, as by a state table, so that fields that
    are not stored fail here. Several harnesses may share `rows`.
    """

    def __init__(
        self, address: str, rows: dict[tuple[str, str], ObservedRow] | None = None
    ) -> None:
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
        self.actor_type = actor_type_at(address)

    def deliver(self, *messages: object) -> object:
        """Fold messages as in a single commit. Return the reply to the last message."""
        self.sent, self.parts_written, self.reasons = [], [], []
        reply: object = None
        for message in messages:
            context = StepContext(self.address, self.now_ms, self)
            self._apply_effects(
                self.actor_type.step(self.state, self._encode_and_decode(message), context),
                context,
            )
            reply = context.reply
        if self.actor_type.finish_fold is not None and self.state is not None:
            context = StepContext(self.address, self.now_ms, self)
            self._apply_effects(self.actor_type.finish_fold(self.state, context), context)
        self.all_sent += self.sent
        return reply

    def deliver_dead_letter(self, message: object) -> None:
        """Deliver a message as a dead letter, to the actor's fallback."""
        self.sent = []
        context = StepContext(self.address, self.now_ms, self)
        self._apply_effects(
            self.actor_type.fallback(self.state, self._encode_and_decode(message), context),
            context,
        )
        self.all_sent += self.sent

    def messages_to(self, address: str) -> list[object]:
        """Return the messages to `address` of the last delivery."""
        return [send.message for send in self.sent if send.to == address]

    def all_messages(self, kind: type[T]) -> list[T]:
        """Return all messages of a class that the actor has sent so far, to any address."""
        return [send.message for send in self.all_sent if isinstance(send.message, kind)]

    def part(self, name: str) -> object | None:
        """Return a decoded part of the actor, or None."""
        body = self.parts.get(name)
        return None if body is None else self.actor_type.decode_part(name, body)

    def row(self, partition: str, sort: str) -> ObservedRow:
        """Return a row outside the actor."""
        return self.rows.get((partition, sort), ABSENT)

    def _encode_and_decode(self, message: object) -> object:
        name, body = self.actor_type.encode_message(message)
        return self.actor_type.decode_message(name, parse_json(body))

    def _apply_effects(self, state: object, context: StepContext) -> None:
        for name, value in context.parts.items():
            if value is None:
                self.parts.pop(name, None)
            else:
                self.parts[name] = self.actor_type.encode_part(name, value)
        for row in context.rows:
            self._write_row(row)
        for send in context.sends:
            encode_message_for(send.to, send.message)
        self.sent += context.sends
        self.timers += context.timers
        self.parts_written += context.parts
        self.reasons += context.reasons
        if state is not None:
            stored = self.actor_type.decode_state(self.actor_type.encode_state(state))
            assert stored == state
            state = stored
        self.state = state

    def _write_row(self, row: WriteRow) -> None:
        stored = self.row(row.partition, row.sort)
        assert row.expected is None or row.expected == stored, "a guard would fail the commit"
        if row.body is None:
            self.rows.pop((row.partition, row.sort), None)
        else:
            self.rows[row.partition, row.sort] = ObservedRow(stored.revision + 1, row.body)
