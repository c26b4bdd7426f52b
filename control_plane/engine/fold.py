"""Folds: the combined outcome of the steps that a commit makes durable.

The functions of this module neither read nor write the table.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from itertools import chain
from typing import Any

from control_plane.actors.step import ObservedRow, SetTimer, StepContext
from control_plane.engine import outputs
from control_plane.engine.actor_types import (
    ActorType,
    EncodedMessage,
    actor_type_at,
    encode_message_for,
)
from control_plane.engine.head import Header, UnknownFields
from control_plane.engine.mailbox import MailboxRow
from control_plane.state.table import Key

# The operations of a commit that steps may use. The rest is left to `finish_fold`, in which a pool
# schedules.
FOLD_OPERATIONS_MAX = 60
# The maximum bytes of mail that a commit folds. A larger first message is folded alone. The limit
# exists because a single journal row stores all mail of the commit.
FOLD_BYTES_MAX = 192 * 1024


@dataclass(frozen=True, slots=True)
class ActorSnapshot:
    """A loaded actor, or an actor after a commit."""

    address: str
    """The address, which is also the partition of the actor's rows, for example `trial#7`."""
    revision: int
    """The revision of the head row. 0 for an actor that does not exist."""
    header: Header
    """The engine's record of the actor, which is stored in the head row."""
    state: Any
    """The decoded state. None for an actor that does not exist."""
    unknown: UnknownFields = field(default_factory=UnknownFields)
    """The stored fields of newer versions, which each commit writes again."""

    @property
    def actor_type(self) -> ActorType:
        """The type of the actor, derived from the address. Raises KeyError for an unknown type."""
        return actor_type_at(self.address)


@dataclass
class Fold:
    """The combined outcome of the steps of a commit, before the commit is built."""

    state: Any
    """The state after the last step. None if the actor does not exist."""
    parts: dict[str, object | None] = field(default_factory=dict)
    """The changed parts by name. None deletes the part."""
    sends: dict[str, list[EncodedMessage]] = field(default_factory=dict)
    """The encoded messages that the steps sent, by receiver."""
    row_writes: dict[Key, tuple[ObservedRow | None, bytes | None]] = field(default_factory=dict)
    """The changed rows outside the actor: the guard (the row as it was read, or None) and the last
    body. A body of None deletes the row.
    """
    row_expiries: dict[Key, int] = field(default_factory=dict)
    """The time at which a written row expires, in epoch ms, of rows that expire."""
    row_dues: dict[Key, int] = field(default_factory=dict)
    """The time at which the due index returns a written row, in epoch ms, of rows in the index."""
    row_guards: dict[Key, ObservedRow] = field(default_factory=dict)
    """The rows outside the actor whose revision the commit is conditional on, as they were read."""
    rows_read: dict[Key, ObservedRow] = field(default_factory=dict)
    """All rows outside the actor that steps read, as they were read."""
    timers: list[SetTimer] = field(default_factory=list)
    """The timers that the steps set."""
    consumed: list[MailboxRow] = field(default_factory=list)
    """The mail whose messages are folded. The commit removes them from the mailbox."""
    delivered: list[MailboxRow] = field(default_factory=list)
    """The messages that the sender's commit folds directly. No mailbox row contains them
    (delivery.py).
    """
    reasons: list[tuple[int, str]] = field(default_factory=list)
    """The reasons that steps gave for their decisions, each with the number of the step from 0."""
    reply: object = None
    """The last reply that a step gave to a user's command. None if no step replied."""
    steps: int = 0
    """The number of steps added so far."""
    consumed_bytes: int = 0
    """The total size of the bodies in `consumed`."""

    def operation_count(self) -> int:
        """Return the number of table operations of this fold's commit, so far.

        The head and the journal entry count, and each removed mailbox row, changed part, changed
        row, timer and receiver of messages. Without a state, the mail is dropped: each mailbox row
        counts twice, because a journal row records the mail.
        """
        # Mail to a missing actor is dropped: a deletion and a journal row for each mailbox row.
        consumed = len(self.consumed) * (2 if self.state is None else 1)
        written = len(self.parts) + len(self.row_writes) + len(self.timers) + len(self.sends)
        return 2 + consumed + written

    def message_count(self) -> int:
        """Return the number of messages in the mailbox rows that the fold consumes."""
        return sum(len(mail.messages) for mail in self.consumed)

    def consume(self, mail: MailboxRow) -> None:
        """Record a mailbox row after folding the messages, so that the commit removes the row.

        The steps of the messages are added separately, with `add_step`.
        """
        self.consumed.append(mail)
        self.consumed_bytes += len(mail.body)

    def has_room(self, step: "Step", mail_bytes: int) -> bool:
        """Return whether a further step keeps the commit below the limits. The fold is not changed.

        The commit must stay below FOLD_OPERATIONS_MAX operations and must fold at most
        FOLD_BYTES_MAX bytes of mail. The rest of a commit's operations is left to `finish_fold`.

        Args:
            step: the outcome of the further step.
            mail_bytes: the size of the step's mailbox row, up to and including the step's message.
        """
        context = step.context
        rows = {(row.partition, row.sort) for row in context.rows}
        more = len(context.parts.keys() - self.parts.keys()) + len(context.timers)
        more += len(rows - self.row_writes.keys()) + len(step.sends.keys() - self.sends.keys())
        more += len(self.consumed) * ((step.state is None) - (self.state is None))
        size = mail_bytes + self.consumed_bytes
        return self.operation_count() + more < FOLD_OPERATIONS_MAX and size <= FOLD_BYTES_MAX

    def add_step(self, step: "Step") -> None:
        """Add the outcome of a step: the state, changed parts and rows, messages, timers, reasons
        and reply.

        Values of the step replace earlier values of the same part or row, times included. The
        first guard of a row applies to all writes of the row. A reply of None keeps the earlier
        reply.
        """
        context = step.context
        self.state = step.state
        self.parts.update(context.parts)
        for to, messages in step.sends.items():
            self.sends.setdefault(to, []).extend(messages)
        for row in context.rows:
            key = Key(row.partition, row.sort)
            if row.expected is not None:
                self.row_guards.setdefault(key, row.expected)
            self.row_writes[key] = (self.row_guards.get(key), row.body)
            for times, time_ms in (
                (self.row_expiries, row.expires_ms),
                (self.row_dues, row.due_ms),
            ):
                times.pop(key, None)
                if time_ms is not None:
                    times[key] = time_ms
        self.timers += context.timers
        self.reasons += [(self.steps, reason) for reason in context.reasons]
        self.steps += 1
        if context.reply is not None:
            self.reply = context.reply


