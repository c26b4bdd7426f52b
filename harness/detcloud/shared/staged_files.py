"""The names of files on their way into a store that is a folder.

They lie in STAGING_FOLDER of the store's root, and begin with the UUID of their checkpoint, by
which the collector finds what a killed process left.
"""

from __future__ import annotations

import uuid

# The part of a key EXPERIMENT/TRIAL/EPOCH/UUID/FILE that is the checkpoint's.
CHECKPOINT_PART = 3


def staged_name(key: str) -> str:
    """A new name for an unfinished write of a key."""
    return f"{staged_prefix(key)}{uuid.uuid4().hex}"


def staged_prefix(key: str) -> str:
    """The beginning of the names of a checkpoint's unfinished writes; empty for another key."""
    parts = key.split("/")
    return f"{parts[CHECKPOINT_PART]}." if len(parts) > CHECKPOINT_PART + 1 else ""
