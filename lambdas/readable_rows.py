"""Decoding and masking of stored rows, which operators see as JSON values."""

import json
from collections.abc import Callable, Mapping
from typing import Any, Final

from control_plane.config.problems import ConfigInvalid
from control_plane.config.yaml_document import parse_document
from control_plane.engine.journal import decode_journal_row
from control_plane.engine.spilled_outbox import decode_spill
from control_plane.rows import actor_rows
from control_plane.rows.row_type import RowType
from detcloud.shared.masking import MASK, mask_document


def decode_body(row_type: RowType | None, body: bytes) -> Any:
    """Return the JSON value of a row's body. Return a text if the body cannot be decoded.

    The text is the body if it is UTF-8, and otherwise the number of bytes. The value of an actor's
    head row is a map of `header` and `state`. Never raises for an invalid body.

    Args:
        row_type: the declaration of the row. None for an undeclared row, which may be JSON.
        body: the stored body.
    """
    decode = _DECODERS.get(row_type, json.loads)
    try:
        return decode(body)
    except ValueError:
        pass
    try:
        return body.decode()
    except UnicodeDecodeError:
        return f"{len(body)} bytes"


def mask_body(row_type: RowType | None, value: Any) -> Any:
    """Return a copy of a decoded body without secrets.

    The secret fields of the declaration are masked as a whole, unless a field is empty. Secrets at
    known places of configurations are masked in every row.
    """
    if row_type is not None and isinstance(value, Mapping):
        secret = row_type.secret_fields
        value = {name: MASK if name in secret and item else item for name, item in value.items()}
    return mask_document(value, _parse_config)


def _decode_head(body: bytes) -> Any:
    """Return a map of the `header` and the `state` in the body of an actor's head row.

    The body has two lines of JSON. A single line, from an early release, is returned as a JSON
    value. Raises ValueError for an invalid body.
    """
    header, separator, state = body.partition(b"\n")
    if not separator:
        return json.loads(body)
    return {"header": json.loads(header), "state": json.loads(state)}


_DECODERS: Final[Mapping[RowType | None, Callable[[bytes], Any]]] = {
    actor_rows.HEAD: _decode_head,
    actor_rows.JOURNAL: decode_journal_row,
    actor_rows.OUTBOX: decode_spill,
}
"""The decoders of bodies that are not a single JSON value."""


def _parse_config(text: str) -> Any:
    """Parse the YAML text of a stored configuration. Return None for an empty text.

    Return MASK for an invalid text, because it may contain secrets.
    """
    try:
        return parse_document(text).tree
    except ConfigInvalid:
        return MASK
