"""A checkpoint store without a folder, like a bucket. Trials use the storage type `sealed`."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from detcloud.storage import register_store
from detcloud.storage.types.directory import DirectoryStore


class SealedStore:
    """A store that trials cannot read by paths."""

    root = None

    def __init__(self, store: DirectoryStore) -> None:
        self.put, self.get = store.put, store.get
        self.list, self.delete = store.list, store.delete


def sealed_storage(root: Path) -> dict[str, str]:
    """Return the field `storage` of a trial's specification, for a store without a folder."""
    return {"type": "sealed", "path": str(root)}


def build_sealed_store(config: Mapping[str, Any]) -> SealedStore:
    return SealedStore(DirectoryStore(Path(config["path"])))


register_store("sealed", f"{__name__}:build_sealed_store")
