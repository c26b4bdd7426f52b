"""Bucket listings that are checked against the requested prefix, since listed objects are deleted:
a faulty answer of a store must not delete other objects.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Protocol

from detcloud.shared.bucket_errors import BucketError


class ListedBucket(Protocol):
    """The request that a listing needs of a bucket, a `detcloud.shared.s3.Bucket` for one."""

    @property
    def place(self) -> object: ...

    def list_objects(self, prefix: str) -> Iterator[tuple[str, int]]: ...


def list_below(bucket: ListedBucket, prefix: str) -> Iterator[tuple[str, int]]:
    """The keys with that prefix and their sizes. Raises BucketError at the first one without it."""
    for key, size in bucket.list_objects(prefix):
        if not key.startswith(prefix):
            raise BucketError(
                f"{bucket.place} lists {key!r:.200} below {prefix!r:.200}: the store has an error, "
                "and nothing that it lists can be relied on"
            )
        yield key, size
