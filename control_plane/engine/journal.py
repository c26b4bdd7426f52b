"""The journal: one row for each commit of an actor, with enough in it to fold the commit again and
compare.

Journal rows need no condition of their own. An entry's key has the head's next revision, which the
head's condition guards. The key of a dropped message is that of the message, whose deletion is
guarded in the same commit.

A row of format 2 has a digest of every output that the commit changed (outputs.py), the reasons,
the user who gave the command, and how many fields the state had. A row of format 1, which has no
`v`, has a single digest of the state and the messages. Both formats are read here.
"""

import zlib
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from hashlib import sha256
from typing import Any

from pydantic_core import to_json

from control_plane.engine.actor_types import EncodedMessage, parse_json
from control_plane.state.table import Expect, Key, Put, Row, StateTable

FORMAT = 2
JOURNAL = "Z#"
# Sorts after every entry and before dropped messages.
JOURNAL_END = f"{JOURNAL}:"
DROPPED = f"{JOURNAL}dropped#"
UNCOMPRESSED_BYTES_MAX = 8 * 1024
# The first byte of a row that is compressed because it is longer.
COMPRESSED = b"\x00"
PAGE_ROWS = 500
# Of a journal that is not kept for ever one row in so many expires, and those before it go with it:
# an entry of the due index is as dear as the row.
TRIMMED_ROWS = 32

NamedMessage = tuple[str, Any]
"""A message's type name and its fields as JSON."""


@dataclass(frozen=True, slots=True)
class NewEntry:
    """An entry to write: the time of a commit, the rows of mail it folded, the command and the user
    who gave it, the rows it read outside the actor (revision and body by `partition/sort`), its
    reasons, each with the number of its message, and a digest of each of its outputs.

    `is_dead_letter`: the mail is a dead letter. `is_spilled`: an outbox is sent in commits of its
    own after this one, which have no entry. `field_count`: how many fields the state has.
    """

    now_ms: int
    mail: tuple[bytes, ...]
    command: tuple[EncodedMessage, ...]
    rows_read: Mapping[str, list[object]]
    output_digests: Mapping[str, str]
    field_count: int
    reasons: Sequence[tuple[int, str]] = ()
    user: str = ""
    is_dead_letter: bool = False
    is_spilled: bool = False


@dataclass(frozen=True, slots=True)
class RecordedEntry:
    """An entry as it was read. `mail` has the messages of each row, in the order they were folded.

    `output_digests` is None in a row of format 1, whose only digest is `full_digest`.
    """

    revision: int
    now_ms: int
    mail: tuple[tuple[NamedMessage, ...], ...]
    command: tuple[NamedMessage, ...]
    rows_read: Mapping[str, tuple[int, bytes]]
    output_digests: Mapping[str, str] | None
    full_digest: str = ""
    field_count: int = 0
    reasons: tuple[tuple[int, str], ...] = field(default=())
    user: str = ""
    is_dead_letter: bool = False
    is_spilled: bool = False

    @property
    def messages(self) -> tuple[NamedMessage, ...]:
        """All messages, the command last."""
        return (*(named for row in self.mail for named in row), *self.command)


def entry_write(address: str, revision: int, entry: NewEntry) -> Put:
    """The write of an entry, for the commit that takes the head to `revision`."""
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
    """The write that records that mail to an actor that does not exist was dropped."""
    entry = b'{"now":%d,"dropped":%s}' % (now_ms, body)
    return Put(Key(address, f"{DROPPED}{sort}"), 1, entry, Expect.ANYTHING)


def read_entry_rows(table: StateTable, address: str, after: int = 0) -> Iterator[Row]:
    """Read the rows of the actor's entries after revision `after`, oldest first."""
    start: str | None = f"{JOURNAL}{after + 1:012d}"
    while start is not None:
        page = table.query(address, start, JOURNAL_END, limit=PAGE_ROWS)
        yield from page.rows
        start = page.next_sort


def entry_revision(row: Row) -> int:
    """The head's revision that an entry's commit made."""
    return int(row.key.sort.removeprefix(JOURNAL))


def read_entry(row: Row) -> RecordedEntry:
    """Decode a row into an entry; ValueError, with the reason, for anything else."""
    try:
        fields = decode_journal_row(row.body)
        out = fields["out"]
        return RecordedEntry(
            revision=entry_revision(row),
            now_ms=int(fields["now"]),
            mail=tuple(_named_messages(mail["messages"]) for mail in fields["in"]),
            command=_named_messages(fields["command"]),
            rows_read={
                name: (seen, body.encode()) for name, (seen, body) in _recorded_rows(fields).items()
            },
            output_digests=None if "v" not in fields else dict(out),
            full_digest=out if "v" not in fields else "",
            field_count=fields.get("f", 0),
            reasons=tuple((place, reason) for place, reason in fields.get("why", ())),
            user=fields.get("by", ""),
            is_dead_letter=fields.get("dead", False),
            is_spilled=fields.get("spilled", False),
        )
    except (AttributeError, KeyError, TypeError, ValueError, zlib.error) as error:
        raise ValueError(f"not a journal entry: {type(error).__name__}: {error}") from error


def decode_journal_row(body: bytes) -> Any:
    """Decode a journal row's body as JSON."""
    return parse_json(zlib.decompress(body[1:]) if body.startswith(COMPRESSED) else body)


def format_1_digest(state: bytes, sends: Mapping[str, Sequence[EncodedMessage]]) -> str:
    """The digest of a row of format 1, over the state and the messages in order and in full."""
    digest = sha256(state)
    for to, messages in sends.items():
        digest.update(to.encode())
        for name, body in messages:
            digest.update(name.encode() + body)
    return digest.hexdigest()[:16]


def _named_messages(messages: Sequence[Sequence[Any]]) -> tuple[NamedMessage, ...]:
    return tuple((str(name), fields) for name, fields in messages)


def _recorded_rows(fields: Mapping[str, Any]) -> Mapping[str, Any]:
    rows = fields.get("read", {})
    assert isinstance(rows, dict)
    return rows
