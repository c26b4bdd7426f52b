"""A faulty or hostile bucket that lists keys outside the requested prefix."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from control_plane.checkpoint_stores.bucket_files import BucketFiles
from detcloud.shared.transfers import Digest
from detcloud.storage import StorageError
from detcloud.storage.bucket_store import BucketStore

PARTS = ("3", "4", "1", "00000000-0000-4000-8000-000000000001")
PREFIX = "/".join((*PARTS, ""))


class WrongBucket:
    """Bucket with a key of another prefix at the end of each listing."""

    place = "wrong://bucket"

    def __init__(self) -> None:
        self.deleted: list[str] = []

    def list_objects(self, prefix: str) -> Iterator[tuple[str, int]]:
        yield f"{prefix}weights", 3
        yield "3/4/1/another/weights", 3

    def delete(self, key: str) -> None:
        self.deleted.append(key)

    def abort_uploads(self, prefix: str) -> None: ...

    def open(self, key: str) -> tuple[int, Iterator[bytes]]:
        return 0, iter(())

    def send(self, key: str, source: Path) -> bool:
        return False

    def fetch(self, key: str, destination: Path, digest: Digest | None = None) -> None: ...

    def object_size(self, key: str) -> int | None:
        return None

    def signed_get_url(self, key: str, seconds: int) -> str:
        return ""


def test_foreign_keys_in_a_listing_are_an_error() -> None:
    with pytest.raises(StorageError, match=f"lists '3/4/1/another/weights' below '{PREFIX}'"):
        BucketStore(WrongBucket()).list(PREFIX.rstrip("/"))


def test_foreign_keys_are_not_deleted_or_listed() -> None:
    bucket = WrongBucket()
    files = BucketFiles(bucket)
    with pytest.raises(OSError, match="lists '3/4/1/another/weights'"):
        list(files.remove_folder(PARTS))
    assert bucket.deleted == [f"{PREFIX}weights"]
    with pytest.raises(OSError, match="lists '3/4/1/another/weights'"):
        list(files.list_files(PARTS))
    with pytest.raises(OSError, match="lists '3/4/1/another/weights'"):
        list(files.list_checkpoints(5, 6))
