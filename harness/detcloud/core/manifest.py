"""Parsing of a checkpoint's manifest when the checkpoint is restored."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from detcloud.shared.checkpoint_limits import MANIFEST


def parse_manifest(place: Path) -> dict[str, Any]:
    """Return the content of a checkpoint's manifest, parsed from the file `place`.

    Raises ValueError if the file is not JSON, lacks a field, or has another version than 1. Raises
    OSError if the file cannot be read.
    """
    try:
        manifest: dict[str, Any] = json.loads(place.read_bytes())
        entries = manifest["files"].values()
        complete = all({"size", "sha256"} <= set(entry) for entry in entries)
        if not complete or manifest["version"] != 1 or not isinstance(manifest["metadata"], dict):
            raise ValueError("a field is missing or its version is not 1")
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise ValueError(f"{MANIFEST} cannot be read: {error!r}") from None
    return manifest
