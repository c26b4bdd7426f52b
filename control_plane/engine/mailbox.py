"""The rows of an actor's mailbox, and the clocks that order the rows.

The messages of one commit to one receiver are one row. The sort key of the row consists of the
sender's hybrid logical clock and the sender's address. This clock is later than every clock that
the sender had sent or received before, even if the clocks of the machines differ. `previous` is the
sort key of the sender's previous row to the same receiver. A reader uses it to detect that it has
missed a row.
"""

import logging
import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace

from pydantic_core import to_json

from control_plane.clock_skew import is_from_future
from control_plane.engine.actor_types import EncodedMessage, parse_json
from control_plane.rows import actor_rows
from control_plane.state.table import Delete, Expect, Key, Put, Row, Write

log = logging.getLogger(__name__)

MAIL = actor_rows.MAIL.sort
MAIL_END = "N"
TIMERS = actor_rows.TIMER.sort
LETTERS = actor_rows.DEAD_LETTER.sort
# The delay after which unfolded mail is due in the table's index (due_rows.py).
RECOVERY_DELAY_MS = 5_000
# The maximum delay between the writing of a row and the time in the due index. A timer that is set
# for later is found after this delay and postponed. A row that is due even later was written by a
# host with a clock that was ahead.
DUE_MS_MAX = 3_600_000
# The number of ticks of the hybrid clock in a millisecond.
TICKS_PER_MS = 1 << 12

# Values of `previous` that are not sort keys: FIRST marks the sender's first row to the receiver,
# and UNKNOWN a previous row that the sender has forgotten.
FIRST = ""
UNKNOWN = "?"
# The message name in the mail of an unreadable row. No message type has this name.
UNREADABLE = "UnreadableMail"

# A row with this many attempts is folded message by message, because a message may crash the
# process.
ISOLATE_FROM_ATTEMPTS = 3
ATTEMPTS_MAX = 5

_HEADER = re.compile(
    rb'\{"v":1,"from":"([^"\\]*)","prev":"([^"\\]*)","clock":(\d{1,20}),"attempts":(\d{1,4}),'
)

NamedFields = tuple[str, object]
"""The stored name of a message, and its fields as JSON values."""


@dataclass(frozen=True, slots=True)
class MailboxRow:
    """Mail: a mailbox row or a timer, with the messages of a commit to a receiver."""

    key: Key
    """The key of the row, which begins with `M#` for mail and `T#` for a timer."""
    revision: int
    """The stored revision, which changes with each attempt and postponement. 0 for delivered mail,
    which is not stored.
    """
    sender: str
    """The address of the sending actor, or the name of another part of the cluster."""
    previous: str
    """The sort key of the sender's previous row to this receiver, or FIRST, or UNKNOWN."""
    clock: int
    """The sender's hybrid logical clock when the row was sent, in ticks."""
    attempts: int
    """The number of failed attempts of the recovery pass to fold the row."""
    messages: tuple[NamedFields, ...]
    """The stored names and fields of the messages to fold, not decoded."""
    body: bytes
    """The encoded row with `messages` only, which the journal records."""
    stored: bytes
    """The body of the whole row as it is stored in the table."""
    rest: tuple[NamedFields, ...] = ()
    """The later messages of the row, which stay in the table when `messages` are folded. Empty if
    `messages` are all messages.
    """

    def first_messages(self, count: int) -> "MailboxRow":
        """Return the row reduced to the first `count` messages. The other messages become the
        `rest`.

        Return the row itself if it has no more than `count` messages. Nothing is written.

        Args:
            count: the number of messages to keep, at least 1.
        """
        if count >= len(self.messages):
            return self
        first, rest = self.messages[:count], self.messages[count:]
        body = self._header(self.attempts) + _encode_messages(first)
        return replace(self, messages=first, rest=(*rest, *self.rest), body=body)

    def removal(self, now_ms: int) -> Write:
        """Build the write that removes `messages` from the mailbox. A repeated removal conflicts.

        The write deletes the row, or replaces the row by the `rest`. The replaced row is due after
        RECOVERY_DELAY_MS.
        """
        if not self.rest:
            return Delete(self.key, Expect.PRESENT)
        # The remaining messages have had no attempts. They are isolated like the row, because any
        # remaining message may crash the process.
        attempts = 0 if self.attempts < ISOLATE_FROM_ATTEMPTS else ISOLATE_FROM_ATTEMPTS
        body = self._header(attempts) + _encode_messages(self.rest)
        return Put(self.key, self.revision + 1, body, self.revision, now_ms + RECOVERY_DELAY_MS)

    def _header(self, attempts: int) -> bytes:
        """Encode the beginning of the row's body with a number of attempts."""
        return _encode_header(self.sender, self.previous, self.clock, attempts)


