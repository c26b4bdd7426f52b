"""Where checkpoints are kept: one small protocol, one module for each kind of store."""

from detcloud.storage.store import (
    AlreadyStored,
    CheckpointStore,
    NotStored,
    StorageError,
    build_store,
    checked_key,
)

__all__ = [
    "AlreadyStored",
    "CheckpointStore",
    "NotStored",
    "StorageError",
    "build_store",
    "checked_key",
]
