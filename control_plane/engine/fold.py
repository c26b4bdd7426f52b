"""Folds: collecting the outcomes of steps, and building the writes of a commit from a fold.

The functions of this module neither read nor write the table.
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
from control_plane.engine.head import HEAD, PARTS, Header, Spill, UnknownFields, encode_head
from control_plane.engine.mailbox import MailboxRow
from control_plane.evolve import evolve
from control_plane.rows.unknown_fields import append_fields
from control_plane.state.table import OPERATIONS_MAX, Check, Delete, Expect, Key, Put, Write

# The operations of a commit that steps may use. The rest is left to `finish_fold`, in which a pool
# schedules.
FOLD_OPERATIONS_MAX = 60
# The maximum bytes of mail that a commit folds. A larger first message is folded alone. The limit
# exists because a single journal row stores all mail of the commit.
FOLD_BYTES_MAX = 192 * 1024
# The target size of the parts of a spilled outbox, before compression. Parts are larger if an
# outbox would have more than SPILL_PARTS_MAX parts.
SPILL_PART_BYTES_MAX = 256 * 1024
SPILL_PARTS_MAX = 30
SPILL_ROW_BYTES_MAX = 350 * 1024
# The number of receivers to which a commit sends a spilled outbox.
DRAINED_RECEIVERS_MAX = 90


@dataclass(frozen=True, slots=True)
class ActorSnapshot:
    """A loaded or committed actor. A missing actor has revision 0 and state None."""

    address: str
    revision: int
    header: Header
    state: Any
    unknown: UnknownFields = field(default_factory=UnknownFields)
    """The stored fields of newer versions, which each commit writes again."""

    @property
    def actor_type(self) -> ActorType:
        """The type of the actor, derived from the address."""
        return actor_type_at(self.address)


@dataclass
class Fold:
    """The combined outcome of the steps of a commit."""

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
    row_guards: dict[Key, ObservedRow] = field(default_factory=dict)
    """The rows outside the actor whose revision the commit is conditional on, as they were read."""
    rows_read: dict[Key, ObservedRow] = field(default_factory=dict)
    """All rows outside the actor that steps read, as they were read."""
    timers: list[SetTimer] = field(default_factory=list)
    consumed: list[MailboxRow] = field(default_factory=list)
    """The mail whose messages are folded. The commit removes them from the mailbox."""
    delivered: list[MailboxRow] = field(default_factory=list)
    """The messages that the sender's commit folds directly. No mailbox row contains them
    (delivery.py).
    """
    reasons: list[tuple[int, str]] = field(default_factory=list)
    """The reasons that steps gave for their decisions, each with the number of the step from 0."""
    reply: object = None
    """The last reply that a step returned to a user's command."""
    steps: int = 0
    """The number of steps added so far."""
    consumed_bytes: int = 0
    """The total size of the bodies in `consumed`."""

    def operation_count(self) -> int:
        """Return the number of table operations of this fold's commit, including head and journal
        entry.
        """
        # Mail to a missing actor is dropped: a deletion and a journal row for each mailbox row.
        consumed = len(self.consumed) * (2 if self.state is None else 1)
        written = len(self.parts) + len(self.row_writes) + len(self.timers) + len(self.sends)
        return 2 + consumed + written

    def message_count(self) -> int:
        """Return the number of mailbox messages that the fold consumes."""
        return sum(len(mail.messages) for mail in self.consumed)

    def consume(self, mail: MailboxRow) -> None:
        """Add mail after its messages were folded."""
        self.consumed.append(mail)
        self.consumed_bytes += len(mail.body)

    def has_room(self, step: "Step", mail_bytes: int) -> bool:
        """Return whether a commit can hold this fold, a further step, and the end of the fold.

        Args:
            mail_bytes: the size of the mailbox row that the step belongs to, up to its message.
        """
        context = step.context
        rows = {(row.partition, row.sort) for row in context.rows}
        more = len(context.parts.keys() - self.parts.keys()) + len(context.timers)
        more += len(rows - self.row_writes.keys()) + len(step.sends.keys() - self.sends.keys())
        more += len(self.consumed) * ((step.state is None) - (self.state is None))
        size = mail_bytes + self.consumed_bytes
        return self.operation_count() + more < FOLD_OPERATIONS_MAX and size <= FOLD_BYTES_MAX

    def add_step(self, step: "Step") -> None:
        """Add the outcome of a step."""
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
    """The outcome of the step of a message."""

    state: Any
    """The state that the step returned."""
    context: StepContext
    """The step context, which has collected the effects of the step."""
    sends: Mapping[str, Sequence[EncodedMessage]]
    """The encoded messages of the step, by receiver."""


