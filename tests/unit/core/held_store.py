"""A checkpoint store with uploads that a test can delay. Trials use the storage type `held`."""

import threading
from collections.abc import Mapping
from functools import cache
from pathlib import Path
from typing import Any

from detcloud.storage import StorageError, register_store
from detcloud.storage.types.directory import DirectoryStore
from tests.patience import ANSWER_SECONDS_MAX


class HeldStore(DirectoryStore):
    """Store that blocks uploads until `may_store` is set; uploads of files `refused` fail."""

    def __init__(self, root: Path) -> None:
        super().__init__(root)
        self.may_store = threading.Event()

    def put(self, key: str, source: Path) -> None:
        assert self.may_store.wait(ANSWER_SECONDS_MAX)
        if key.endswith("/refused"):
            raise StorageError("the bucket is full")
        super().put(key, source)


@cache
def held_store(root: Path) -> HeldStore:
    """Return the store of the trials that have `held_storage(root)`."""
    return HeldStore(root)


def held_storage(root: Path) -> dict[str, str]:
    """Return the field `storage` of a trial's specification, for uploads that a test can delay."""
    return {"type": "held", "path": str(root)}


def build_held_store(config: Mapping[str, Any]) -> HeldStore:
    return held_store(Path(config["path"]))


register_store("held", f"{__name__}:build_held_store")
