"""Rows of the state table as documents of Firestore, in the JSON of its REST interface.

A document's id is a hash of the row's partition, so that partitions are spread over the key space,
and the row's sort key in an alphabet whose order is that of the bytes. Ids are therefore compared
as rows are, and have none of the characters and forms that Firestore refuses.

| field | holds | in an index |
|---|---|---|
| `p`, `s` | partition and sort key | `s`, with `k` |
| `k` | the hash of the partition | with `s`, descending |
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
# The sweep of the tick deletes what has expired, within minutes. Firestore, which knows nothing of
# what goes with a row, does so where no tick has passed for as long as this.
DELETION_DELAY = timedelta(days=7)

_HASH_BYTES = 24
_STANDARD = b"ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/"
# The characters of ids in the order of their bytes; "/", "." and "_" are none of them.
_ORDERED = b"-0123456789ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz~"
_TO_ORDERED = bytes.maketrans(_STANDARD, _ORDERED)
_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
_LAST_MS = (datetime(9999, 12, 31, tzinfo=UTC) - DELETION_DELAY - _EPOCH) // timedelta(
    milliseconds=1
)

JsonObject = Mapping[str, Any]


def document_id(partition: str, sort: str) -> str:
    """The id of a row's document. With an empty `sort` it comes before all of the partition."""
    return partition_hash(partition) + _in_ordered_alphabet(sort.encode())


def partition_hash(partition: str) -> str:
    """The hash of a partition, in 32 characters that ids may have."""
    return _in_ordered_alphabet(sha256(partition.encode()).digest()[:_HASH_BYTES])


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


def _in_ordered_alphabet(content: bytes) -> str:
    """Base64 without its padding and in the ordered alphabet: 6 bits a character, so that the first
    bit that differs decides, and of two texts of which one begins with the other the shorter is
    first.
    """
    return base64.b64encode(content).rstrip(b"=").translate(_TO_ORDERED).decode()
