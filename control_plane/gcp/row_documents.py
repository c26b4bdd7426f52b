"""Rows of the state table as documents of Firestore, in the JSON of its REST interface.

All documents are in collections that are called `rows`, of which queries read as of one. A row
whose creation calls a function is in a collection of its own below `triggers`: a trigger tells
documents apart by whole parts of their paths and by nothing else (decision 0056).

A document's id is a hash of the row's partition, so that partitions are spread over the key space,
and the row's sort key; both as base64, without the characters that Firestore refuses.

| field | holds | in an index |
|---|---|---|
| `p`, `s` | partition and sort key | `s`, with `k` |
| `k` | the hash of the partition | with `s`, in both directions |
| `r`, `b` | revision and body | |
| `t` | a token of the commit that wrote the row | |
| `d`, `h` | of a row that is due: when (epoch ms), and its shard | both |
| `x` | of a row that expires: when Firestore itself may delete it | |

The indexes are in `firestore.indexes.json` beside this module.
"""

import base64
from collections.abc import Mapping
from datetime import UTC, datetime, timedelta
from hashlib import sha256
from typing import Any

from control_plane.state.table import EXPIRY_SHARDS, Key, Put, Row, shard_of

COLLECTION = "rows"
# The functions that the creation of a row calls, and the paths of such rows as triggers have them.
TRIGGER_PATTERNS = {name: f"triggers/{name}/{COLLECTION}/{{row}}" for name in ("advance", "tick")}
# The type of the events by which triggers call them.
CREATED = "google.cloud.firestore.document.v1.created"
# The ids of documents: 32 characters of the partition and at least one of the sort key. Firestore
# takes 1,500 at most.
ROW_ID = r"[A-Za-z0-9~-]{33,1500}"
# New messages of actors, and no other rows of theirs.
_MAIL = "M#"
# Jobs that ask for slots, instances that are taken away, and searches that wait for their model.
_JOBS = "jobs#"
_WAITING = ("notices", "suggestions")
# The tick deletes what has expired, within minutes. Firestore, which knows nothing of
# what goes with a row, does so where no tick has passed for as long as this.
DELETION_DELAY = timedelta(days=7)

_HASH_BYTES = 24
# Of the characters of base64 ids may not have "/"; "_" and "." they may not have everywhere.
_SAFE = b"-~"
_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
_LAST_MS = (datetime(9999, 12, 31, tzinfo=UTC) - DELETION_DELAY - _EPOCH) // timedelta(
    milliseconds=1
)

JsonObject = Mapping[str, Any]


def document_path(key: Key) -> str:
    """The path of a row's document in its database."""
    name = f"{COLLECTION}/{partition_hash(key.partition)}{_in_safe_alphabet(key.sort.encode())}"
    function = _called_function(key)
    return f"triggers/{function}/{name}" if function else name


def partition_hash(partition: str) -> str:
    """The hash of a partition, in 32 characters that ids may have."""
    return _in_safe_alphabet(sha256(partition.encode()).digest()[:_HASH_BYTES])


def to_fields(put: Put, token: bytes) -> dict[str, JsonObject]:
    """The fields of the document that a put writes."""
    key = put.key
    fields: dict[str, JsonObject] = {
        "p": {"stringValue": key.partition},
        "s": {"stringValue": key.sort},
        "k": {"stringValue": partition_hash(key.partition)},
        "r": integer_value(put.revision),
        "b": _bytes_value(put.body),
        "t": _bytes_value(token),
    }
    if put.due_ms is not None:
        fields["d"] = integer_value(put.due_ms)
        fields["h"] = integer_value(shard_of(key.partition, expires=put.expires))
        if put.expires and put.due_ms <= _LAST_MS:
            deleted = _EPOCH + timedelta(milliseconds=put.due_ms) + DELETION_DELAY
            fields["x"] = {"timestampValue": deleted.strftime("%Y-%m-%dT%H:%M:%S.%fZ")}
    return fields


def to_row(document: JsonObject) -> Row:
    """The row of a whole document."""
    fields = document["fields"]
    due = fields.get("d")
    return Row(
        to_key(document),
        revision_of(document),
        base64.b64decode(fields["b"]["bytesValue"]),
        None if due is None else int(due["integerValue"]),
        "h" in fields and int(fields["h"]["integerValue"]) in EXPIRY_SHARDS,
    )


def to_key(document: JsonObject) -> Key:
    """The key of a document that has at least the fields of it."""
    fields = document["fields"]
    return Key(fields["p"]["stringValue"], fields["s"]["stringValue"])


def revision_of(document: JsonObject) -> int:
    """The revision in a document."""
    return int(document["fields"]["r"]["integerValue"])


def has_token(document: JsonObject, token: bytes) -> bool:
    """Whether the commit of that token wrote the document."""
    value: JsonObject = document["fields"].get("t", {})
    return value == _bytes_value(token)


def integer_value(number: int) -> JsonObject:
    """A number as a value of a field."""
    return {"integerValue": str(number)}


def _bytes_value(content: bytes) -> JsonObject:
    return {"bytesValue": base64.b64encode(content).decode()}


def _called_function(key: Key) -> str:
    """The function that a row's creation calls, "" for none."""
    if key.sort.startswith(_MAIL):
        return "advance"
    return "tick" if key.partition.startswith(_JOBS) or key.partition in _WAITING else ""


def _in_safe_alphabet(content: bytes) -> str:
    """Base64 without its padding and in the characters of ids."""
    return base64.b64encode(content, altchars=_SAFE).rstrip(b"=").decode()
