"""Folding messages into one commit: the outcome of each step is collected, and the writes of the
commit are built from it. Nothing here reads or writes the table.
"""

import zlib
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import chain
from types import MappingProxyType
from typing import Any

from control_plane.actors.step import ObservedRow, SetTimer, StepContext
from control_plane.engine import journal, mailbox, outputs
from control_plane.engine.actor_types import (
    ActorType,
    EncodedMessage,
    actor_type_at,
    encode_message_for,
    parse_json,
)
from control_plane.engine.head import HEAD, PARTS, Header, Spill, encode_head
from control_plane.engine.mailbox import MailboxRow
from control_plane.evolve import evolve
from control_plane.state.table import OPERATIONS_MAX, Check, Delete, Expect, Key, Put, Write

# Operations of a commit that folding may use; the end of the fold, when a pool schedules, may use
# the rest.
FOLD_OPERATIONS_MAX = 60
# Bytes of mail folded in one commit, unless a single row has more: the journal keeps them in one
# row.
FOLD_BYTES_MAX = 192 * 1024
# A spilled outbox is cut into parts of so many bytes, or larger ones where those would be too many.
SPILL_PART_BYTES_MAX = 256 * 1024
SPILL_PARTS_MAX = 30
SPILL_ROW_BYTES_MAX = 350 * 1024
# Receivers that one commit sends a spilled outbox to.
DRAINED_RECEIVERS_MAX = 90


@dataclass(frozen=True, slots=True)
class ActorSnapshot:
    """An actor as it was loaded or committed. `revision` is 0 and `state` None where there is no
    actor.
    """

    address: str
    revision: int
    header: Header
    state: Any

    @property
    def actor_type(self) -> ActorType:
        """The actor's type."""
        return actor_type_at(self.address)


@dataclass
class Fold:
    """The outcome of the `steps` folded so far.

    `row_writes` are rows outside the actor: the observation that guards each, which is in
    `row_guards` too, and the last body, None for a deletion. `rows_read` are all rows that were
    read. `delivered` came with the commit itself and is in no row (delivery.py). A reason comes
    with the number of its step, from 0.
    """

    state: Any
    parts: dict[str, object | None] = field(default_factory=dict)
    sends: dict[str, list[EncodedMessage]] = field(default_factory=dict)
    row_writes: dict[Key, tuple[ObservedRow | None, bytes | None]] = field(default_factory=dict)
    row_guards: dict[Key, ObservedRow] = field(default_factory=dict)
    rows_read: dict[Key, ObservedRow] = field(default_factory=dict)
    timers: list[SetTimer] = field(default_factory=list)
    consumed: list[MailboxRow] = field(default_factory=list)
    delivered: list[MailboxRow] = field(default_factory=list)
    reasons: list[tuple[int, str]] = field(default_factory=list)
    reply: object = None
    steps: int = 0
    consumed_bytes: int = 0

    def operation_count(self) -> int:
        """The operations of this fold's commit, with the head and the journal."""
        # Each mail that is dropped is deleted and journaled on its own.
        consumed = len(self.consumed) * (2 if self.state is None else 1)
        written = len(self.parts) + len(self.row_writes) + len(self.timers) + len(self.sends)
        return 2 + consumed + written

    def message_count(self) -> int:
        """The messages of mail that are folded."""
        return sum(len(mail.messages) for mail in self.consumed)

    def consume(self, mail: MailboxRow) -> None:
        """Add mail whose messages are folded."""
        self.consumed.append(mail)
        self.consumed_bytes += len(mail.body)

    def has_room(self, step: "Step", mail_bytes: int) -> bool:
        """Whether a commit can hold this with one more step, one more row of mail of so many bytes
        in all, and the end of the fold.
        """
        context = step.context
        rows = {(row.partition, row.sort) for row in context.rows}
        more = len(context.parts.keys() - self.parts.keys()) + len(context.timers)
        more += len(rows - self.row_writes.keys()) + len(step.sends.keys() - self.sends.keys())
        more += len(self.consumed) * ((step.state is None) - (self.state is None))
        size = mail_bytes + self.consumed_bytes
        return self.operation_count() + more < FOLD_OPERATIONS_MAX and size <= FOLD_BYTES_MAX

    def add_step(self, step: "Step") -> None:
        """Add the outcome of one step."""
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
        self.timers += context.timers
        self.reasons += [(self.steps, reason) for reason in context.reasons]
        self.steps += 1
        if context.reply is not None:
            self.reply = context.reply


