"""Objects in a bucket of Amazon S3: the store of a cluster in the cloud.

Its signed URLs lead to the bucket itself, so that neither model code nor checkpoints pass through
the functions, whose requests and answers may have no more than a few megabytes.
"""

from collections.abc import Callable, Iterable, Iterator

from control_plane.objects.store import (
    Key,
    KeyInvalid,
    Listed,
    Method,
    ObjectMissing,
    SignedUrl,
)
from detcloud.s3 import Bucket, KeyMissing

SIGNED_SECONDS_MAX = 15 * 60


class S3Store:
    """An ObjectStore below the prefix of the bucket's place; `now_ms` is the clock of signatures.

    Its methods raise OSError for whatever repeats did not mend.
    """

    def __init__(self, bucket: Bucket, now_ms: Callable[[], int]) -> None:
        self._bucket = bucket
        self._now_ms = now_ms

    def put(self, key: Key, content: bytes | Iterable[bytes], *, if_absent: bool = False) -> bool:
        blocks = (content,) if isinstance(content, bytes) else content
        return self._bucket.write(key.text, blocks, if_absent=if_absent)

    def get(self, key: Key, *, start: int = 0, length: int | None = None) -> Iterator[bytes]:
        if length == 0:
            if self.size(key) is None:
                raise ObjectMissing(key)
            return iter(())
        try:
            return self._bucket.read(key.text, start, None if length is None else start + length)
        except KeyMissing:
            raise ObjectMissing(key) from None

    def size(self, key: Key) -> int | None:
        return self._bucket.size(key.text)

    def list(self, folder: Key) -> Iterator[Listed]:
        found = (_listed(text, size) for text, size in self._bucket.listed(f"{folder}/"))
        # Amazon keeps the order of the keys' bytes, but others who speak its protocol do not.
        yield from sorted(filter(None, found), key=lambda listed: listed.key)

    def delete(self, key: Key) -> None:
        self._bucket.delete(key.text)

    def signed_url(
        self,
        method: Method,
        key: Key,
        *,
        size: int | None = None,
        sha256: str | None = None,
        expires_ms: int,
    ) -> SignedUrl:
        now_ms = self._now_ms()
        seconds = min(SIGNED_SECONDS_MAX, (expires_ms - now_ms) // 1000)
        if seconds < 1:
            raise ValueError(f"a signature of {key} must be good for a second at least")
        ends_ms = now_ms + seconds * 1000
        if method == "GET":
            return SignedUrl(method, self._bucket.signed_get(key.text, seconds), {}, ends_ms)
        if size is None or sha256 is None:
            raise ValueError(f"a signed PUT of {key} needs the size and the SHA-256 of its content")
        url, headers = self._bucket.signed_put(key.text, seconds, size, sha256)
        return SignedUrl(method, url, headers, ends_ms)


def _listed(text: str, size: int) -> Listed | None:
    """None for what somebody else put there under a name that no key has."""
    try:
        return Listed(Key(text), size)
    except KeyInvalid:
        return None
