"""The ObjectStore in a bucket of a cloud.

Signed URLs lead to the bucket itself, so that neither model code nor checkpoints pass through the
functions, whose requests and responses may have no more than a few megabytes.
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
    """The requests that a store needs of a bucket, a `detcloud.shared.s3.Bucket` for one."""

    def write(self, key: str, content: Iterable[bytes], *, if_absent: bool = False) -> bool: ...

    def read(self, key: str, start: int = 0, end: int | None = None) -> Iterator[bytes]: ...

    def object_size(self, key: str) -> int | None: ...

    def list_objects(self, prefix: str) -> Iterator[tuple[str, int]]: ...

    def delete(self, key: str) -> None: ...

    def signed_get_url(self, key: str, seconds: int) -> str: ...

    def signed_put_url(
        self, key: str, seconds: int, size: int, sha256: str
    ) -> tuple[str, dict[str, str]]: ...


class BucketObjectStore:
    """An ObjectStore below the bucket's prefix; `now_ms` is the clock of signatures.

    Its methods raise OSError for errors that retries did not overcome.
    """

    def __init__(self, bucket: ObjectBucket, now_ms: Callable[[], int]) -> None:
        self._bucket = bucket
        self._now_ms = now_ms

    def put(
        self, key: ObjectKey, content: bytes | Iterable[bytes], *, if_absent: bool = False
    ) -> bool:
        blocks = (content,) if isinstance(content, bytes) else content
        return self._bucket.write(key.text, blocks, if_absent=if_absent)

    def get(self, key: ObjectKey, *, start: int = 0, length: int | None = None) -> Iterator[bytes]:
        if length == 0:
            if self.size(key) is None:
                raise ObjectNotFound(key)
            return iter(())
        try:
            return self._bucket.read(key.text, start, None if length is None else start + length)
        except NoSuchKey:
            raise ObjectNotFound(key) from None

    def size(self, key: ObjectKey) -> int | None:
        return self._bucket.object_size(key.text)

    def list_objects(self, folder: ObjectKey) -> Iterator[StoredObject]:
        objects = (
            _stored_object(text, size) for text, size in self._bucket.list_objects(f"{folder}/")
        )
        # Amazon lists in the order of the keys' bytes; other stores of its protocol do not.
        yield from sorted(filter(None, objects), key=lambda stored: stored.key)

    def delete(self, key: ObjectKey) -> None:
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
    """An object of a listing, None for a foreign one whose name is no valid key."""
    try:
        return StoredObject(ObjectKey(text), size)
    except InvalidKey:
        return None
