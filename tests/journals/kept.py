"""Recorded journals as they are kept: one compressed file per scenario, a folder per release.

Beside them, `shapes.json` says what the release's code took for granted when it wrote them: the
fields of each state in order, and the defaults of messages, which are not stored.
"""

import gzip
import json
from base64 import b64decode, b64encode
from collections.abc import Iterable, Iterator
from dataclasses import MISSING, fields, is_dataclass
from pathlib import Path
from typing import Any, get_args, get_type_hints

from pydantic_core import to_jsonable_python

from control_plane.dispatch.head import HEAD, PARTS
from control_plane.dispatch.journal import JOURNAL
from control_plane.dispatch.kinds import KINDS
from control_plane.state.table import Expect, Key, Put, Row, StateTable

FOLDER = Path(__file__).parent
SHAPES = "shapes.json"
COMMIT_ROWS = 50


def write(path: Path, rows: Iterable[Row]) -> None:
    """Keeps the heads, parts and journals among the rows; the same rows give the same bytes."""
    kept = [
        [row.key.partition, row.key.sort, row.revision, *_text(row.body)]
        for row in rows
        if row.key.sort == HEAD or row.key.sort.startswith((PARTS, JOURNAL))
    ]
    content = json.dumps(sorted(kept), separators=(",", ":")).encode()
    path.write_bytes(gzip.compress(content, mtime=0))


def read(path: Path, table: StateTable) -> list[str]:
    """Puts a file's rows into a table, and returns the addresses of its actors."""
    puts = [
        Put(Key(partition, sort), revision, _bytes(*body), Expect.ANYTHING)
        for partition, sort, revision, *body in json.loads(gzip.decompress(path.read_bytes()))
    ]
    for first in range(0, len(puts), COMMIT_ROWS):
        table.commit(puts[first : first + COMMIT_ROWS])
    return [put.key.partition for put in puts if put.key.sort == HEAD]


def shapes() -> dict[str, Any]:
    """What today's code takes for granted."""
    return {
        "states": {name: list(kind.names) for name, kind in KINDS.items()},
        "defaults": {kind.__name__: _defaults(kind) for kind in _stored_in_messages()},
    }


def _text(body: bytes) -> tuple[str, ...]:
    try:
        return (body.decode(),)
    except UnicodeDecodeError:
        return (b64encode(body).decode(), "base64")


def _bytes(text: str, encoding: str = "") -> bytes:
    return b64decode(text) if encoding else text.encode()


def _defaults(kind: type) -> dict[str, Any]:
    found: dict[str, Any] = {}
    for field in fields(kind):
        if field.default is not MISSING:
            found[field.name] = to_jsonable_python(field.default)
        elif field.default_factory is not MISSING:
            found[field.name] = to_jsonable_python(field.default_factory())
    return found


def _stored_in_messages() -> list[type]:
    """Messages and the records inside them, by name."""
    found: set[type] = set()
    waiting = [message for kind in KINDS.values() for message in get_args(kind.union)]
    while waiting:
        kind = waiting.pop()
        if kind not in found:
            found.add(kind)
            waiting += [x for hint in get_type_hints(kind).values() for x in _records(hint)]
    return sorted(found, key=lambda kind: kind.__name__)


def _records(hint: Any) -> Iterator[type]:
    if isinstance(hint, type) and is_dataclass(hint):
        yield hint
    for inner in get_args(hint):
        yield from _records(inner)
