"""The checkpoint store in a bucket of Amazon S3, or of a store that speaks its protocol."""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from detcloud.shared.bucket_place import BucketPlace
from detcloud.shared.http import backoff_seconds
from detcloud.shared.s3 import PART_BYTES, PARTS_MAX, Bucket, NoSuchKey, WriteConflict, new_client
from detcloud.storage.store import (
    KeyExists,
    KeyNotFound,
    StorageError,
    checked_key,
    translate_errors,
)

_WRITES_MAX = 3
_BLOCK_BYTES = 1 << 20


def build_store(config: Mapping[str, Any]) -> S3Store:
    """The store in the configuration's `bucket`, for checkpoints, with keys that are the
    configuration's, the agent's or the machine's, never those of the user's own environment.

    Raises StorageError for one that cannot be.
    """
    if not config.get("bucket"):
        raise StorageError(f"storage bucket is {config.get('bucket')!r}: a name is needed")
    with translate_errors("using the checkpoint storage"):
        place = BucketPlace.from_storage(config)
        return S3Store(Bucket(place, new_client(place, for_checkpoints=True)))


def build_data_store(config: Mapping[str, Any]) -> S3Store:
    """A store for data of the user's: without keys in the configuration it uses those, and the
    region, that the user's own environment has. Raises StorageError for one that cannot be.
    """
    with translate_errors("using the data layer"):
        return S3Store(Bucket(BucketPlace.from_storage(config)))


class S3Store:
    """A store whose keys lie below the prefix of the bucket's place."""

    root = None

    def __init__(self, bucket: Bucket) -> None:
        self._bucket = bucket

    def put(self, key: str, source: Path) -> None:
        with translate_errors(f"storing {key!r} in {self._bucket.place}"):
            if not self._write_object(checked_key(key), source):
                raise KeyExists(f"{key} exists already in {self._bucket.place}")

    def get(self, key: str, destination: Path) -> None:
        with translate_errors(f"reading {key!r} from {self._bucket.place}"):
            try:
                self._bucket.fetch(checked_key(key), destination)
            except NoSuchKey as error:
                raise KeyNotFound(str(error)) from None

    def list(self, prefix: str) -> dict[str, int]:
        with translate_errors(f"listing {prefix!r} in {self._bucket.place}"):
            size = self._bucket.object_size(checked_key(prefix))
            below = dict(sorted(self._bucket.list_objects(f"{prefix}/")))
            return below if size is None else {prefix: size, **below}

    def delete(self, key: str) -> None:
        with translate_errors(f"deleting {key!r} from {self._bucket.place}"):
            self._bucket.delete(checked_key(key))

    def _write_object(self, key: str, source: Path) -> bool:
        # As large as it takes for the largest of files to have no more parts than there may be.
        part_bytes = max(PART_BYTES, -(-source.stat().st_size // PARTS_MAX))
        failures = 0
        while True:
            try:
                blocks = _blocks(source)
                return self._bucket.write(key, blocks, if_absent=True, part_bytes=part_bytes)
            except WriteConflict:
                failures += 1
                if failures == _WRITES_MAX:
                    raise
            time.sleep(backoff_seconds(failures))


def _blocks(source: Path) -> Iterator[bytes]:
    with source.open("rb") as file:
        while block := file.read(_BLOCK_BYTES):
            yield block
