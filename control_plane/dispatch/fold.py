"""Folding messages into one commit: pure bookkeeping over turns, and the writes that come of it."""

import zlib
from collections.abc import Iterable
from dataclasses import dataclass, field, replace
from itertools import chain
from typing import Any

from control_plane.actors.step import RowSeen, SetTimer, Turn
from control_plane.dispatch import journal, mailbox, outputs
from control_plane.dispatch.head import HEAD, PARTS, Header, Spill, encode_head
from control_plane.dispatch.kinds import Encoded, Kind, encode_for, kind_at, parse_json
from control_plane.dispatch.mailbox import Mail
from control_plane.evolve import evolve
from control_plane.state.table import OPERATIONS_MAX, Check, Delete, Expect, Key, Put, Write

# What folding may use of a commit; the rest is for the end of the fold, when a pool schedules.
FOLD_OPERATIONS_MAX = 60
# The journal keeps the mail in one row. Two rows of this size would not fit into it.
FOLD_BYTES_MAX = 192 * 1024
SPILL_PART_BYTES_MAX = 256 * 1024
# Receivers of a spilled outbox served in one commit.
DRAINED_MAX = 90


@dataclass(frozen=True, slots=True)
class Snapshot:
    """An actor as loaded. `revision` 0: there is none, and `state` is None."""

    address: str
    revision: int
    header: Header
    state: Any

    @property
    def kind(self) -> Kind:
        """The actor's kind."""
        return kind_at(self.address)


@dataclass
class Fold:
    """What has been folded so far, in how many `turns`. `rows` are rows outside the actor: the
    reading that guards each, which is in `read` too, and the last body, None where the row goes;
    `seen` are all readings. A reason comes with the turn it is of, from 0.
    """

    state: Any
    parts: dict[str, object | None] = field(default_factory=dict)
    sends: dict[str, list[Encoded]] = field(default_factory=dict)
    rows: dict[Key, tuple[RowSeen | None, bytes | None]] = field(default_factory=dict)
    read: dict[Key, RowSeen] = field(default_factory=dict)
    seen: dict[Key, RowSeen] = field(default_factory=dict)
    timers: list[SetTimer] = field(default_factory=list)
    consumed: list[Mail] = field(default_factory=list)
    reasons: list[tuple[int, str]] = field(default_factory=list)
    reply: object = None
    turns: int = 0

    def fork(self) -> "Fold":
        """A copy to go on with, so that this one stays as it is."""
        return Fold(
            state=self.state,
            parts=dict(self.parts),
            sends={to: list(messages) for to, messages in self.sends.items()},
            rows=dict(self.rows),
            read=dict(self.read),
            seen=dict(self.seen),
            timers=list(self.timers),
            consumed=list(self.consumed),
            reasons=list(self.reasons),
            reply=self.reply,
            turns=self.turns,
        )

    def operations(self) -> int:
        """Operations of a commit of this, with the head and the journal."""
        # Mail that is dropped is deleted and journaled, each on its own.
        consumed = len(self.consumed) * (2 if self.state is None else 1)
        kept = consumed + len(self.parts) + len(self.rows) + len(self.timers)
        return 2 + kept + len(self.sends)

    def is_full(self) -> bool:
        """Whether this is more than a commit may take beside what the end of the fold adds."""
        size = sum(len(mail.body) for mail in self.consumed)
        return self.operations() > FOLD_OPERATIONS_MAX or size > FOLD_BYTES_MAX

    def absorb(self, state: Any, turn: Turn) -> None:
        """Takes over the outcome of a turn."""
        self.state = state
        self.parts.update(turn.parts)
        for send in turn.sends:
            self.sends.setdefault(send.to, []).append(encode_for(send.to, send.message))
        for row in turn.rows:
            key = Key(row.partition, row.sort)
            if row.seen is not None:
                self.read.setdefault(key, row.seen)
            self.rows[key] = (self.read.get(key), row.body)
        self.timers += turn.timers
        self.reasons += [(self.turns, reason) for reason in turn.reasons]
        self.turns += 1
        if turn.reply is not None:
            self.reply = turn.reply


@dataclass(frozen=True, slots=True)
class Origin:
    """What a fold was of beside mail: a command and the user who gave it, or a dead letter."""

    command: tuple[Encoded, ...] = ()
    by: str = ""
    dead: bool = False


