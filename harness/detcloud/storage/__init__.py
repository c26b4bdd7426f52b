"""Checkpoint stores: a small interface, and a module for each type of store."""

from detcloud.storage.registry import build_own_store, build_store, register_store
from detcloud.storage.store import (
    CheckpointStore,
    HashingStore,
    KeyExists,
    KeyNotFound,
    StorageError,
    StoreReplaced,
    checked_key,
)

__all__ = [
    "CheckpointStore",
    "HashingStore",
    "KeyExists",
    "KeyNotFound",
    "StorageError",
    "StoreReplaced",
    "build_own_store",
    "build_store",
    "checked_key",
    "register_store",
]