@dataclass(frozen=True, slots=True)
class Step:
    """The outcome of one step: the state it returned, what it told its context, and the messages
    that it sent, encoded, by receiver.
    """

    state: Any
    context: StepContext
    sends: Mapping[str, Sequence[EncodedMessage]]


def step_of(state: Any, context: StepContext) -> Step:
    """The outcome of a step that returned this state; raises for messages that cannot be stored."""
    sends: dict[str, list[EncodedMessage]] = {}
    for send in context.sends:
        sends.setdefault(send.to, []).append(encode_message_for(send.to, send.message))
    return Step(state, context, sends)


@dataclass(frozen=True, slots=True)
class Origin:
    """The origin of a fold if it is not only mail: a command and its user, or a dead letter."""

    command: tuple[EncodedMessage, ...] = ()
    user: str = ""
    is_dead_letter: bool = False


MAIL_ONLY = Origin()


@dataclass(frozen=True, slots=True)
class Commit:
    """The writes of a fold, the actor after them, and the receivers of new mail."""

    writes: tuple[Write, ...]
    snapshot: ActorSnapshot
    receivers: tuple[str, ...]


def build_commit(
    before: ActorSnapshot,
    fold: Fold,
    now_ms: int,
    origin: Origin = MAIL_ONLY,
    extra_write_count: int = 0,
    delivered_clocks: Mapping[str, int] = MappingProxyType({}),
) -> Commit:
    """The commit of a fold: every write that it needs, each with the condition that guards it.

    `extra_write_count`: how many writes the caller adds to the commit. `delivered_clocks`: the
    receivers whose messages are in these writes, and are no mail, and when they were sent.
    """
    if fold.state is None:
        # The head was read before the mail: the actor may have been created in between.
        absent = Check(Key(before.address, HEAD), Expect.ABSENT)
        return Commit(
            (absent, *_mail_removals(fold, now_ms), *_dropped_mail_writes(before, fold, now_ms)),
            before,
            (),
        )
    header, sends = before.header, fold.sends
    too_many = fold.operation_count() + extra_write_count > OPERATIONS_MAX
    if sends and (too_many or header.spill is not None):
        # What was spilled before is sent before.
        header, sends = _spill_outbox(before, fold)
    sends = {to: messages for to, messages in sends.items() if to not in delivered_clocks}
    heard = (mail.clock for mail in (*fold.consumed, *fold.delivered))
    clock = max([header.clock, *heard, *delivered_clocks.values()])
    revision = before.revision + 1
    header, mailed = prepare_mail(before.address, evolve(header, clock=clock), sends, now_ms)
    header, timers = _prepare_timers(before.address, header, fold, now_ms)
    actor_type = before.actor_type
    state = actor_type.encode_state(fold.state)
    expect = before.revision or Expect.ABSENT
    writes: tuple[Write, ...] = (
        Put(Key(before.address, HEAD), revision, encode_head(header, state), expect),
        *_mail_removals(fold, now_ms),
        *_part_writes(before, fold, revision, now_ms),
        *mailed,
        *timers,
        *_row_writes(fold, revision),
        _journal_write(before, fold, revision, now_ms, origin),
    )
    after = ActorSnapshot(before.address, revision, header, fold.state)
    return Commit(writes, after, tuple(sends))


def fold_outputs(before: ActorSnapshot, fold: Fold) -> dict[str, bytes]:
    """The outputs of a fold, by the names of outputs.py."""
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