def mail_key(receiver: str, clock: int, sender: str) -> Key:
    """Return the key of a mailbox row: `M#CLOCK#SENDER` in the receiver's partition.

    Args:
        receiver: the address of the receiver.
        clock: the sender's hybrid clock, which orders the rows.
        sender: the address of the sender, or another name that makes the key unique.
    """
    return Key(receiver, f"{MAIL}{clock:016x}#{sender}")


def timer_key(address: str, due_ms: int, clock: int) -> Key:
    """Return the key of a timer: `T#DUE_MS#CLOCK` in the actor's own partition.

    Timers are sorted by due time. Queries of the mailbox (`M#...`) in this partition do not return
    timers.

    Args:
        due_ms: the due time in epoch ms.
        clock: the actor's hybrid clock, which distinguishes timers with equal due times.
    """
    return Key(address, f"{TIMERS}{due_ms:014d}#{clock:016x}")


def timer_write(address: str, due_ms: int, clock: int, message: EncodedMessage, now_ms: int) -> Put:
    """Build the Put that sets a timer. The Put conflicts with an existing timer of the same key.

    The due index lists the timer at `due_ms`, or at DUE_MS_MAX from now if that is earlier.

    Args:
        due_ms: the time in epoch ms at which the actor receives the message.
        clock: the actor's hybrid clock.
        message: the encoded message.
        now_ms: the present time in epoch ms, which limits only the time in the due index.
    """
    key = timer_key(address, due_ms, clock)
    return mail_write(key, address, FIRST, clock, [message], _index_due_ms(due_ms, now_ms))


def timer_due_ms(key: Key) -> int | None:
    """Return the due time of a timer in epoch ms. Return None for a key of another kind of row.

    Raises ValueError for the key of a timer without a number.
    """
    if not key.sort.startswith(TIMERS):
        return None
    return int(key.sort.removeprefix(TIMERS).partition("#")[0])


def timer_continuation(timer: MailboxRow, due_ms: int, now_ms: int) -> Put:
    """Build the Put that moves a timer's time in the due index.

    The new time is `due_ms`, or DUE_MS_MAX from now if that is earlier. The messages and the
    attempts stay unchanged. The Put conflicts if the row has changed since the timer was read.
    """
    return postponement(timer, _index_due_ms(due_ms, now_ms))


def restarted_timer(timer: MailboxRow, due_ms: int, now_ms: int) -> tuple[Write, ...]:
    """Build the writes that restart a timer from a host with a clock that was ahead.

    The timer's original delay starts again at `now_ms`: the row is deleted, and a row with the new
    due time is written. A timer that was not set in the future, compared with `now_ms`, is only
    postponed in the due index. The writes conflict if the row has changed since the timer was read.

    Args:
        timer: the timer as it was read.
        due_ms: the due time in the timer's key.
    """
    # The clock of a commit is never behind the host's time, so the clock shows when the timer was
    # set.
    set_ms = timer.clock // TICKS_PER_MS
    if not is_from_future(set_ms, now_ms):
        return (timer_continuation(timer, due_ms, now_ms),)
    due_ms = now_ms + max(0, due_ms - set_ms)
    key = timer_key(timer.key.partition, due_ms, timer.clock)
    moved = Put(key, 1, timer.stored, Expect.ABSENT, _index_due_ms(due_ms, now_ms))
    return (Delete(timer.key, timer.revision), moved)


def _index_due_ms(due_ms: int, now_ms: int) -> int:
    """Return the time in the due index of a timer that is due at `due_ms`: at most DUE_MS_MAX from
    now.
    """
    return min(due_ms, now_ms + DUE_MS_MAX)


def mail_write(
    key: Key, sender: str, previous: str, clock: int, messages: list[EncodedMessage], due_ms: int
) -> Put:
    """Build the Put that mails `messages`. The Put conflicts with an existing row of the same key.

    Args:
        previous: the sort key of the sender's previous row to this receiver. FIRST for the sender's
            first row, and UNKNOWN if the sender has forgotten the previous row.
        clock: the sender's hybrid clock, as in the key.
        due_ms: the time at which the recovery pass looks at the row.
    """
    body = _encode_header(sender, previous, clock, 0) + _join_messages(messages)
    return Put(key, 1, body, Expect.ABSENT, due_ms)


