"""The manifest of a checkpoint, as who restores it reads it."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from detcloud.shared.checkpoint_limits import MANIFEST
from detcloud.shared.errors import DetcloudError
from detcloud.shared.trial_directory import CheckpointReference


def parse_manifest(place: Path, reference: CheckpointReference) -> dict[str, Any]:
    """The manifest in a file, whose fields are all there; else DetcloudError."""
    try:
        manifest: dict[str, Any] = json.loads(place.read_bytes())
        entries = manifest["files"].values()
        complete = all({"size", "sha256"} <= set(entry) for entry in entries)
        if not complete or manifest["version"] != 1 or not isinstance(manifest["metadata"], dict):
            raise ValueError("a field is missing or its version is not 1")
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise DetcloudError(
            f"checkpoint {reference.uuid}: {MANIFEST} cannot be read: {error!r}"
        ) from None
    return manifest