MAIL_ALONE = Origin()


@dataclass(frozen=True, slots=True)
class Commit:
    """The writes of a fold and the actor as they leave it; `receivers` have new mail."""

    writes: tuple[Write, ...]
    after: Snapshot
    receivers: tuple[str, ...]


def commit_of(
    before: Snapshot,
    fold: Fold,
    now_ms: int,
    origin: Origin = MAIL_ALONE,
    beside: int = 0,
) -> Commit:
    """Everything that changes, and nothing else, with the condition that guards each write.

    `beside`: how many writes the caller adds to the commit.
    """
    if fold.state is None:
        # The head was looked for before the mail was read: the actor may have come in between.
        absent = Check(Key(before.address, HEAD), Expect.ABSENT)
        return Commit((absent, *_consumed(fold), *_dropped(before, fold, now_ms)), before, ())
    header, sends = before.header, fold.sends
    if fold.operations() + beside > OPERATIONS_MAX:
        header, sends = _spilled(before, fold)
    clock = max([header.clock, *(mail.clock for mail in fold.consumed)])
    revision = before.revision + 1
    header, mailed = mail_out(before.address, evolve(header, clock=clock), sends, now_ms)
    header, timers = _timers(before.address, header, fold, now_ms)
    kind = before.kind
    state = kind.encode_state(fold.state)
    expect = before.revision or Expect.ABSENT
    writes: tuple[Write, ...] = (
        Put(Key(before.address, HEAD), revision, encode_head(header, state), expect),
        *_consumed(fold),
        *_parts(before, fold, revision, now_ms),
        *mailed,
        *timers,
        *_rows(fold, revision),
        _journal(before, fold, revision, now_ms, origin),
    )
    after = Snapshot(before.address, revision, header, fold.state)
    return Commit(writes, after, tuple(sends))


def pieces_of(before: Snapshot, fold: Fold) -> dict[str, bytes]:
    """What the fold puts out, by the names of outputs.py."""
    kind = before.kind
    return dict(
        chain(
            outputs.changed_fields(kind, before.state, fold.state),
            outputs.part_pieces(kind, fold.parts),
            outputs.row_pieces({key: body for key, (_, body) in fold.rows.items()}),
            outputs.mail_pieces(fold.sends),
            outputs.timer_pieces(kind, fold.timers),
        )
    )


def drain_of(
    before: Snapshot, entries: list[tuple[str, list[Encoded]]], more: bool, now_ms: int
) -> Commit:
    """Sends the next stretch of a spilled outbox: `entries`. `more` of the part follow them."""
    spill = before.header.spill
    assert spill is not None
    left: Spill | None = replace(spill, offset=spill.offset + len(entries))
    if not more:
        left = None if spill.first == spill.last else Spill(spill.first + 1, spill.last)
    header, mailed = mail_out(
        before.address, evolve(before.header, spill=left), dict(entries), now_ms
    )
    revision = before.revision + 1
    state = before.kind.encode_state(before.state)
    head = Put(Key(before.address, HEAD), revision, encode_head(header, state), before.revision)
    part = Delete(spill_key(before.address, spill.first), Expect.ANYTHING)
    after = replace(before, revision=revision, header=header)
    writes: tuple[Write, ...] = (head, *mailed) if more else (head, part, *mailed)
    return Commit(writes, after, tuple(to for to, _ in entries))


def mail_out(
    sender: str, header: Header, sends: dict[str, list[Encoded]], now_ms: int
) -> tuple[Header, list[Put]]:
    """One row per receiver, each with an id of its own."""
    clock, rows, writes = header.clock, dict[str, str](), list[Put]()
    for receiver, messages in sends.items():
        clock = mailbox.next_clock(clock, now_ms)
        key = mailbox.mail_key(receiver, clock, sender)
        rows[receiver] = key.sort
        constructs = messages[0][0] == kind_at(receiver).constructor
        previous = mailbox.FIRST if constructs else header.previous(receiver)
        due_ms = now_ms + mailbox.BACKSTOP_MS
        writes.append(mailbox.put_mail(key, sender, previous, clock, messages, due_ms))
    return header.having_sent(rows, clock), writes


def spill_key(address: str, number: int) -> Key:
    """The part that holds a stretch of a spilled outbox."""
    return Key(address, f"{PARTS}outbox/{number:06d}")


