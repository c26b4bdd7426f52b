"""An ObjectStore in a bucket of a cloud.

Signed URLs point to the bucket itself. Model code and checkpoints therefore bypass the cloud
functions, whose requests and responses are limited to a few megabytes.
"""

from collections.abc import Callable, Iterable, Iterator
from typing import Protocol

from control_plane.objects.store import (
    InvalidKey,
    Method,
    ObjectKey,
    ObjectNotFound,
    SignedUrl,
    StoredObject,
)
from detcloud.shared.bucket_errors import NoSuchKey

SIGNED_SECONDS_MAX = 15 * 60


class ObjectBucket(Protocol):
    """The operations that a store needs of a bucket; `detcloud.shared.s3.Bucket` has all of
    them.
    """

    def write(self, key: str, content: Iterable[bytes], *, if_absent: bool = False) -> bool:
        """Write an object atomically. With `if_absent`, return False if the object exists."""

    def read(self, key: str, start: int = 0, end: int | None = None) -> Iterator[bytes]:
        """Yield the bytes from `start` up to but excluding `end`. Raises NoSuchKey at the call."""

    def object_size(self, key: str) -> int | None:
        """Return the size of an object in bytes. Return None for a missing object."""

    def list_objects(self, prefix: str) -> Iterator[tuple[str, int]]:
        """Yield the key and the size of each object whose key begins with `prefix`, unsorted."""

    def delete(self, key: str) -> None:
        """Delete an object. A missing object is no error."""

    def signed_get_url(self, key: str, seconds: int) -> str:
        """Return a URL that permits reading the object for this number of seconds."""

    def signed_put_url(
        self, key: str, seconds: int, size: int, sha256: str
    ) -> tuple[str, dict[str, str]]:
        """Return a URL that permits writing this content, and the headers of the request."""


class BucketObjectStore:
    """An ObjectStore in a bucket.

    The methods raise OSError if retries did not help.

    Args:
        now_ms: returns the time in epoch ms, for signatures.
    """

    def __init__(self, bucket: ObjectBucket, now_ms: Callable[[], int]) -> None:
        self._bucket = bucket
        self._now_ms = now_ms

    def put(
        self, key: ObjectKey, content: bytes | Iterable[bytes], *, if_absent: bool = False
    ) -> bool:
        """Write an object atomically; see ObjectStore. With `if_absent`, return False if it
        exists.
        """
        blocks = (content,) if isinstance(content, bytes) else content
        return self._bucket.write(key.text, blocks, if_absent=if_absent)

    def get(self, key: ObjectKey, *, start: int = 0, length: int | None = None) -> Iterator[bytes]:
        """Return the content of an object in blocks; see ObjectStore. Raises ObjectNotFound."""
        if length == 0:
            if self.size(key) is None:
                raise ObjectNotFound(key)
            return iter(())
        try:
            return self._bucket.read(key.text, start, None if length is None else start + length)
        except NoSuchKey:
            raise ObjectNotFound(key) from None

    def size(self, key: ObjectKey) -> int | None:
        """Return the size of an object in bytes. Return None for a missing object."""
        return self._bucket.object_size(key.text)

    def list_objects(self, folder: ObjectKey) -> Iterator[StoredObject]:
        """Yield all objects whose key begins with `folder/`, sorted by the bytes of the keys."""
        objects = (
            _stored_object(text, size) for text, size in self._bucket.list_objects(f"{folder}/")
        )
        # Amazon sorts lists by the bytes of the keys. Other stores with Amazon's protocol do not.
        yield from sorted(filter(None, objects), key=lambda stored: stored.key)

    def delete(self, key: ObjectKey) -> None:
        """Delete an object. A missing object is no error."""
        self._bucket.delete(key.text)

    def signed_url(
        self,
        method: Method,
        key: ObjectKey,
        *,
        size: int | None = None,
        sha256: str | None = None,
        expires_ms: int,
    ) -> SignedUrl:
        """Return a URL of the bucket for a client without credentials; see ObjectStore.

        The URL expires after at most SIGNED_SECONDS_MAX. Raises ValueError if the time is under a
        second, or if the size or SHA-256 of a PUT is missing.
        """
        now_ms = self._now_ms()
        seconds = min(SIGNED_SECONDS_MAX, (expires_ms - now_ms) // 1000)
        if seconds < 1:
            raise ValueError(f"a signature of {key} must be valid for at least one second")
        ends_ms = now_ms + seconds * 1000
        if method == "GET":
            return SignedUrl(method, self._bucket.signed_get_url(key.text, seconds), {}, ends_ms)
        if size is None or sha256 is None:
            raise ValueError(f"a signed PUT of {key} needs the size and the SHA-256 of its content")
        url, headers = self._bucket.signed_put_url(key.text, seconds, size, sha256)
        return SignedUrl(method, url, headers, ends_ms)


def _stored_object(text: str, size: int) -> StoredObject | None:
    """Return a listed object. Return None for a foreign object whose name is not a valid key."""
    try:
        return StoredObject(ObjectKey(text), size)
    except InvalidKey:
        return None
