"""Checkpoints in a bucket of Amazon S3, or of a store that speaks its protocol."""

from __future__ import annotations

import time
from collections.abc import Iterator
from pathlib import Path

from detcloud.http import backoff_seconds
from detcloud.s3 import PART_BYTES, PARTS_MAX, Bucket, KeyMissing, WriteConflict
from detcloud.storage.store import AlreadyStored, NotStored, checked_key, translated

_WRITES_MAX = 3
_BLOCK_BYTES = 1 << 20


class S3Store:
    """Keys lie below the prefix of the bucket's place."""

    def __init__(self, bucket: Bucket) -> None:
        self._bucket = bucket

    def put(self, key: str, source: Path) -> None:
        with translated(f"storing {key!r} in {self._bucket.place}"):
            if not self._written(checked_key(key), source):
                raise AlreadyStored(f"{key} exists already in {self._bucket.place}")

    def get(self, key: str, destination: Path) -> None:
        with translated(f"reading {key!r} from {self._bucket.place}"):
            try:
                self._bucket.fetch(checked_key(key), destination)
            except KeyMissing as error:
                raise NotStored(str(error)) from None

    def list(self, prefix: str) -> dict[str, int]:
        with translated(f"listing {prefix!r} in {self._bucket.place}"):
            own = self._bucket.size(checked_key(prefix))
            found = dict(sorted(self._bucket.listed(f"{prefix}/")))
            return found if own is None else {prefix: own, **found}

    def delete(self, key: str) -> None:
        with translated(f"deleting {key!r} from {self._bucket.place}"):
            self._bucket.delete(checked_key(key))

    def _written(self, key: str, source: Path) -> bool:
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
