"""Rows of an actor's mailbox and the ids that order them.

All messages of one commit to one receiver are one row. The row's id is the sender's hybrid logical
clock and the sender's name: later than all that the sender had sent or read before, whatever the
machines' clocks say. `previous` is the sender's previous row to this receiver, which lets a reader
notice that it missed one.
"""

import logging
import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace

from pydantic_core import to_json

from control_plane.clock_skew import is_from_future
from control_plane.engine.actor_types import EncodedMessage, parse_json
from control_plane.state.table import Delete, Expect, Key, Put, Row, Write

log = logging.getLogger(__name__)

MAIL = "M#"
MAIL_END = "N"
TIMERS = "T#"
LETTERS = "D#"
# Mail is due in the table's index so long after it was sent: see due_rows.py.
RECOVERY_DELAY_MS = 5_000
# No row is due in the index later than this after it was written; a timer that is set for later is
# found then, and waits on. What is due later still was written with a clock that was ahead.
DUE_MS_MAX = 3_600_000
# Ticks of the hybrid clock in a millisecond.
TICKS_PER_MS = 1 << 12

# What `previous` may be but a sort key: the sender's first row, or one it does not remember.
FIRST = ""
UNKNOWN = "?"
# The name of the only message of a row whose messages cannot be read: no type of message has it.
UNREADABLE = "UnreadableMail"

# A row tried this often is folded message by message: one of them may crash the process.
ISOLATE_FROM_ATTEMPTS = 3
ATTEMPTS_MAX = 5

_HEADER = re.compile(
    rb'\{"v":1,"from":"([^"\\]*)","prev":"([^"\\]*)","clock":(\d{1,20}),"attempts":(\d{1,4}),'
)

NamedFields = tuple[str, object]
"""A message as it is stored: its name and its fields."""


@dataclass(frozen=True, slots=True)
class MailboxRow:
    """A row of a mailbox, or a timer: the messages of one commit to one receiver, which the code
    calls mail. `messages` are stored names and fields, not decoded yet.

    `previous` is a row's sort key, FIRST, or UNKNOWN when the sender does not remember it. `rest`
    are the row's later messages, which stay in it when these are folded. `body` is what the journal
    records of it, `stored` the row's body.
    """

    key: Key
    revision: int
    sender: str
    previous: str
    clock: int
    attempts: int
    messages: tuple[NamedFields, ...]
    body: bytes
    stored: bytes
    rest: tuple[NamedFields, ...] = ()

    def first_messages(self, count: int) -> "MailboxRow":
        """The row with its first `count` messages alone; the others are its rest."""
        if count >= len(self.messages):
            return self
        taken, rest = self.messages[:count], self.messages[count:]
        body = self._header(self.attempts) + _encode_messages(taken)
        return replace(self, messages=taken, rest=(*rest, *self.rest), body=body)

    def removal(self, now_ms: int) -> Write:
        """The write that removes the messages from the mailbox, which can succeed only once. It
        deletes the row unless there is a rest.
        """
        if not self.rest:
            return Delete(self.key, Expect.PRESENT)
        # The first of the rest has had no attempt of its own, but may be the one to isolate.
        attempts = 0 if self.attempts < ISOLATE_FROM_ATTEMPTS else ISOLATE_FROM_ATTEMPTS
        body = self._header(attempts) + _encode_messages(self.rest)
        return Put(self.key, self.revision + 1, body, self.revision, now_ms + RECOVERY_DELAY_MS)

    def _header(self, attempts: int) -> bytes:
        return _encode_header(self.sender, self.previous, self.clock, attempts)


def mail_key(receiver: str, clock: int, sender: str) -> Key:
    """The key of a row sent at `clock`."""
    return Key(receiver, f"{MAIL}{clock:016x}#{sender}")


def timer_key(address: str, due_ms: int, clock: int) -> Key:
    """The key of a timer. Timers sort by the time they are due, outside the mailbox."""
    return Key(address, f"{TIMERS}{due_ms:014d}#{clock:016x}")


def timer_write(address: str, due_ms: int, clock: int, message: EncodedMessage, now_ms: int) -> Put:
    """The write that sets a timer."""
    key = timer_key(address, due_ms, clock)
    return mail_write(key, address, FIRST, clock, [message], _index_due_ms(due_ms, now_ms))


def timer_due_ms(key: Key) -> int | None:
    """When the timer of this key is due; None for a row that is no timer."""
    if not key.sort.startswith(TIMERS):
        return None
    return int(key.sort.removeprefix(TIMERS).partition("#")[0])


def timer_continuation(timer: MailboxRow, due_ms: int, now_ms: int) -> Put:
    """The write that lets a timer wait on, which is due later than the index has it."""
    return postponement(timer, _index_due_ms(due_ms, now_ms))


def restarted_timer(timer: MailboxRow, due_ms: int, now_ms: int) -> tuple[Write, ...]:
    """The writes that let a timer which was set in the future wait from now on, for as long as it
    was set for.
    """
    # The clock of a commit is not before the time of its host.
    set_ms = timer.clock // TICKS_PER_MS
    if not is_from_future(set_ms, now_ms):
        return (timer_continuation(timer, due_ms, now_ms),)
    due_ms = now_ms + max(0, due_ms - set_ms)
    key = timer_key(timer.key.partition, due_ms, timer.clock)
    moved = Put(key, 1, timer.stored, Expect.ABSENT, _index_due_ms(due_ms, now_ms))
    return (Delete(timer.key, timer.revision), moved)


