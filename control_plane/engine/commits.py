"""Commits: the writes of a fold, each with the condition that guards the write.

A fold is the outcome of applying messages to an actor in order. The functions of this module build
writes. They neither read nor write the table.
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from types import MappingProxyType

from control_plane.engine import journal, mailbox, outputs
from control_plane.engine.actor_types import (
    EncodedMessage,
    actor_type_at,
    encode_message_for,
)
from control_plane.engine.fold import ActorSnapshot, Fold, fold_outputs
from control_plane.engine.head import HEAD, PARTS, Header, Spill, encode_head
from control_plane.engine.spilled_outbox import SpillPart, spill_key, spill_outbox
from control_plane.evolve import evolve
from control_plane.rows.unknown_fields import append_fields
from control_plane.state.table import OPERATIONS_MAX, Check, Delete, Expect, Key, Put, Write


@dataclass(frozen=True, slots=True)
class Origin:
    """The reason for a fold that is more than mail: a user's command or a dead letter."""

    command: tuple[EncodedMessage, ...] = ()
    """The encoded command. Empty without a command."""
    user: str = ""
    """The user who gave the command. "" without a user."""
    is_dead_letter: bool = False
    """Whether the consumed mail becomes a dead letter, so that the actor's fallback handled the
    mail.
    """


MAIL_ONLY = Origin()
"""The origin of a fold that contains only mail."""


@dataclass(frozen=True, slots=True)
class Commit:
    """The writes of a fold, and the actor after the writes."""

    writes: tuple[Write, ...]
    """The writes of the commit, each with its condition. The table has not applied them yet."""
    snapshot: ActorSnapshot
    """The actor after the commit. Without a state, the actor as before."""
    receivers: tuple[str, ...]
    """The addresses of the actors that have new mail after the commit, without the receivers of
    spilled messages.
    """


