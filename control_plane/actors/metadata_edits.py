"""Edits of the metadata of trials and checkpoints: what users set, laid over what their code set.

A user's value replaces the code's for a key at the top, and a key that a user removed stays away,
whatever the code sets later. The rows are in the trial's partition, and go with it.
"""

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

METADATA_EDITS = "V#"
"""The sort key of a trial's edit; a checkpoint's has its UUID behind it."""


@dataclass(frozen=True)
class MetadataEdit:
    """The `values` that users set, by keys at the top, and the keys that they removed."""

    values: Mapping[str, object] = field(default_factory=dict)
    removed: tuple[str, ...] = ()

    def merge_edit(self, metadata: Mapping[str, object]) -> dict[str, Any]:
        """The metadata as users see it, given what the code set."""
        kept = {key: value for key, value in metadata.items() if key not in self.removed}
        return {**kept, **self.values}


def edit_between(
    wanted: Mapping[str, object], metadata: Mapping[str, object], before: MetadataEdit
) -> MetadataEdit:
    """The edit that turns the `metadata` set by the code, after the edit `before`, into `wanted`.

    Values that the code set and no user changed are not part of the edit, so the code may still
    change them.
    """
    values = {
        key: value
        for key, value in wanted.items()
        if key in before.values or key not in metadata or not _is_same(value, metadata[key])
    }
    shown = before.merge_edit(metadata)
    removed = {*shown, *before.removed} - wanted.keys()
    return MetadataEdit(values, tuple(sorted(removed)))


def encode_edit(edit: MetadataEdit) -> bytes:
    """Encode an edit as the body of its row."""
    return json.dumps({"values": dict(edit.values), "removed": edit.removed}).encode()


def decode_edit(body: bytes | None) -> MetadataEdit:
    """Decode the body of a row; of none, the edit that changes nothing."""
    if body is None:
        return MetadataEdit()
    fields = json.loads(body)
    return MetadataEdit(fields["values"], tuple(fields["removed"]))


def _is_same(one: object, other: object) -> bool:
    """Whether two values are the same JSON: True is not 1."""
    return json.dumps(one, sort_keys=True) == json.dumps(other, sort_keys=True)