def delivered_mail(
    receiver: str, sender: str, clock: int, messages: Sequence[EncodedMessage]
) -> MailboxRow:
    """Build the mail of messages that the sender's commit folds into the receiver. Nothing is
    written.

    The mail exists only in the journal: no mailbox row contains it. The fields in `messages` are
    the encoded bytes.
    """
    body = _encode_header(sender, FIRST, clock, 0) + _join_messages(messages)
    fields: tuple[NamedFields, ...] = tuple((name, body) for name, body in messages)
    return MailboxRow(
        mail_key(receiver, clock, sender), 0, sender, FIRST, clock, 0, fields, body, body
    )


def read_mail(row: Row) -> MailboxRow:
    """Decode a row into mail. The messages are parsed JSON, but not yet messages of a type.

    An undecodable row is logged and raises no error. It becomes mail with the single message
    UNREADABLE, which always fails, so that the row becomes a dead letter.
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
    """Build the mail of a row with undecodable messages, with the single message UNREADABLE.

    The sender, the clock and the attempts are read from the header, which is the beginning of the
    body. Without a readable header, the sender is read from the key, and the mail has ATTEMPTS_MAX
    attempts. The next attempt then makes a dead letter of the mail.
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
    """Build the Put that stores mail as a dead letter, at `D#` and the mail's sort key. The Put has
    no condition.

    `mail` has a single message, which no attempt could fold. Each message of a row has its own dead
    letter: if messages of the row remain in the mailbox, their number is added to the key. The body
    is the encoded mail, or the stored row if the row is unreadable.
    """
    suffix = f"#{len(mail.rest):06d}" if mail.rest else ""
    body = mail.stored if mail.messages[0][0] == UNREADABLE else mail.body
    return Put(
        Key(mail.key.partition, f"{LETTERS}{mail.key.sort}{suffix}"), 1, body, Expect.ANYTHING
    )


def attempt_write(mail: MailboxRow, now_ms: int, count: int = 1) -> tuple[MailboxRow, Put]:
    """Change the number of attempts of a row by `count`: 1 for an attempt, -1 to withdraw the
    attempt.

    Return the changed mail and the Put that stores it. The Put conflicts if the row has changed
    since the mail was read. The row is due again after 2^attempts seconds, with the larger number
    of attempts.
    """
    attempts = mail.attempts + count
    before, after = b'"attempts":%d,' % mail.attempts, b'"attempts":%d,' % attempts
    body, stored = (content.replace(before, after, 1) for content in (mail.body, mail.stored))
    counted = replace(mail, attempts=attempts, revision=mail.revision + 1, body=body, stored=stored)
    due_ms = now_ms + attempt_delay_ms(max(attempts, mail.attempts))
    return counted, Put(mail.key, counted.revision, stored, mail.revision, due_ms)


def attempt_delay_ms(attempts: int) -> int:
    """Return the delay in ms until a row with this number of attempts is due again: 2^attempts
    seconds.
    """
    return (1 << attempts) * 1000


def postponement(mail: MailboxRow, due_ms: int) -> Put:
    """Build the Put that changes a row's time in the due index, the table's list of due rows, to
    `due_ms`.

    The messages and the number of attempts stay unchanged. The Put conflicts if the row has changed
    since the mail was read.

    Args:
        due_ms: the new time in epoch ms.
    """
    return Put(mail.key, mail.revision + 1, mail.stored, mail.revision, due_ms)


def next_clock(clock: int, now_ms: int) -> int:
    """Return the next value of a hybrid clock, in ticks: the larger of `clock` + 1 and the present
    time.

    Args:
        clock: the last value.
        now_ms: the present time in epoch ms.
    """
    return max(clock + 1, now_ms * TICKS_PER_MS)


def _encode_header(sender: str, previous: str, clock: int, attempts: int) -> bytes:
    """Encode the beginning of a row's body, up to the messages."""
    return (
        f'{{"v":1,"from":"{sender}","prev":"{previous}","clock":{clock},"attempts":{attempts},'
    ).encode()


def _encode_messages(messages: Iterable[NamedFields]) -> bytes:
    """Encode the end of a row's body from names and fields. Raises ValueError for fields that are
    no JSON values.
    """
    return _join_messages((name, to_json(fields)) for name, fields in messages)


def _join_messages(messages: Iterable[EncodedMessage]) -> bytes:
    """Encode the end of a row's body from encoded messages."""
    content = b",".join(b'["%s",%s]' % (name.encode(), fields) for name, fields in messages)
    return b'"messages":[' + content + b"]}"
