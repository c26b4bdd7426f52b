"""The journal: a row for each commit of an actor, with the data to fold the commit again and
compare.

Journal rows need no condition of their own. The key of an entry contains the next revision of the
head, and the commit is conditional on the head. The key of a dropped row contains the key of the
mailbox row, whose deletion the same commit guards.

This module reads two formats of rows:
- Format 2 has a digest of each output that the commit changed (outputs.py). It also has the
  reasons, the user who gave the command, and the number of fields of the state.
- Format 1 has no `v`, and a single digest of the state and the messages.
"""

import zlib
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from hashlib import sha256
from typing import Any

from pydantic_core import to_json

from control_plane.engine.actor_types import EncodedMessage, parse_compressed_json, parse_json
from control_plane.rows import actor_rows
from control_plane.state.row_ranges import read_rows
from control_plane.state.table import Expect, Key, Put, Row, StateTable

FORMAT = 2
JOURNAL = actor_rows.JOURNAL.sort
# A sort key after every entry and before every dropped row.
JOURNAL_END = f"{JOURNAL}:"
DROPPED = actor_rows.DROPPED_MAIL.sort
UNCOMPRESSED_BYTES_MAX = 8 * 1024
# The first byte of a compressed row. Rows longer than UNCOMPRESSED_BYTES_MAX are compressed.
COMPRESSED = b"\x00"
PAGE_ROWS = 500
# Limited journals set an expiry on every 32nd row only; expiring a row deletes all earlier rows. An
# expiry costs an entry of the due index, which costs as much as the row.
TRIMMED_ROWS = 32

NamedMessage = tuple[str, Any]
"""The stored name of a message, and its fields as JSON values."""


@dataclass(frozen=True, slots=True)
class NewEntry:
    """A journal entry to write: the data to fold a commit again and compare the result."""

    now_ms: int
    """The time of the commit in epoch ms."""
    mail: tuple[bytes, ...]
    """The bodies of the mailbox rows that the commit folded, in order. Empty for a command without
    mail.
    """
    command: tuple[EncodedMessage, ...]
    """The encoded command of a user. Empty without a command."""
    rows_read: Mapping[str, list[object]]
    """The rows outside the actor that the steps read: revision and body by `partition/sort`."""
    output_digests: Mapping[str, str]
    """The digest of each changed output, by output name (outputs.py)."""
    field_count: int
    """The number of fields of the state type in the version that writes the entry."""
    reasons: Sequence[tuple[int, str]] = ()
    """The reasons of the steps, each with the number of the step from 0."""
    user: str = ""
    """The user who gave the command. "" without a user."""
    is_dead_letter: bool = False
    """Whether the mail is a dead letter, which the fallback handled."""
    is_spilled: bool = False
    """Whether the actor has a spilled outbox after this commit: stored messages that later commits
    mail. The commits that mail them have no entries, so revisions are missing after this entry.
    """


@dataclass(frozen=True, slots=True)
class RecordedEntry:
    """A journal entry that was read.

    Fields with the same name as in `NewEntry` have the same meaning.
    """

    revision: int
    """The revision of the head that the commit wrote."""
    now_ms: int
    """The time of the commit in epoch ms."""
    mail: tuple[tuple[NamedMessage, ...], ...]
    """The messages of each mailbox row, in the order in which they were folded."""
    command: tuple[NamedMessage, ...]
    """The command of a user, as a single message. Empty without a command."""
    rows_read: Mapping[str, tuple[int, bytes]]
    """The revision and body of each row that the steps read, by `partition/sort`. Revision 0 stands
    for a missing row.
    """
    output_digests: Mapping[str, str] | None
    """The digests by output name. None in a row of format 1."""
    full_digest: str = ""
    """The single digest of a row of format 1. "" in a row of format 2."""
    field_count: int = 0
    """The number of fields of the state type. 0 in a row of format 1."""
    reasons: tuple[tuple[int, str], ...] = field(default=())
    """The reasons of the steps, each with the number of the step from 0. Empty in a row of format
    1.
    """
    user: str = ""
    """The user who gave the command. "" without a user."""
    is_dead_letter: bool = False
    """Whether the mail is a dead letter, which the fallback handled."""
    is_spilled: bool = False
    """Whether the actor has a spilled outbox after this commit (see `NewEntry`), so that revisions
    may be missing.
    """

    @property
    def messages(self) -> tuple[NamedMessage, ...]:
        """All messages in folding order: the mail, then the command."""
        return (*(named for row in self.mail for named in row), *self.command)