def step_of(state: Any, context: StepContext) -> Step:
    """Build the outcome of a step from the returned state and the context.

    Raises KeyError or a serialization error for a message that its receiver's type cannot store.
    """
    sends: dict[str, list[EncodedMessage]] = {}
    for send in context.sends:
        sends.setdefault(send.to, []).append(encode_message_for(send.to, send.message))
    return Step(state, context, sends)


@dataclass(frozen=True, slots=True)
class Origin:
    """The origin of a fold that contains more than mail: a user's command or a dead letter."""

    command: tuple[EncodedMessage, ...] = ()
    """The encoded command, or empty."""
    user: str = ""
    """The user who gave the command, or ""."""
    is_dead_letter: bool = False
    """Whether the consumed mail becomes a dead letter."""


MAIL_ONLY = Origin()


@dataclass(frozen=True, slots=True)
class Commit:
    """The writes of a fold and the result after the writes."""

    writes: tuple[Write, ...]
    snapshot: ActorSnapshot
    """The actor after the commit."""
    receivers: tuple[str, ...]
    """The addresses of the actors that have new mail after the commit."""


def build_commit(
    before: ActorSnapshot,
    fold: Fold,
    now_ms: int,
    origin: Origin = MAIL_ONLY,
    extra_write_count: int = 0,
    delivered_clocks: Mapping[str, int] = MappingProxyType({}),
) -> Commit:
    """Build the commit of a fold: all writes, each with the condition that guards the write.

    - For a fold without a state, the commit removes the mail and records the mail in the journal.
      Nothing is sent, and the head must be missing.
    - If the messages do not fit into the commit, all messages are spilled: stored in parts and sent
      by later commits. Messages are also spilled while the actor has an older spilled outbox.
      Adds the parts to `fold`. The commit's receivers do not include spilled receivers.

    The total size is not checked: the table raises InvalidCommit for a commit that is too large.

    Args:
        extra_write_count: the number of writes that the caller adds to the commit.
        delivered_clocks: the clock of each delivery, by receiver. These messages are not mailed.
    """
    if fold.state is None:
        # The head was read before the mail, so the actor may have been created in between.
        absent = Check(Key(before.address, HEAD), Expect.ABSENT)
        return Commit(
            (absent, *_mail_removals(fold, now_ms), *_dropped_mail_writes(before, fold, now_ms)),
            before,
            (),
        )
    header, sends = before.header, fold.sends
    exceeds_commit = fold.operation_count() + extra_write_count > OPERATIONS_MAX
    if sends and (exceeds_commit or header.spill is not None):
        # An outbox that was spilled earlier must be sent first.
        header, sends = _spill_outbox(before, fold)
    sends = {to: messages for to, messages in sends.items() if to not in delivered_clocks}
    received_clocks = (mail.clock for mail in (*fold.consumed, *fold.delivered))
    clock = max([header.clock, *received_clocks, *delivered_clocks.values()])
    revision = before.revision + 1
    header, mailed = prepare_mail(before.address, evolve(header, clock=clock), sends, now_ms)
    header, timers = _prepare_timers(before.address, header, fold, now_ms)
    actor_type = before.actor_type
    state = actor_type.encode_state(fold.state)
    expect = before.revision or Expect.ABSENT
    writes: tuple[Write, ...] = (
        Put(
            Key(before.address, HEAD), revision, encode_head(header, state, before.unknown), expect
        ),
        *_mail_removals(fold, now_ms),
        *_part_writes(before, fold, revision, now_ms),
        *mailed,
        *timers,
        *_row_writes(fold, revision),
        _journal_write(before, fold, revision, now_ms, origin),
    )
    deleted = [name for name, value in fold.parts.items() if value is None]
    unknown = before.unknown.without_parts(deleted)
    after = ActorSnapshot(before.address, revision, header, fold.state, unknown)
    return Commit(writes, after, tuple(sends))