def _index_due_ms(due_ms: int, now_ms: int) -> int:
    return min(due_ms, now_ms + DUE_MS_MAX)


def mail_write(
    key: Key, sender: str, previous: str, clock: int, messages: list[EncodedMessage], due_ms: int
) -> Put:
    """The write that mails `messages`. It conflicts with a row that has the key already."""
    body = _encode_header(sender, previous, clock, 0) + _join_messages(messages)
    return Put(key, 1, body, Expect.ABSENT, due_ms)


def delivered_mail(
    receiver: str, sender: str, clock: int, messages: Sequence[EncodedMessage]
) -> MailboxRow:
    """The mail of messages that their sender's commit folds into the receiver: no row holds it."""
    body = _encode_header(sender, FIRST, clock, 0) + _join_messages(messages)
    fields: tuple[NamedFields, ...] = tuple((name, body) for name, body in messages)
    return MailboxRow(
        mail_key(receiver, clock, sender), 0, sender, FIRST, clock, 0, fields, body, body
    )


def read_mail(row: Row) -> MailboxRow:
    """Decode a row into mail. A row that cannot be decoded is mail with one message that nothing
    can fold, UNREADABLE, so that it becomes a dead letter like any other.
    """
    try:
        fields = parse_json(row.body)
        return MailboxRow(
            key=row.key,
            revision=row.revision,
            sender=fields["from"],
            previous=fields["prev"],
            clock=fields["clock"],
            attempts=fields["attempts"],
            messages=tuple((name, message) for name, message in fields["messages"]),
            body=row.body,
            stored=row.body,
        )
    except (KeyError, TypeError, ValueError):
        log.exception("%s / %s cannot be read", row.key.partition, row.key.sort)
        return _unreadable_mail(row)


def _unreadable_mail(row: Row) -> MailboxRow:
    """The mail of a row whose messages cannot be decoded. What is known of its sender is in its
    header, or else in its key; without a header no attempt can be counted, so it has had all of
    them.
    """
    header = _HEADER.match(row.body)
    if header:
        sender, previous = header[1].decode(), header[2].decode()
        clock, attempts = int(header[3]), int(header[4])
    else:
        _, _, sender = row.key.sort.removeprefix(MAIL).partition("#")
        previous, clock, attempts = UNKNOWN, 0, ATTEMPTS_MAX
    body = _encode_header(sender, previous, clock, attempts) + _encode_messages([(UNREADABLE, {})])
    messages: tuple[NamedFields, ...] = ((UNREADABLE, {}),)
    return MailboxRow(
        row.key, row.revision, sender, previous, clock, attempts, messages, body, row.body
    )


def dead_letter_write(mail: MailboxRow) -> Put:
    """The write that keeps mail, which nothing could fold, as a dead letter. Each message of a row
    has its own.
    """
    suffix = f"#{len(mail.rest):06d}" if mail.rest else ""
    body = mail.stored if mail.messages[0][0] == UNREADABLE else mail.body
    return Put(
        Key(mail.key.partition, f"{LETTERS}{mail.key.sort}{suffix}"), 1, body, Expect.ANYTHING
    )


def attempt_write(mail: MailboxRow, now_ms: int, count: int = 1) -> tuple[MailboxRow, Put]:
    """The mail with one more attempt, due again after 2^attempts seconds, and the write of it. A
    `count` of -1 withdraws the last attempt.
    """
    attempts = mail.attempts + count
    before, after = b'"attempts":%d,' % mail.attempts, b'"attempts":%d,' % attempts
    body, stored = (content.replace(before, after, 1) for content in (mail.body, mail.stored))
    counted = replace(mail, attempts=attempts, revision=mail.revision + 1, body=body, stored=stored)
    due_ms = now_ms + attempt_delay_ms(max(attempts, mail.attempts))
    return counted, Put(mail.key, counted.revision, stored, mail.revision, due_ms)


def attempt_delay_ms(attempts: int) -> int:
    """How long after an attempt the next one is due: 2^attempts seconds."""
    return (1 << attempts) * 1000


def postponement(mail: MailboxRow, due_ms: int) -> Put:
    """The write that lets a row be due at another time, with no attempt counted."""
    return Put(mail.key, mail.revision + 1, mail.stored, mail.revision, due_ms)


def next_clock(clock: int, now_ms: int) -> int:
    """The next value of a hybrid clock: later than `clock`, and not before the wall clock."""
    return max(clock + 1, now_ms * TICKS_PER_MS)


def _encode_header(sender: str, previous: str, clock: int, attempts: int) -> bytes:
    """The beginning of a row's body, before its messages."""
    return (
        f'{{"v":1,"from":"{sender}","prev":"{previous}","clock":{clock},"attempts":{attempts},'
    ).encode()


def _encode_messages(messages: Iterable[NamedFields]) -> bytes:
    return _join_messages((name, to_json(fields)) for name, fields in messages)


def _join_messages(messages: Iterable[EncodedMessage]) -> bytes:
    """The end of a row's body: its messages."""
    content = b",".join(b'["%s",%s]' % (name.encode(), fields) for name, fields in messages)
    return b'"messages":[' + content + b"]}"
