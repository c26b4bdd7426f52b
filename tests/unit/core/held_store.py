"""A checkpoint store with uploads that a test can delay."""

import threading
from pathlib import Path

from detcloud.storage import StorageError
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