def fold_outputs(before: ActorSnapshot, fold: Fold) -> dict[str, bytes]:
    """Return the outputs of a fold by output name (outputs.py), for digests and comparison."""
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
    """Build the commit that mails `entries` from the first part of the actor's spilled outbox.

    The actor must have a spilled outbox. With `more`, the offset in the head advances by the
    number of entries. Otherwise the part is deleted. After the last part the head has no spill.

    Args:
        entries: receivers and their encoded messages, all from the first part.
        more: whether the first part has entries after these.
    """
    spill = before.header.spill
    assert spill is not None
    remaining_spill: Spill | None = replace(spill, offset=spill.offset + len(entries))
    if not more:
        remaining_spill = None if spill.first == spill.last else Spill(spill.first + 1, spill.last)
    header, mailed = prepare_mail(
        before.address, evolve(before.header, spill=remaining_spill), dict(entries), now_ms
    )
    revision = before.revision + 1
    state = before.actor_type.encode_state(before.state)
    body = encode_head(header, state, before.unknown)
    head = Put(Key(before.address, HEAD), revision, body, before.revision)
    part = Delete(spill_key(before.address, spill.first), Expect.ANYTHING)
    after = replace(before, revision=revision, header=header)
    writes: tuple[Write, ...] = (head, *mailed) if more else (head, part, *mailed)
    return Commit(writes, after, tuple(to for to, _ in entries))


def prepare_mail(
    sender: str, header: Header, sends: dict[str, list[EncodedMessage]], now_ms: int
) -> tuple[Header, list[Put]]:
    """Build the writes that mail `sends`, with a mailbox row for each receiver.

    Return the sender's header after the commit, and the writes.
    """
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
    """Return the key of the part with this number of a spilled outbox."""
    return Key(address, f"{PARTS}{outputs.OUTBOX}{number:06d}")


def encode_spill(entries: list[tuple[str, list[EncodedMessage]]]) -> bytes:
    """Encode entries, which are receivers with messages, as the body of a part of a spilled outbox.

    The messages are similar and compress well: the outbox of an experiment with a hundred thousand
    trials fits into one commit.
    """
    listed = [
        b'["%s",[%s]]'
        % (to.encode(), b",".join(b'["%s",%s]' % (n.encode(), body) for n, body in messages))
        for to, messages in entries
    ]
    return zlib.compress(b"[" + b",".join(listed) + b"]", 1)


def decode_spill(body: bytes) -> list[tuple[str, list[tuple[str, Any]]]]:
    """Decode a part of a spilled outbox: receivers, each with the names and fields of messages."""
    entries: list[tuple[str, list[tuple[str, Any]]]] = parse_json(zlib.decompress(body))
    return entries


def _mail_removals(fold: Fold, now_ms: int) -> list[Write]:
    """Build the writes that remove the consumed messages from the mailbox."""
    return [mail.removal(now_ms) for mail in fold.consumed]


def _part_writes(before: ActorSnapshot, fold: Fold, revision: int, now_ms: int) -> Iterable[Write]:
    """Build the writes of the changed parts. A value of None deletes the part.

    Parts of a spilled outbox are due like mail, for the recovery pass.
    """
    # The condition on the head guards the parts, because each commit that writes a part increases
    # the head's revision.
    for name, value in fold.parts.items():
        key = Key(before.address, PARTS + name)
        if value is None:
            yield Delete(key, Expect.ANYTHING)
        elif isinstance(value, _SpillPart):
            # The part is due like mail, so that the recovery pass finds an outbox that no process
            # sends.
            due_ms = now_ms + mailbox.RECOVERY_DELAY_MS
            yield Put(key, revision, value.body, Expect.ANYTHING, due_ms)
        else:
            encoded = before.actor_type.encode_part(name, value)
            body = append_fields(encoded, before.unknown.parts.get(name, b""))
            yield Put(key, revision, body, Expect.ANYTHING)