def build_drain_commit(
    before: ActorSnapshot, entries: list[tuple[str, list[EncodedMessage]]], more: bool, now_ms: int
) -> Commit:
    """The commit that sends `entries`, the next ones of a spilled outbox. With `more`, the part
    that holds them has further entries.
    """
    spill = before.header.spill
    assert spill is not None
    left: Spill | None = replace(spill, offset=spill.offset + len(entries))
    if not more:
        left = None if spill.first == spill.last else Spill(spill.first + 1, spill.last)
    header, mailed = prepare_mail(
        before.address, evolve(before.header, spill=left), dict(entries), now_ms
    )
    revision = before.revision + 1
    state = before.actor_type.encode_state(before.state)
    head = Put(Key(before.address, HEAD), revision, encode_head(header, state), before.revision)
    part = Delete(spill_key(before.address, spill.first), Expect.ANYTHING)
    after = replace(before, revision=revision, header=header)
    writes: tuple[Write, ...] = (head, *mailed) if more else (head, part, *mailed)
    return Commit(writes, after, tuple(to for to, _ in entries))


def prepare_mail(
    sender: str, header: Header, sends: dict[str, list[EncodedMessage]], now_ms: int
) -> tuple[Header, list[Put]]:
    """The writes of mail, one row per receiver, and the sender's header after them."""
    clock, rows, writes = header.clock, dict[str, str](), list[Put]()
    for receiver, messages in sends.items():
        clock = mailbox.next_clock(clock, now_ms)
        key = mailbox.mail_key(receiver, clock, sender)
        rows[receiver] = key.sort
        constructs = messages[0][0] == actor_type_at(receiver).constructor
        previous = mailbox.FIRST if constructs else header.previous_row(receiver)
        due_ms = now_ms + mailbox.RECOVERY_DELAY_MS
        writes.append(mailbox.mail_write(key, sender, previous, clock, messages, due_ms))
    return header.with_sent_rows(rows, clock), writes


def spill_key(address: str, number: int) -> Key:
    """The key of a numbered part of a spilled outbox."""
    return Key(address, f"{PARTS}outbox/{number:06d}")


def encode_spill(entries: list[tuple[str, list[EncodedMessage]]]) -> bytes:
    """Encode receivers and their messages, in order, as a part of a spilled outbox.

    They are much alike and compress well: the outbox of an experiment with a hundred thousand
    trials fits into one commit.
    """
    listed = [
        b'["%s",[%s]]'
        % (to.encode(), b",".join(b'["%s",%s]' % (n.encode(), body) for n, body in messages))
        for to, messages in entries
    ]
    return zlib.compress(b"[" + b",".join(listed) + b"]", 1)


def decode_spill(body: bytes) -> list[tuple[str, list[tuple[str, Any]]]]:
    """Decode a part of a spilled outbox: receivers, and the names and fields of their messages."""
    entries: list[tuple[str, list[tuple[str, Any]]]] = parse_json(zlib.decompress(body))
    return entries


def _mail_removals(fold: Fold, now_ms: int) -> list[Write]:
    return [mail.removal(now_ms) for mail in fold.consumed]


def _part_writes(before: ActorSnapshot, fold: Fold, revision: int, now_ms: int) -> Iterable[Write]:
    # The head's condition guards the parts: every write of one bumps the head.
    for name, value in fold.parts.items():
        key = Key(before.address, PARTS + name)
        if value is None:
            yield Delete(key, Expect.ANYTHING)
        elif isinstance(value, _SpillPart):
            # Due like mail, so that the recovery pass finds it if no process goes on with it.
            due_ms = now_ms + mailbox.RECOVERY_DELAY_MS
            yield Put(key, revision, value.body, Expect.ANYTHING, due_ms)
        else:
            body = before.actor_type.encode_part(name, value)
            yield Put(key, revision, body, Expect.ANYTHING)


