"""Unknown fields of stored JSON objects, which newer versions wrote.

Two versions run at the same time during a deployment. A field of a record that a newer version
stores must survive a rewrite by an older version. Only fields of the record itself survive; fields
inside the value of a known field do not.
"""

import json
from collections.abc import Container, Mapping


def select_unknown(fields: object, known: Container[str]) -> bytes:
    """Return the fields of a decoded JSON object that are not known, as JSON without braces.

    Return b"" if all fields are known, and for any other value than an object.
    """
    if not isinstance(fields, Mapping):
        return b""
    unknown = {name: value for name, value in fields.items() if name not in known}
    return json.dumps(unknown)[1:-1].encode() if unknown else b""


def append_fields(body: bytes, fields: bytes) -> bytes:
    """Return an encoded JSON object with more fields, which `select_unknown` returned.

    Without more fields, return `body` unchanged.
    """
    if not fields:
        return body
    return body[:-1] + (b"" if body == b"{}" else b",") + fields + b"}"


def keep_unknown(body: bytes, before: bytes | None, known: Container[str]) -> bytes:
    """Return an encoded record with the unknown fields of the row that the record replaces.

    Args:
        body: the encoded record, a JSON object.
        before: the stored body of the row. None or an empty body has no fields.
        known: the stored names of all fields of the record.

    Raises ValueError if `before` is not JSON.
    """
    return append_fields(body, select_unknown(json.loads(before), known)) if before else body