def build_commit(
    before: ActorSnapshot,
    fold: Fold,
    now_ms: int,
    origin: Origin = MAIL_ONLY,
    extra_write_count: int = 0,
    delivered_clocks: Mapping[str, int] = MappingProxyType({}),
) -> Commit:
    """Build the commit of a fold. Nothing is written to the table.

    The commit writes the head, changed parts and rows, mail, timers and a journal entry, and
    removes the consumed mail. The head must still have the revision of `before`, so the commit
    conflicts if another process has advanced the actor.

    - For a fold without a state, the commit removes the mail and records the mail in the journal as
      dropped. Nothing is sent, and the head must be missing.
    - If the messages do not fit into the commit, all messages are spilled: stored in parts that
      later commits mail. Messages are also spilled while the actor has an older spilled outbox. The
      parts are added to `fold`. The commit's receivers are empty.

    The total size is not checked: the table raises InvalidCommit for a commit that is too large.
    Raises KeyError for an unknown type of receiver, and ValueError for a value that cannot be
    encoded.

    Args:
        extra_write_count: the number of writes that the caller adds to the commit.
        delivered_clocks: the sender's clock for each delivery, by receiver. A delivery is folded in
            the same commit, so its messages are not mailed.
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
        header, sends = spill_outbox(before, fold), {}
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


def build_drain_commit(
    before: ActorSnapshot, entries: list[tuple[str, list[EncodedMessage]]], more: bool, now_ms: int
) -> Commit:
    """Build the commit that mails `entries` from the first part of the actor's spilled outbox.

    The actor must have a spilled outbox. The commit writes the head and a mailbox row for each
    receiver, but no journal entry. With `more`, the offset in the head advances by the number of
    entries. Otherwise the part is deleted. After the last part the head has no spill. Nothing is
    written to the table.

    Args:
        entries: receivers and their encoded messages, all from the first part.
        more: whether the first part has entries after these entries.
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
    """Build the writes that mail `sends`: a mailbox row for each receiver, due after
    RECOVERY_DELAY_MS.

    Return the sender's header after the commit, with a later clock and the keys of the sent rows,
    and the writes. Without `sends`, return an equal header and no writes. Raises KeyError for an
    unknown type of receiver.

    Args:
        header: the sender's header before the commit.
        sends: the encoded messages by receiver, at least one for each receiver.
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


def _mail_removals(fold: Fold, now_ms: int) -> list[Write]:
    """Build the writes that remove the consumed messages from the mailbox.

    A row with unfolded messages is replaced by a row with these messages. Each write conflicts if
    another process has removed the messages already.
    """
    return [mail.removal(now_ms) for mail in fold.consumed]


def _part_writes(before: ActorSnapshot, fold: Fold, revision: int, now_ms: int) -> Iterable[Write]:
    """Yield the writes of the changed parts. A value of None deletes the part.

    Stored fields of newer versions are written again. Parts of a spilled outbox are due after
    RECOVERY_DELAY_MS, like mail. Raises ValueError for a value that cannot be encoded.
    """
    # The condition on the head guards the parts, because each commit that writes a part increases
    # the head's revision.
    for name, value in fold.parts.items():
        key = Key(before.address, PARTS + name)
        if value is None:
            yield Delete(key, Expect.ANYTHING)
        elif isinstance(value, SpillPart):
            # The part is due like mail, so that the recovery pass finds an outbox that no process
            # sends.
            due_ms = now_ms + mailbox.RECOVERY_DELAY_MS
            yield Put(key, revision, value.body, Expect.ANYTHING, due_ms)
        else:
            encoded = before.actor_type.encode_part(name, value)
            body = append_fields(encoded, before.unknown.parts.get(name, b""))
            yield Put(key, revision, body, Expect.ANYTHING)


def _row_writes(fold: Fold, revision: int) -> Iterable[Write]:
    """Yield the writes of changed rows outside the actor. A body of None deletes the row.

    - With a guard, the stored row must have the guard's revision, and gets the next revision. A
      guard of revision 0 requires a missing row.
    - Without a guard, the row is written or deleted unconditionally. A written row gets the actor's
      new `revision`.
    - A row with an expiry is deleted at that time. The due index returns a row with a due time.
    """
    for key, (guard, body) in fold.row_writes.items():
        expect = Expect.ANYTHING if guard is None else guard.revision or Expect.ABSENT
        if body is None:
            yield Delete(key, expect)
        else:
            expires_ms = fold.row_expiries.get(key)
            row_revision = guard.revision + 1 if guard else revision
            due_ms = fold.row_dues.get(key, expires_ms)
            yield Put(key, row_revision, body, expect, due_ms, expires_ms is not None)


def _prepare_timers(
    address: str, header: Header, fold: Fold, now_ms: int
) -> tuple[Header, list[Put]]:
    """Build a write for each timer that the fold sets. Nothing is written yet.

    Return the header after the commit, with a clock that is later by a tick or more for each timer,
    and the writes. Without timers, return an equal header and no writes. Raises KeyError for a
    message that the actor does not accept, and ValueError for a value that cannot be encoded.
    """
    clock, writes = header.clock, list[Put]()
    for timer in fold.timers:
        clock = mailbox.next_clock(clock, now_ms)
        encoded = encode_message_for(address, timer.message)
        writes.append(mailbox.timer_write(address, timer.due_ms, clock, encoded, now_ms))
    return evolve(header, clock=clock), writes


def _journal_write(
    before: ActorSnapshot,
    fold: Fold,
    revision: int,
    now_ms: int,
    origin: Origin,
) -> Put:
    """Build the Put of the commit's journal entry: mail, command, rows read, reasons and a digest
    of each changed output.

    In a journal of limited age (`ActorType.journal_kept_ms`), an entry expires if the revision is a
    multiple of TRIMMED_ROWS. The deletion of an expired entry also deletes all earlier entries.
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
    """Build the Puts that record the consumed mail of a missing actor as dropped."""
    return [
        journal.dropped_mail_write(before.address, mail.key.sort, mail.body, now_ms)
        for mail in fold.consumed
    ]
