"""Users' edits of the metadata of trials and checkpoints, on top of the metadata that code set.

Edits concern top-level keys. A user's value replaces the code's value. A key that a user removed
stays hidden, even if the code sets it later. The rows of edits are in the trial's partition and are
deleted with it.
"""

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from control_plane.rows import trial_rows
from control_plane.rows.json_codec import JsonCodec

METADATA_EDITS = trial_rows.TRIAL_EDIT.sort
"""The sort key of the row with a trial's edit. A checkpoint's UUID is appended for its edit."""


@dataclass(frozen=True)
class MetadataEdit:
    """A user's edit of metadata."""

    values: Mapping[str, object] = field(default_factory=dict)
    """The values that users set, by top-level key."""
    removed: tuple[str, ...] = ()
    """The top-level keys that users removed."""

    def merge_edit(self, metadata: Mapping[str, object]) -> dict[str, Any]:
        """Return the metadata that users see: `metadata`, which the code set, with this edit
        applied.
        """
        kept = {key: value for key, value in metadata.items() if key not in self.removed}
        return {**kept, **self.values}


def edit_between(
    wanted: Mapping[str, object], metadata: Mapping[str, object], before: MetadataEdit
) -> MetadataEdit:
    """Return the edit that turns metadata set by the code into the metadata that a user wants.

    A value that the code set and no user changed does not become part of the edit, so that the code
    can still change it. Keys that `wanted` lacks become removed keys.

    Args:
        wanted: The whole metadata after the user's change.
        metadata: The metadata that the code set.
        before: The edit that is stored now.
    """
    values = {
        key: value
        for key, value in wanted.items()
        if key in before.values or key not in metadata or not _is_same(value, metadata[key])
    }
    shown = before.merge_edit(metadata)
    removed = {*shown, *before.removed} - wanted.keys()
    return MetadataEdit(values, tuple(sorted(removed)))


_CODEC = JsonCodec(trial_rows.TRIAL_EDIT, MetadataEdit, {"removed": tuple})


def encode_edit(edit: MetadataEdit, before: bytes | None = None) -> bytes:
    """Encode an edit as the body of a row.

    Args:
        edit: the edit.
        before: the body of the row that is replaced, with fields of newer versions to keep. None
            for a new row.
    """
    return _CODEC.encode(edit, before)


def decode_edit(body: bytes | None) -> MetadataEdit:
    """Decode the body of an edit's row. Return an edit that changes nothing for None.

    Raises:
        ValueError: the body is not JSON.
    """
    return MetadataEdit() if body is None else _CODEC.decode(body)


def _is_same(left: object, right: object) -> bool:
    """Return whether two values have equal JSON texts. True and 1 differ."""
    return json.dumps(left, sort_keys=True) == json.dumps(right, sort_keys=True)
