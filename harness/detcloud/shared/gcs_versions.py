"""The versions of objects in a bucket of Google Cloud Storage that keeps versions."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from detcloud.shared.bucket_errors import NoSuchBucket
from detcloud.shared.gcs_errors import NO_BUCKET, translate_errors
from detcloud.shared.gcs_limits import GcsLimits
from detcloud.shared.gcs_reading import SECONDS_MAX


class GcsVersions:
    """The versions of a bucket's objects. Every method raises bucket errors.

    A version is a generation of an object, as text. `client` and `bucket` are objects of Google's
    client.
    """

    def __init__(
        self, client: Any, bucket: Any, key_prefix: str, place: str, limits: GcsLimits
    ) -> None:
        self._client = client
        self._bucket = bucket
        self._key_prefix = key_prefix
        self._place = place
        self._limits = limits

    def list_versions(self, prefix: str) -> Iterator[tuple[str, str]]:
        """Yield the key and the version of each version below a prefix, the live versions included.

        Keys are relative to the bucket's prefix. Pages are requested during the iteration. Raise
        NoSuchBucket without the bucket.
        """
        from google.api_core.exceptions import NotFound

        with translate_errors(self._bucket.name, self._place, prefix):
            found = self._client.list_blobs(
                self._bucket,
                prefix=self._key_prefix + prefix,
                # The client would send "True", which compatible servers ignore.
                versions="true",
                fields="items(name,generation),nextPageToken",
                timeout=SECONDS_MAX,
            )
            try:
                for blob in found:
                    yield blob.name.removeprefix(self._key_prefix), str(blob.generation)
            except NotFound:
                raise NoSuchBucket(f"there is no bucket {self._bucket.name}") from None

    def delete_version(self, key: str, version: str) -> None:
        """Delete a version for good. Do nothing if the version does not exist.

        A failed request is repeated for as long as by `GcsBucket.delete`.
        """
        from google.api_core.exceptions import NotFound
        from google.cloud.storage.retry import DEFAULT_RETRY

        retry = DEFAULT_RETRY.with_timeout(self._limits.repeated_seconds_max)
        blob = self._bucket.blob(self._key_prefix + key, generation=int(version))
        with translate_errors(self._bucket.name, self._place, key):
            try:
                blob.delete(timeout=SECONDS_MAX, retry=retry)
            except NotFound as error:
                if NO_BUCKET in str(error):
                    raise