def _row_writes(fold: Fold, revision: int) -> Iterable[Write]:
    for key, (seen, body) in fold.row_writes.items():
        expect = Expect.ANYTHING if seen is None else seen.revision or Expect.ABSENT
        if body is None:
            yield Delete(key, expect)
        else:
            yield Put(key, seen.revision + 1 if seen else revision, body, expect)


def _prepare_timers(
    address: str, header: Header, fold: Fold, now_ms: int
) -> tuple[Header, list[Put]]:
    clock, writes = header.clock, list[Put]()
    for timer in fold.timers:
        clock = mailbox.next_clock(clock, now_ms)
        encoded = encode_message_for(address, timer.message)
        writes.append(mailbox.timer_write(address, timer.due_ms, clock, encoded, now_ms))
    return evolve(header, clock=clock), writes


@dataclass(frozen=True, slots=True)
class _SpillPart:
    body: bytes


def _spill_outbox(
    before: ActorSnapshot, fold: Fold
) -> tuple[Header, dict[str, list[EncodedMessage]]]:
    """Move the outbox into parts, which are sent before anything else is sent; returns the header
    that says so, and no messages to send now.
    """
    spill = before.header.spill
    first = spill.last + 1 if spill else 0
    bodies = _spill_parts(list(fold.sends.items()))
    for number, body in enumerate(bodies, first):
        fold.parts[f"outbox/{number:06d}"] = _SpillPart(body)
    last = first + len(bodies) - 1
    left = replace(spill, last=last) if spill else Spill(first, last)
    return evolve(before.header, spill=left), {}


def _spill_parts(entries: list[tuple[str, list[EncodedMessage]]]) -> list[bytes]:
    """Encode an outbox in as few parts as possible, each of which fits into a row."""
    weights = [sum(len(body) + 64 for _, body in messages) for _, messages in entries]
    part_weight = max(SPILL_PART_BYTES_MAX, sum(weights) // SPILL_PARTS_MAX)
    bodies: list[bytes] = []
    start = size = 0
    for place, weight in enumerate(weights):
        if place > start and size + weight > part_weight:
            bodies += _encode_in_rows(entries[start:place])
            start, size = place, 0
        size += weight
    return bodies + _encode_in_rows(entries[start:])


def _encode_in_rows(entries: list[tuple[str, list[EncodedMessage]]]) -> list[bytes]:
    """Encode a part of a spilled outbox; as several if it does not fit into a row."""
    body = encode_spill(entries)
    if len(body) <= SPILL_ROW_BYTES_MAX or len(entries) == 1:
        return [body]
    middle = len(entries) // 2
    return [*_encode_in_rows(entries[:middle]), *_encode_in_rows(entries[middle:])]


def _journal_write(
    before: ActorSnapshot,
    fold: Fold,
    revision: int,
    now_ms: int,
    origin: Origin,
) -> Put:
    pieces = fold_outputs(before, fold)
    read = {**fold.row_guards, **fold.rows_read}
    entry = journal.NewEntry(
        now_ms=now_ms,
        mail=tuple(mail.body for mail in (*fold.consumed, *fold.delivered)),
        command=origin.command,
        rows_read={f"{key.partition}/{key.sort}": list(seen) for key, seen in read.items()},
        output_digests={name: outputs.output_digest(piece) for name, piece in pieces.items()},
        field_count=len(before.actor_type.field_names),
        reasons=fold.reasons,
        user=origin.user,
        is_dead_letter=origin.is_dead_letter,
        is_spilled=before.header.spill is not None
        or any(name.startswith(outputs.OUTBOX) for name in fold.parts),
    )
    write = journal.entry_write(before.address, revision, entry)
    kept_ms = before.actor_type.journal_kept_ms
    if kept_ms is None or revision % journal.TRIMMED_ROWS:
        return write
    return replace(write, due_ms=now_ms + kept_ms, expires=True)


def _dropped_mail_writes(before: ActorSnapshot, fold: Fold, now_ms: int) -> list[Put]:
    return [
        journal.dropped_mail_write(before.address, mail.key.sort, mail.body, now_ms)
        for mail in fold.consumed
    ]