def entry_write(address: str, revision: int, entry: NewEntry) -> Put:
    """Build the Put that stores `entry` as the journal row of `revision`. The Put has no condition.

    `address` is the actor, and `revision` the revision of the head that the commit writes. A body
    of more than UNCOMPRESSED_BYTES_MAX is compressed. The row does not expire unless the caller
    changes the Put.
    """
    command = b",".join(b'["%s",%s]' % (name.encode(), body) for name, body in entry.command)
    optional: dict[str, object] = {
        "read": entry.rows_read,
        "why": entry.reasons,
        "by": entry.user,
        "dead": entry.is_dead_letter,
        "spilled": entry.is_spilled,
    }
    body = b'{"v":%d,"now":%d,"f":%d,"in":[%s],"command":[%s],"out":%s%s}' % (
        FORMAT,
        entry.now_ms,
        entry.field_count,
        b",".join(entry.mail),
        command,
        to_json(entry.output_digests),
        b"".join(b',"%s":%s' % (k.encode(), to_json(v)) for k, v in optional.items() if v),
    )
    if len(body) > UNCOMPRESSED_BYTES_MAX:
        body = COMPRESSED + zlib.compress(body, 1)
    return Put(Key(address, f"{JOURNAL}{revision:012d}"), 1, body, Expect.ANYTHING)


def dropped_mail_write(address: str, sort: str, body: bytes, now_ms: int) -> Put:
    """Build the Put that records dropped mail in the journal of an actor that does not exist.

    The row's sort key is DROPPED followed by `sort`. The Put has no condition and the row never
    expires.

    Args:
        address: the address of the missing actor.
        sort: the sort key of the mailbox row.
        body: the encoded mail.
    """
    entry = b'{"now":%d,"dropped":%s}' % (now_ms, body)
    return Put(Key(address, f"{DROPPED}{sort}"), 1, entry, Expect.ANYTHING)


def read_entry_rows(table: StateTable, address: str, after: int = 0) -> Iterator[Row]:
    """Read the rows of the actor's journal entries after revision `after`, oldest first, in pages.

    Yield nothing without such entries. Rows of mail that was dropped, because the actor did not
    exist, are left out. Raises TableError during the iteration.
    """
    first = f"{JOURNAL}{after + 1:012d}"
    return read_rows(table, address, first, JOURNAL_END, page_rows=PAGE_ROWS)


def entry_revision(row: Row) -> int:
    """Return the revision of the head that the commit of a journal row wrote, from the row's key.

    Raises ValueError for a row that is no journal entry.
    """
    return int(row.key.sort.removeprefix(JOURNAL))


def read_entry(row: Row) -> RecordedEntry:
    """Decode a journal row into an entry. Raises ValueError with the reason for an invalid row."""
    try:
        fields = decode_journal_row(row.body)
        out = fields["out"]
        return RecordedEntry(
            revision=entry_revision(row),
            now_ms=int(fields["now"]),
            mail=tuple(_named_messages(mail["messages"]) for mail in fields["in"]),
            command=_named_messages(fields["command"]),
            rows_read={
                name: (row_revision, body.encode())
                for name, (row_revision, body) in _recorded_rows(fields).items()
            },
            output_digests=None if "v" not in fields else dict(out),
            full_digest=out if "v" not in fields else "",
            field_count=fields.get("f", 0),
            reasons=tuple((place, reason) for place, reason in fields.get("why", ())),
            user=fields.get("by", ""),
            is_dead_letter=fields.get("dead", False),
            is_spilled=fields.get("spilled", False),
        )
    except (AttributeError, KeyError, TypeError, ValueError) as error:
        raise ValueError(f"not a journal entry: {type(error).__name__}: {error}") from error


def decode_journal_row(body: bytes) -> Any:
    """Decompress a journal row's body if needed, and parse the JSON. Return the fields by name.

    Raises ValueError for damaged compressed data and for invalid JSON.
    """
    return parse_compressed_json(body[1:]) if body.startswith(COMPRESSED) else parse_json(body)


def format_1_digest(state: bytes, sends: Mapping[str, Sequence[EncodedMessage]]) -> str:
    """Return the digest of a row of format 1: over the encoded state and all messages in order.

    The digest is the first 16 hexadecimal digits of a SHA-256.

    Args:
        state: the encoded state.
        sends: the encoded messages by receiver.
    """
    digest = sha256(state)
    for to, messages in sends.items():
        digest.update(to.encode())
        for name, body in messages:
            digest.update(name.encode() + body)
    return digest.hexdigest()[:16]


def _named_messages(messages: Sequence[Sequence[Any]]) -> tuple[NamedMessage, ...]:
    """Convert a list of `[name, fields]` into tuples. Raises ValueError for an entry of another
    length.
    """
    return tuple((str(name), fields) for name, fields in messages)


def _recorded_rows(fields: Mapping[str, Any]) -> Mapping[str, Any]:
    """Return the `read` field of a journal row: `[revision, body]` by `partition/sort`.

    Return an empty dict if the row has no such field.
    """
    rows: Mapping[str, Any] = fields.get("read", {})
    return rows