@dataclass(frozen=True, slots=True)
class Step:
    """The outcome of the step of a message, not yet part of a fold."""

    state: Any
    """The state that the step returned. None if the actor does not exist after the step."""
    context: StepContext
    """The step context, which has collected the effects of the step."""
    sends: Mapping[str, Sequence[EncodedMessage]]
    """The encoded messages of the step, by receiver."""


def step_of(state: Any, context: StepContext) -> Step:
    """Build the outcome of a step from the returned state and the context. Encodes the messages.

    Raises KeyError for a message that the receiver's type does not accept, or for an unknown type
    of receiver. Raises ValueError for a message with values that cannot be encoded.
    """
    sends: dict[str, list[EncodedMessage]] = {}
    for send in context.sends:
        sends.setdefault(send.to, []).append(encode_message_for(send.to, send.message))
    return Step(state, context, sends)


def fold_outputs(before: ActorSnapshot, fold: Fold) -> dict[str, bytes]:
    """Return the outputs of a fold: each changed value, encoded without defaults, by output name
    (outputs.py).

    Outputs are changed state fields, parts, rows outside the actor, messages and timers. Parts of a
    spilled outbox (messages that a full commit did not mail) are left out. The fold must have a
    state. Raises ValueError for a value that cannot be encoded.
    """
    actor_type = before.actor_type
    return dict(
        chain(
            outputs.field_outputs(actor_type, before.state, fold.state),
            outputs.part_outputs(actor_type, fold.parts),
            outputs.row_outputs({key: body for key, (_, body) in fold.row_writes.items()}),
            outputs.mail_outputs(fold.sends),
            outputs.timer_outputs(actor_type, fold.timers),
        )
    )
