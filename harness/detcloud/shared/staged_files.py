"""The names of unfinished files in a checkpoint store that is a folder.

The files lie in STAGING_FOLDER below the store's root. The names begin with the UUID of the
checkpoint, by which the garbage collector finds files of killed processes.
"""

from __future__ import annotations

import hashlib
import uuid

# The position of the checkpoint's UUID in a key EXPERIMENT/TRIAL/EPOCH/UUID/FILE.
CHECKPOINT_PART = 3


def staged_name(key: str) -> str:
    """Return a new random name for an unfinished write of a key, after `staged_prefix`.

    Nothing is created.
    """
    return f"{staged_prefix(key)}{uuid.uuid4().hex}"


def claim_name(key: str) -> str:
    """Return the name of the file that claims a key for a single writer.

    A writer creates the file before it writes the key, so that no other writer does. Equal keys
    have equal names: `staged_prefix` and the key's SHA-256. Nothing is created here.
    """
    return f"{staged_prefix(key)}{hashlib.sha256(key.encode()).hexdigest()}"


def staged_prefix(key: str) -> str:
    """Return the beginning of the names of a checkpoint's unfinished writes: the UUID with a dot.

    A key is EXPERIMENT/TRIAL/EPOCH/UUID/FILE, and FILE may contain slashes. Return "" for a key
    with fewer than five parts, which belongs to no checkpoint's file. The UUID is not checked.
    """
    parts = key.split("/")
    return f"{parts[CHECKPOINT_PART]}." if len(parts) > CHECKPOINT_PART + 1 else ""
