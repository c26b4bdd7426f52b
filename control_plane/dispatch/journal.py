"""The journal: what each commit of an actor was made of, enough to fold it again and compare.

Its rows need no condition of their own. An entry's key is the head's next revision, which the
head's condition guards; a dropped message's is the message's, whose deletion is guarded in the
same commit.
"""

import zlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from hashlib import sha256
from typing import Any

from pydantic_core import to_json

from control_plane.dispatch.kinds import Encoded, parse_json
from control_plane.state.table import Expect, Key, Put

JOURNAL = "Z#"
DROPPED = f"{JOURNAL}dropped#"
# A longer row is compressed, and begins with this byte.
PLAIN_BYTES_MAX = 8 * 1024
PACKED = b"\x00"


@dataclass(frozen=True, slots=True)
class Entry:
    """One commit: its time, the rows of mail it folded, the command, the rows it read outside the
    actor (revision and body by `partition/sort`), and a digest of its outputs.
    """

    now_ms: int
    mail: tuple[bytes, ...]
    command: tuple[Encoded, ...]
    read: Mapping[str, list[object]]
    out: str


def put_entry(address: str, revision: int, entry: Entry) -> Put:
    """The write of an entry, in the commit that takes the head to `revision`."""
    command = b",".join(b'["%s",%s]' % (name.encode(), body) for name, body in entry.command)
    body = b'{"now":%d,"out":"%s","in":[%s],"command":[%s],"read":%s}' % (
        entry.now_ms,
        entry.out.encode(),
        b",".join(entry.mail),
        command,
        to_json(entry.read),
    )
    if len(body) > PLAIN_BYTES_MAX:
        body = PACKED + zlib.compress(body, 1)
    return Put(Key(address, f"{JOURNAL}{revision:012d}"), 1, body, Expect.ANYTHING)


def put_dropped(address: str, sort: str, body: bytes, now_ms: int) -> Put:
    """The write that says that mail to an actor that does not exist was dropped."""
    said = b'{"now":%d,"dropped":%s}' % (now_ms, body)
    return Put(Key(address, f"{DROPPED}{sort}"), 1, said, Expect.ANYTHING)


def read_row(body: bytes) -> Any:
    """The JSON of a journal row."""
    return parse_json(zlib.decompress(body[1:]) if body.startswith(PACKED) else body)


def digest_of(state: bytes, sends: Mapping[str, Sequence[Encoded]]) -> str:
    """What a fold put out: its state and its messages, in order."""
    digest = sha256(state)
    for to, messages in sends.items():
        digest.update(to.encode())
        for name, body in messages:
            digest.update(name.encode() + body)
    return digest.hexdigest()[:16]
