"""A checkpoint store in memory, in place of a store from another package."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from detcloud.storage import KeyExists, KeyNotFound, StorageError, checked_key

# Files by key, for each `shelf` of a configuration.
shelves: dict[str, dict[str, bytes]] = {}


class MemoryStore:
    """Store in the memory of the process."""

    root = None

    def __init__(self, files: dict[str, bytes]) -> None:
        self._files = files

    def put(self, key: str, source: Path) -> None:
        if checked_key(key) in self._files:
            raise KeyExists(key)
        self._files[key] = source.read_bytes()

    def get(self, key: str, destination: Path) -> None:
        if checked_key(key) not in self._files:
            raise KeyNotFound(key)
        destination.write_bytes(self._files[key])

    def list(self, prefix: str) -> dict[str, int]:
        below = f"{checked_key(prefix)}/"
        keys = (key for key in self._files if key == prefix or key.startswith(below))
        return {key: len(self._files[key]) for key in keys}

    def delete(self, key: str) -> None:
        self._files.pop(checked_key(key), None)


def build_memory_store(config: Mapping[str, Any]) -> MemoryStore:
    """Return the store of the configuration's `shelf`."""
    if not config.get("shelf"):
        raise StorageError("storage shelf is missing")
    return MemoryStore(shelves.setdefault(config["shelf"], {}))
