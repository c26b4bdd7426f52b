"""Rows of the state table as documents of Firestore, in the JSON of Firestore's REST interface.

All documents are in collections with the name `rows`, which queries read as a single collection. A
row whose creation calls a function is in a collection below `triggers`, because a trigger can
select documents only by whole parts of their paths (decision 0056).

A document's id is a hash of the row's partition followed by the row's sort key, both in base64
without the characters that Firestore forbids. The hash spreads partitions over the key space.

| field | holds | in an index |
|---|---|---|
| `p`, `s` | partition and sort key | `s`, with `k` |
| `k` | the hash of the partition | with `s`, in both directions |
| `r`, `b` | revision and body | |
| `t` | a token of the commit that wrote the row | |
| `d`, `h` | only if the row is due: the due time (epoch ms) and the shard | both |
| `x` | only if the row expires: the time at which Firestore itself may delete the document | |

The indexes are in `firestore.indexes.json` beside this module.
"""

import base64
from collections.abc import Mapping
from datetime import UTC, datetime, timedelta
from hashlib import sha256
from typing import Any, get_args

from control_plane.rows.registry import woken_function
from control_plane.rows.row_type import Function
from control_plane.state.table import EXPIRY_SHARDS, Key, Put, Row, shard_of

COLLECTION = "rows"
# The paths in triggers of the rows whose creation calls a function, by the function's name.
TRIGGER_PATTERNS = {name: f"triggers/{name}/{COLLECTION}/{{row}}" for name in get_args(Function)}
# The type of the events with which triggers call the functions.
CREATED = "google.cloud.firestore.document.v1.created"
# The pattern of document ids: 32 characters for the partition and at least 1 for the sort key.
# Firestore allows at most 1,500 characters.
ROW_ID = r"[A-Za-z0-9~-]{33,1500}"
# The tick deletes expired rows within minutes, together with the data that belongs to a row.
# Firestore deletes only the row, and only if no tick ran for this long.
DELETION_DELAY = timedelta(days=7)

_HASH_BYTES = 24
# The replacements for "+" and "/". Ids must not contain "/", and "_" and "." are not allowed
# everywhere in an id.
_SAFE = b"-~"
_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
_LAST_MS = (datetime(9999, 12, 31, tzinfo=UTC) - DELETION_DELAY - _EPOCH) // timedelta(
    milliseconds=1
)

JsonObject = Mapping[str, Any]


def document_path(key: Key) -> str:
    """Return the path of a row's document within the database."""
    name = f"{COLLECTION}/{partition_hash(key.partition)}{_in_safe_alphabet(key.sort.encode())}"
    function = woken_function(key.partition, key.sort)
    return f"triggers/{function}/{name}" if function else name


def partition_hash(partition: str) -> str:
    """Return the hash of a partition as 32 characters that are allowed in ids."""
    return _in_safe_alphabet(sha256(partition.encode()).digest()[:_HASH_BYTES])


def to_fields(put: Put, token: bytes) -> dict[str, JsonObject]:
    """Return the fields of the document that a Put writes; `token` identifies the commit.

    Only a row with a due time has the fields `d` and `h`. Only a row that expires at its due time
    has `x`, the time DELETION_DELAY later, unless this is too late for Firestore's timestamps.
    """
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
    """Build the row from a document that was read with all fields.

    A row whose document has no `d` has no due time.
    """
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
    """Return the row's key from a document that has at least the fields `p` and `s`."""
    fields = document["fields"]
    return Key(fields["p"]["stringValue"], fields["s"]["stringValue"])


def revision_of(document: JsonObject) -> int:
    """Return the row's revision from a document that has at least the field `r`."""
    return int(document["fields"]["r"]["integerValue"])


def has_token(document: JsonObject, token: bytes) -> bool:
    """Return whether the commit with this token wrote the document.

    Return False for a document without a token.
    """
    value: JsonObject = document["fields"].get("t", {})
    return value == _bytes_value(token)


def integer_value(number: int) -> JsonObject:
    """Return an integer as a field's value in Firestore's JSON."""
    return {"integerValue": str(number)}


def _bytes_value(content: bytes) -> JsonObject:
    return {"bytesValue": base64.b64encode(content).decode()}


def _in_safe_alphabet(content: bytes) -> str:
    """Return bytes in base64 without padding, with only characters that are allowed in ids."""
    return base64.b64encode(content, altchars=_SAFE).rstrip(b"=").decode()
