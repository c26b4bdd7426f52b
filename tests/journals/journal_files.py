"""Files of recorded journals: a compressed file for each scenario, in a folder for each release.

`shapes.json` in a release's folder has the code's assumptions about stored rows: the fields of each
state in order, and the defaults of messages and inner records, which are not stored.
"""

import gzip
import json
from base64 import b64decode, b64encode
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import MISSING, fields, is_dataclass
from pathlib import Path
from typing import Any, get_args, get_type_hints

from pydantic_core import to_jsonable_python

from control_plane.actors.messages.stored_names import stored_name
from control_plane.engine.actor_types import ACTOR_TYPES
from control_plane.engine.head import HEAD, PARTS
from control_plane.engine.journal import JOURNAL
from control_plane.rows.stored_fields import stored_field_names
from control_plane.searchers.era_rules import SearchRules
from control_plane.searchers.halving.multi_bracket import MultiBracketPlan
from control_plane.searchers.posted_operations import (
    CloseRequest,
    CreateRequest,
    PostedOperations,
    ProgressRequest,
    ShutdownRequest,
    ValidateAfterRequest,
)
from control_plane.searchers.registry import OneOfRegistered
from control_plane.state.table import Expect, Key, Put, Row, StateTable

FOLDER = Path(__file__).parent
SHAPES = "shapes.json"
COMMIT_ROWS = 50
# The names of inner records in release 0.1.0; rows do not contain these names.
RECORD_NAMES: Mapping[type, str] = {
    CloseRequest: "CloseAsked",
    CreateRequest: "CreateAsked",
    MultiBracketPlan: "TournamentPlan",
    PostedOperations: "Posted",
    ProgressRequest: "ProgressAsked",
    SearchRules: "Rules",
    ShutdownRequest: "ShutdownAsked",
    ValidateAfterRequest: "ValidateAfterAsked",
}


def write_file(path: Path, rows: Iterable[Row]) -> None:
    """Write the heads, parts and journals among the rows; equal rows give equal bytes."""
    stored = [
        [row.key.partition, row.key.sort, row.revision, *_text(row.body)]
        for row in rows
        if row.key.sort == HEAD or row.key.sort.startswith((PARTS, JOURNAL))
    ]
    content = json.dumps(sorted(stored), separators=(",", ":")).encode()
    path.write_bytes(gzip.compress(content, mtime=0))


def load_file(path: Path, table: StateTable) -> list[str]:
    """Put a file's rows into a table; return the addresses of the actors."""
    puts = [
        Put(Key(partition, sort), revision, _bytes(*body), Expect.ANYTHING)
        for partition, sort, revision, *body in json.loads(gzip.decompress(path.read_bytes()))
    ]
    for first in range(0, len(puts), COMMIT_ROWS):
        table.commit(puts[first : first + COMMIT_ROWS])
    return [put.key.partition for put in puts if put.key.sort == HEAD]


def current_shapes() -> dict[str, Any]:
    """Return the assumptions of today's code about stored rows, as in `shapes.json`."""
    return {
        "states": {name: list(kind.names_in_code) for name, kind in ACTOR_TYPES.items()},
        "defaults": {_name(record): _defaults(record) for record in _message_classes()},
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
    stored_names = stored_field_names(kind)
    for field in fields(kind):
        if field.default is not MISSING:
            found[stored_names[field.name]] = to_jsonable_python(field.default)
        elif field.default_factory is not MISSING:
            found[stored_names[field.name]] = to_jsonable_python(field.default_factory())
    return found


def _name(record: type) -> str:
    """Return the name of a message or an inner record, in release 0.1.0 if renamed since."""
    return RECORD_NAMES.get(record) or stored_name(record)


def _message_classes() -> list[type]:
    """Return the classes of messages and inner records, by name."""
    found: set[type] = set()
    waiting = [message for kind in ACTOR_TYPES.values() for message in get_args(kind.message_union)]
    while waiting:
        kind = waiting.pop()
        if kind not in found:
            found.add(kind)
            waiting += [x for hint in _hints(kind) for x in _record_classes(hint)]
    return sorted(found, key=lambda kind: kind.__name__)


def _hints(record: type) -> Iterable[Any]:
    return get_type_hints(record, include_extras=True).values()


def _record_classes(hint: Any) -> Iterator[type]:
    if isinstance(hint, type) and is_dataclass(hint):
        yield hint
    for marker in getattr(hint, "__metadata__", ()):
        if isinstance(marker, OneOfRegistered):
            yield from marker.types()
    for inner in get_args(hint):
        yield from _record_classes(inner)
