"""Rows of an actor's mailbox and the ids that order them.

All messages of one commit to one receiver are one row. The row's id is the sender's hybrid logical
clock and the sender's name: later than all that the sender had sent or read before, whatever the
machines' clocks say. `previous` is the sender's previous row to this receiver, which lets a reader
notice that it missed one.
"""

from dataclasses import dataclass, replace

from control_plane.engine.actor_types import EncodedMessage, parse_json
from control_plane.state.table import Delete, Expect, Key, Put, Row

MAIL = "M#"
MAIL_END = "N"
TIMERS = "T#"
# Mail is due in the table's index so long after it was sent: see due_rows.py.
BACKSTOP_MS = 5_000
# Ticks of the hybrid clock in a millisecond.
TICKS_PER_MS = 1 << 12

# What `previous` may be but a sort key: the sender's first row, or one it does not remember.
FIRST = ""
UNKNOWN = "?"


@dataclass(frozen=True, slots=True)
class Mail:
    """A row of a mailbox, or a timer. `messages` are stored names and fields, not decoded yet.

    `previous` is a row's sort key, FIRST, or UNKNOWN when the sender does not remember it.
    """

    key: Key
    revision: int
    sender: str
    previous: str
    clock: int
    attempts: int
    messages: tuple[tuple[str, object], ...]
    body: bytes

    def deletion(self) -> Delete:
        """The write that deletes the row, which can succeed only once."""
        return Delete(self.key, Expect.PRESENT)


def mail_key(receiver: str, clock: int, sender: str) -> Key:
    """The key of a row sent at `clock`."""
    return Key(receiver, f"{MAIL}{clock:016x}#{sender}")


def timer_key(address: str, due_ms: int, clock: int) -> Key:
    """The key of a timer. Timers sort by the time they are due, outside the mailbox."""
    return Key(address, f"{TIMERS}{due_ms:014d}#{clock:016x}")


def mail_write(
    key: Key, sender: str, previous: str, clock: int, messages: list[EncodedMessage], due_ms: int
) -> Put:
    """The write that mails `messages`. It conflicts with a row that has the key already."""
    content = b",".join(b'["%s",%s]' % (name.encode(), fields) for name, fields in messages)
    head = (
        f'{{"v":1,"from":"{sender}","prev":"{previous}","clock":{clock},"attempts":0,"messages":['
    )
    return Put(key, 1, head.encode() + content + b"]}", Expect.ABSENT, due_ms)


def read_mail(row: Row) -> Mail:
    """Decode a row into mail; KeyError, TypeError or ValueError if it is none."""
    fields = parse_json(row.body)
    return Mail(
        key=row.key,
        revision=row.revision,
        sender=fields["from"],
        previous=fields["prev"],
        clock=fields["clock"],
        attempts=fields["attempts"],
        messages=tuple((name, message) for name, message in fields["messages"]),
        body=row.body,
    )


def attempt_write(mail: Mail, now_ms: int, count: int = 1) -> tuple[Mail, Put]:
    """The mail with one more attempt, due again after 2^attempts seconds, and the write of it. A
    `count` of -1 withdraws the last attempt.
    """
    attempts = mail.attempts + count
    before, after = b'"attempts":%d,' % mail.attempts, b'"attempts":%d,' % attempts
    body = mail.body.replace(before, after, 1)
    counted = replace(mail, attempts=attempts, revision=mail.revision + 1, body=body)
    due_ms = now_ms + (1 << max(attempts, mail.attempts)) * 1000
    return counted, Put(mail.key, counted.revision, body, mail.revision, due_ms)


def next_clock(clock: int, now_ms: int) -> int:
    """The next value of a hybrid clock: later than `clock`, and not before the wall clock."""
    return max(clock + 1, now_ms * TICKS_PER_MS)
