"""Listings of a bucket that are verified against the requested prefix.

Callers delete listed objects, so a store's faulty answer must not name other objects.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Protocol

from detcloud.shared.bucket_errors import BucketError


class ListedBucket(Protocol):
    """A bucket with the methods for a listing, for example a `detcloud.shared.s3.Bucket`."""

    @property
    def place(self) -> object: ...

    def list_objects(self, prefix: str) -> Iterator[tuple[str, int]]: ...


def list_below(bucket: ListedBucket, prefix: str) -> Iterator[tuple[str, int]]:
    """Yield the key and the size in bytes of each object with the prefix, in the store's order.

    Objects are requested during the iteration. Raise BucketError at the first listed key without
    the prefix, because nothing else that the store lists is reliable then. Errors of the bucket
    are passed on.
    """
    for key, size in bucket.list_objects(prefix):
        check_listed(bucket.place, prefix, key)
        yield key, size


def check_listed(place: object, prefix: str, key: str) -> None:
    """Raise BucketError if a store at `place` listed a key that is not below the prefix."""
    if not key.startswith(prefix):
        raise BucketError(
            f"{place} lists {key!r:.200} below {prefix!r:.200}: the store has an error, "
            "and nothing that it lists can be relied on"
        )
