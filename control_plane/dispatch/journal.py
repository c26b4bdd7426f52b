"""The journal: what each commit of an actor was made of, enough to fold it again and compare.

Its rows need no condition of their own. An entry's key is the head's next revision, which the
head's condition guards; a dropped message's is the message's, whose deletion is guarded in the
same commit.

A row of format 2 lists a digest of every piece that the commit changed (outputs.py), why, who
commanded it, and how many fields the state had; one of format 1, which has no `v`, has a single
digest of the state and the messages. Both are read here.
"""

import zlib
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from hashlib import sha256
from typing import Any

from pydantic_core import to_json

from control_plane.dispatch.kinds import Encoded, parse_json
from control_plane.state.table import Expect, Key, Put, Row, StateTable

FORMAT = 2
JOURNAL = "Z#"
# Behind every entry and before what was dropped.
JOURNAL_END = f"{JOURNAL}:"
DROPPED = f"{JOURNAL}dropped#"
# A longer row is compressed, and begins with this byte.
PLAIN_BYTES_MAX = 8 * 1024
PACKED = b"\x00"
PAGE_ROWS = 500

Named = tuple[str, Any]
"""A message's type name and its fields as JSON."""


@dataclass(frozen=True, slots=True)
class Entry:
    """One commit, to be written: its time, the rows of mail it folded, the command and the user
    who gave it, the rows it read outside the actor (revision and body by `partition/sort`), its
    reasons with the place of the message they are of, and a digest of each of its outputs.

    `dead`: the mail is a dead letter. `spilled`: the outbox is sent in commits of its own, which
    have no entry. `names`: how many fields the state has.
    """

    now_ms: int
    mail: tuple[bytes, ...]
    command: tuple[Encoded, ...]
    read: Mapping[str, list[object]]
    out: Mapping[str, str]
    names: int
    why: Sequence[tuple[int, str]] = ()
    by: str = ""
    dead: bool = False
    spilled: bool = False


@dataclass(frozen=True, slots=True)
class Recorded:
    """An entry as read. Messages are by row of mail, as they were folded.

    `out` is None in a row of format 1, whose only digest is `whole`.
    """

    revision: int
    now_ms: int
    mail: tuple[tuple[Named, ...], ...]
    command: tuple[Named, ...]
    read: Mapping[str, tuple[int, bytes]]
    out: Mapping[str, str] | None
    whole: str = ""
    names: int = 0
    why: tuple[tuple[int, str], ...] = field(default=())
    by: str = ""
    dead: bool = False
    spilled: bool = False

    @property
    def messages(self) -> tuple[Named, ...]:
        """All messages, the command last."""
        return (*(named for row in self.mail for named in row), *self.command)


def put_entry(address: str, revision: int, entry: Entry) -> Put:
    """The write of an entry, in the commit that takes the head to `revision`."""
    command = b",".join(b'["%s",%s]' % (name.encode(), body) for name, body in entry.command)
    optional: dict[str, object] = {
        "read": entry.read,
        "why": entry.why,
        "by": entry.by,
        "dead": entry.dead,
        "spilled": entry.spilled,
    }
    body = b'{"v":%d,"now":%d,"f":%d,"in":[%s],"command":[%s],"out":%s%s}' % (
        FORMAT,
        entry.now_ms,
        entry.names,
        b",".join(entry.mail),
        command,
        to_json(entry.out),
        b"".join(b',"%s":%s' % (k.encode(), to_json(v)) for k, v in optional.items() if v),
    )
    if len(body) > PLAIN_BYTES_MAX:
        body = PACKED + zlib.compress(body, 1)
    return Put(Key(address, f"{JOURNAL}{revision:012d}"), 1, body, Expect.ANYTHING)


def put_dropped(address: str, sort: str, body: bytes, now_ms: int) -> Put:
    """The write that says that mail to an actor that does not exist was dropped."""
    said = b'{"now":%d,"dropped":%s}' % (now_ms, body)
    return Put(Key(address, f"{DROPPED}{sort}"), 1, said, Expect.ANYTHING)


def rows_of(table: StateTable, address: str, after: int = 0) -> Iterator[Row]:
    """The actor's entries behind revision `after`, oldest first."""
    start: str | None = f"{JOURNAL}{after + 1:012d}"
    while start is not None:
        page = table.query(address, start, JOURNAL_END, limit=PAGE_ROWS)
        yield from page.rows
        start = page.next_sort


def revision_of(row: Row) -> int:
    """The head's revision that an entry is of."""
    return int(row.key.sort.removeprefix(JOURNAL))


def read_entry(row: Row) -> Recorded:
    """The row as an entry; ValueError for anything else, with the reason."""
    try:
        said = read_row(row.body)
        out = said["out"]
        return Recorded(
            revision=revision_of(row),
            now_ms=int(said["now"]),
            mail=tuple(_named(mail["messages"]) for mail in said["in"]),
            command=_named(said["command"]),
            read={name: (seen, body.encode()) for name, (seen, body) in _read(said).items()},
            out=None if "v" not in said else dict(out),
            whole=out if "v" not in said else "",
            names=said.get("f", 0),
            why=tuple((place, reason) for place, reason in said.get("why", ())),
            by=said.get("by", ""),
            dead=said.get("dead", False),
            spilled=said.get("spilled", False),
        )
    except (AttributeError, KeyError, TypeError, ValueError, zlib.error) as error:
        raise ValueError(f"no entry of a journal: {type(error).__name__}: {error}") from error


def read_row(body: bytes) -> Any:
    """The JSON of a journal row."""
    return parse_json(zlib.decompress(body[1:]) if body.startswith(PACKED) else body)


def whole_digest(state: bytes, sends: Mapping[str, Sequence[Encoded]]) -> str:
    """The one digest of a row of format 1: the state and the messages, in order and in full."""
    digest = sha256(state)
    for to, messages in sends.items():
        digest.update(to.encode())
        for name, body in messages:
            digest.update(name.encode() + body)
    return digest.hexdigest()[:16]


def _named(listed: Sequence[Sequence[Any]]) -> tuple[Named, ...]:
    return tuple((str(name), fields) for name, fields in listed)


def _read(said: Mapping[str, Any]) -> Mapping[str, Any]:
    found = said.get("read", {})
    assert isinstance(found, dict)
    return found
