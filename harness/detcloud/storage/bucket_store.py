"""The checkpoint store in a bucket of any cloud service."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator
from pathlib import Path
from typing import Protocol

from detcloud.shared.bucket_errors import AccessDenied, NoSuchKey
from detcloud.shared.bucket_listing import list_below
from detcloud.shared.transfers import Digest
from detcloud.storage.store import KeyExists, KeyNotFound, checked_key, translate_errors


class StoreBucket(Protocol):
    """The requests of a store to a bucket, for example a `detcloud.shared.s3.Bucket`.

    `send` returns False if the key exists. If no object exists, `fetch` raises NoSuchKey and
    `object_size` returns None. `fetch` updates a given `digest` with the content, in the file's
    order. `list_objects` yields the keys that start with `prefix`, with the sizes in bytes.
    `delete` accepts missing objects. `place` names the bucket in messages. Several threads may use
    the bucket.
    """

    @property
    def place(self) -> object: ...

    def send(self, key: str, source: Path) -> bool: ...

    def fetch(self, key: str, destination: Path, digest: Digest | None = None) -> None: ...

    def object_size(self, key: str) -> int | None: ...

    def list_objects(self, prefix: str) -> Iterator[tuple[str, int]]: ...

    def delete(self, key: str) -> None: ...


class BucketStore:
    """A store in `bucket`, below the prefix of the bucket's place. Implements HashingStore.

    `list` returns the file with the key `prefix` itself only if no file is below `prefix`. If
    Google denies access to this key, the file counts as missing.
    """

    root = None

    def __init__(self, bucket: StoreBucket) -> None:
        self._bucket = bucket

    def put(self, key: str, source: Path) -> None:
        with translate_errors(f"storing {key!r} in {self._bucket.place}"):
            if not self._bucket.send(checked_key(key), source):
                raise KeyExists(f"{key} exists already in {self._bucket.place}")

    def get(self, key: str, destination: Path) -> None:
        self._fetch(key, destination, None)

    def get_hashed(self, key: str, destination: Path) -> str:
        digest = hashlib.sha256()
        self._fetch(key, destination, digest)
        return digest.hexdigest()

    def list(self, prefix: str) -> dict[str, int]:
        with translate_errors(f"listing {prefix!r} in {self._bucket.place}"):
            # A trial's credentials allow lists only below its folders, so the prefix ends with a
            # slash.
            below = dict(sorted(list_below(self._bucket, f"{checked_key(prefix)}/")))
            if below:
                return below
            try:
                size = self._bucket.object_size(prefix)
            except AccessDenied:
                # A trial's credentials deny access to the folder's own name.
                return {}
            return {} if size is None else {prefix: size}

    def delete(self, key: str) -> None:
        with translate_errors(f"deleting {key!r} from {self._bucket.place}"):
            self._bucket.delete(checked_key(key))

    def _fetch(self, key: str, destination: Path, digest: Digest | None) -> None:
        with translate_errors(f"reading {key!r} from {self._bucket.place}"):
            try:
                self._bucket.fetch(checked_key(key), destination, digest)
            except NoSuchKey as error:
                raise KeyNotFound(str(error)) from None