def _row_writes(fold: Fold, revision: int) -> Iterable[Write]:
    """Build the writes of changed rows outside the actor. A body of None deletes the row.

    - With a guard, the stored row must have the guard's revision, and gets the next revision. A
      guard of revision 0 requires a missing row.
    - Without a guard, the row is written unconditionally with the actor's new `revision`.
    """
    for key, (guard, body) in fold.row_writes.items():
        expect = Expect.ANYTHING if guard is None else guard.revision or Expect.ABSENT
        if body is None:
            yield Delete(key, expect)
        else:
            yield Put(key, guard.revision + 1 if guard else revision, body, expect)


def _prepare_timers(
    address: str, header: Header, fold: Fold, now_ms: int
) -> tuple[Header, list[Put]]:
    """Build the writes of the fold's timers. Return the header after the commit, and the writes."""
    clock, writes = header.clock, list[Put]()
    for timer in fold.timers:
        clock = mailbox.next_clock(clock, now_ms)
        encoded = encode_message_for(address, timer.message)
        writes.append(mailbox.timer_write(address, timer.due_ms, clock, encoded, now_ms))
    return evolve(header, clock=clock), writes


@dataclass(frozen=True, slots=True)
class _SpillPart:
    """The encoded body of a spilled part, as a value of `Fold.parts`."""

    body: bytes


def _spill_outbox(
    before: ActorSnapshot, fold: Fold
) -> tuple[Header, dict[str, list[EncodedMessage]]]:
    """Move the messages of a fold into parts that later commits send.

    Return the header that refers to the parts, and an empty outbox. Adds the parts to `fold`.
    """
    spill = before.header.spill
    first = spill.last + 1 if spill else 0
    bodies = _spill_parts(list(fold.sends.items()))
    for number, body in enumerate(bodies, first):
        fold.parts[f"{outputs.OUTBOX}{number:06d}"] = _SpillPart(body)
    last = first + len(bodies) - 1
    remaining_spill = replace(spill, last=last) if spill else Spill(first, last)
    return evolve(before.header, spill=remaining_spill), {}


def _spill_parts(entries: list[tuple[str, list[EncodedMessage]]]) -> list[bytes]:
    """Encode an outbox as parts of about SPILL_PART_BYTES_MAX before compression, in order.

    Parts are larger if the outbox would otherwise need more than SPILL_PARTS_MAX parts. A
    compressed part over SPILL_ROW_BYTES_MAX is halved, unless it has a single entry.
    """
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
    """Encode entries as parts of a spilled outbox, halving parts that do not fit into a row."""
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
    """Build the Put of the commit's journal entry, with a digest of each changed output.

    In a limited journal (`journal_kept_ms`), an entry expires if the revision is a multiple of
    TRIMMED_ROWS. The deletion of an expired entry also deletes all earlier entries.
    """
    pieces = fold_outputs(before, fold)
    read = {**fold.row_guards, **fold.rows_read}
    entry = journal.NewEntry(
        now_ms=now_ms,
        mail=tuple(mail.body for mail in (*fold.consumed, *fold.delivered)),
        command=origin.command,
        rows_read={f"{key.partition}/{key.sort}": list(observed) for key, observed in read.items()},
        output_digests={name: outputs.output_digest(piece) for name, piece in pieces.items()},
        field_count=len(before.actor_type.stored_names),
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
    """Build the Puts that record mail to a missing actor in the journal."""
    return [
        journal.dropped_mail_write(before.address, mail.key.sort, mail.body, now_ms)
        for mail in fold.consumed
    ]
