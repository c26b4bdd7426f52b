"""Rows of an actor's mailbox and the ids that order them.

All messages of one commit to one receiver are one row. Its id is a hybrid logical clock of the
sender and the sender's name: later than all the sender had sent or read before, whatever the
machines' clocks say. `previous` is the sender's row before it to this receiver, which lets a
reader notice that it missed one.
"""

from dataclasses import dataclass, replace

from control_plane.dispatch.kinds import Encoded, parse_json
from control_plane.state.table import Delete, Expect, Key, Put, Row

MAIL = "M#"
MAIL_END = "N"
TIMERS = "T#"
BACKSTOP_MS = 5_000
# Ticks of the hybrid clock in a millisecond.
TICKS_PER_MS = 1 << 12

FIRST = ""
UNKNOWN = "?"


@dataclass(frozen=True, slots=True)
class Mail:
    """A row of a mailbox, or a timer. `messages` are (type name, fields), not decoded further yet.

    `previous` is a row's sort key, FIRST, or UNKNOWN when the sender no longer knows.
    """

    key: Key
    revision: int
    sender: str
    previous: str
    clock: int
    attempts: int
    messages: tuple[tuple[str, object], ...]
    body: bytes

    def consume(self) -> Delete:
        """Takes the row out, once."""
        return Delete(self.key, Expect.PRESENT)


def mail_key(receiver: str, clock: int, sender: str) -> Key:
    """The key of a row sent at `clock`."""
    return Key(receiver, f"{MAIL}{clock:016x}#{sender}")


def timer_key(address: str, due_ms: int, clock: int) -> Key:
    """The key of a timer; timers sort by when they are due, outside the mailbox."""
    return Key(address, f"{TIMERS}{due_ms:014d}#{clock:016x}")


def put_mail(
    key: Key, sender: str, previous: str, clock: int, messages: list[Encoded], due_ms: int
) -> Put:
    """The write that mails `messages`. An id that exists already is a conflict, never
    overwritten.
    """
    listed = b",".join(b'["%s",%s]' % (name.encode(), fields) for name, fields in messages)
    head = (
        f'{{"v":1,"from":"{sender}","prev":"{previous}","clock":{clock},"attempts":0,"messages":['
    )
    return Put(key, 1, head.encode() + listed + b"]}", Expect.ABSENT, due_ms)


def read_mail(row: Row) -> Mail:
    """The row as mail; ValueError if it is none."""
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


def put_attempt(mail: Mail, now_ms: int, count: int = 1) -> tuple[Mail, Put]:
    """The mail with one more attempt, due again after 2^attempts seconds, and the write that says
    so. A `count` of -1 takes the attempt back that was made last.
    """
    attempts = mail.attempts + count
    before, after = b'"attempts":%d,' % mail.attempts, b'"attempts":%d,' % attempts
    body = mail.body.replace(before, after, 1)
    raised = replace(mail, attempts=attempts, revision=mail.revision + 1, body=body)
    due_ms = now_ms + (1 << max(attempts, mail.attempts)) * 1000
    return raised, Put(mail.key, raised.revision, body, mail.revision, due_ms)


def next_clock(clock: int, now_ms: int) -> int:
    """The hybrid clock's next reading: later than `clock`, and not before the wall clock."""
    return max(clock + 1, now_ms * TICKS_PER_MS)