def encode_spill(entries: list[tuple[str, list[Encoded]]]) -> bytes:
    """Receivers and their messages, in order; compressed, since they are much alike: the outbox of
    an experiment with a hundred thousand trials fits into one commit.
    """
    listed = [
        b'["%s",[%s]]'
        % (to.encode(), b",".join(b'["%s",%s]' % (n.encode(), body) for n, body in messages))
        for to, messages in entries
    ]
    return zlib.compress(b"[" + b",".join(listed) + b"]", 1)


def decode_spill(body: bytes) -> list[tuple[str, list[tuple[str, Any]]]]:
    """The way back: receivers and the names and fields of their messages."""
    found: list[tuple[str, list[tuple[str, Any]]]] = parse_json(zlib.decompress(body))
    return found


def _consumed(fold: Fold) -> list[Delete]:
    return [mail.consume() for mail in fold.consumed]


def _parts(before: Snapshot, fold: Fold, revision: int, now_ms: int) -> Iterable[Write]:
    # The head's condition guards the parts: every write of one bumps the head.
    for name, value in fold.parts.items():
        key = Key(before.address, PARTS + name)
        if value is None:
            yield Delete(key, Expect.ANYTHING)
        elif isinstance(value, _SpillPart):
            # Due like mail, for the backstop to find if nobody goes on with it.
            due_ms = now_ms + mailbox.BACKSTOP_MS
            yield Put(key, revision, value.body, Expect.ANYTHING, due_ms)
        else:
            body = before.kind.encode_part(name, value)
            yield Put(key, revision, body, Expect.ANYTHING)


def _rows(fold: Fold, revision: int) -> Iterable[Write]:
    for key, (seen, body) in fold.rows.items():
        expect = Expect.ANYTHING if seen is None else seen.revision or Expect.ABSENT
        if body is None:
            yield Delete(key, expect)
        else:
            yield Put(key, seen.revision + 1 if seen else revision, body, expect)


def _timers(address: str, header: Header, fold: Fold, now_ms: int) -> tuple[Header, list[Put]]:
    clock, writes = header.clock, list[Put]()
    for timer in fold.timers:
        clock = mailbox.next_clock(clock, now_ms)
        key = mailbox.timer_key(address, timer.due_ms, clock)
        encoded = [encode_for(address, timer.message)]
        writes.append(mailbox.put_mail(key, address, mailbox.FIRST, clock, encoded, timer.due_ms))
    return evolve(header, clock=clock), writes


@dataclass(frozen=True, slots=True)
class _SpillPart:
    body: bytes


def _spilled(before: Snapshot, fold: Fold) -> tuple[Header, dict[str, list[Encoded]]]:
    """Moves the outbox into parts, to be drained before anything else is folded."""
    number = 0
    stretch: list[tuple[str, list[Encoded]]] = []
    size = 0
    for entry in fold.sends.items():
        weight = sum(len(body) + 64 for _, body in entry[1])
        if stretch and size + weight > SPILL_PART_BYTES_MAX:
            fold.parts[f"outbox/{number:06d}"] = _SpillPart(encode_spill(stretch))
            number, stretch, size = number + 1, [], 0
        stretch.append(entry)
        size += weight
    fold.parts[f"outbox/{number:06d}"] = _SpillPart(encode_spill(stretch))
    return evolve(before.header, spill=Spill(0, number)), {}


def _journal(
    before: Snapshot,
    fold: Fold,
    revision: int,
    now_ms: int,
    origin: Origin,
) -> Put:
    pieces = pieces_of(before, fold)
    read = {**fold.read, **fold.seen}
    entry = journal.Entry(
        now_ms=now_ms,
        mail=tuple(mail.body for mail in fold.consumed),
        command=origin.command,
        read={f"{key.partition}/{key.sort}": list(seen) for key, seen in read.items()},
        out={name: outputs.digest_of(piece) for name, piece in pieces.items()},
        names=len(before.kind.names),
        why=fold.reasons,
        by=origin.by,
        dead=origin.dead,
        spilled=any(name.startswith(outputs.OUTBOX) for name in fold.parts),
    )
    return journal.put_entry(before.address, revision, entry)


def _dropped(before: Snapshot, fold: Fold, now_ms: int) -> list[Put]:
    return [
        journal.put_dropped(before.address, mail.key.sort, mail.body, now_ms)
        for mail in fold.consumed
    ]
