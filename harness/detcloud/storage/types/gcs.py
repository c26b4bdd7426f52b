"""The store in a bucket of Google Cloud Storage.

Requests are the client library's, which repeats what may pass. It takes half a second to import,
so that a trial without such a bucket does not load it.
"""

from __future__ import annotations

import secrets
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from detcloud.storage.store import KeyExists, KeyNotFound, StorageError, checked_key

_TOKEN = "detcloud-put"
_NOTHING_THERE = 0
_SECONDS_MAX = 60
_NO_PACKAGE = (
    "{place} cannot be used without google-cloud-storage; install it with pip install "
    "'detcloud[gcs]'"
)
_NO_CREDENTIALS = "give GOOGLE_APPLICATION_CREDENTIALS the path of a key, or use a service account"


def build_store(config: Mapping[str, Any]) -> GcsStore:
    """The store in the configuration's `bucket`, below its `prefix`, with the application's default
    credentials. Raises StorageError for one that cannot be.
    """
    if not config.get("bucket"):
        raise StorageError(f"storage bucket is {config.get('bucket')!r}: a name is needed")
    return GcsStore(str(config["bucket"]), str(config.get("prefix") or ""))


class GcsStore:
    """A store whose keys lie below a prefix of a bucket."""

    root = None

    def __init__(self, bucket: str, prefix: str = "") -> None:
        self._prefix = f"{prefix.strip('/')}/" if prefix.strip("/") else ""
        self._place = f"gs://{bucket}/{self._prefix}".rstrip("/")
        try:
            from google.cloud.storage import Client
        except ImportError:
            raise StorageError(_NO_PACKAGE.format(place=self._place)) from None
        with self._translate_errors("using it"):
            self._client = Client(project="-")
        self._bucket = self._client.bucket(bucket)

    def put(self, key: str, source: Path) -> None:
        from google.api_core.exceptions import PreconditionFailed

        blob = self._blob(key)
        token = secrets.token_hex(16)
        blob.metadata = {_TOKEN: token}
        with self._translate_errors(f"storing {key!r}"):
            try:
                blob.upload_from_filename(
                    str(source), if_generation_match=_NOTHING_THERE, timeout=_SECONDS_MAX
                )
            except PreconditionFailed:
                # A repeat of an upload whose answer was lost finds its own object in its way.
                stored = self._bucket.get_blob(blob.name, timeout=_SECONDS_MAX)
                if stored is None or (stored.metadata or {}).get(_TOKEN) != token:
                    raise KeyExists(f"{key} exists already in {self._place}") from None

    def get(self, key: str, destination: Path) -> None:
        from google.api_core.exceptions import NotFound

        blob = self._blob(key)
        with self._translate_errors(f"reading {key!r}"):
            try:
                blob.download_to_filename(str(destination), timeout=_SECONDS_MAX)
            except NotFound:
                raise KeyNotFound(f"there is nothing under {key} in {self._place}") from None

    def list(self, prefix: str) -> dict[str, int]:
        name = self._prefix + checked_key(prefix)
        with self._translate_errors(f"listing {prefix!r}"):
            found = self._client.list_blobs(self._bucket, prefix=name, timeout=_SECONDS_MAX)
            return {
                blob.name.removeprefix(self._prefix): int(blob.size)
                for blob in found
                if blob.name == name or blob.name.startswith(f"{name}/")
            }

    def delete(self, key: str) -> None:
        from google.api_core.exceptions import NotFound

        blob = self._blob(key)
        with self._translate_errors(f"deleting {key!r}"):
            try:
                blob.delete(timeout=_SECONDS_MAX)
            except NotFound:
                return

    def _blob(self, key: str) -> Any:
        return self._bucket.blob(self._prefix + checked_key(key))

    @contextmanager
    def _translate_errors(self, action: str) -> Iterator[None]:
        from google.api_core.exceptions import GoogleAPIError
        from google.auth.exceptions import DefaultCredentialsError, GoogleAuthError

        try:
            yield
        except DefaultCredentialsError as error:
            text = f"{self._place}: {action} failed: {error}; {_NO_CREDENTIALS}"
            raise StorageError(text) from error
        except (GoogleAPIError, GoogleAuthError, OSError) as error:
            raise StorageError(f"{self._place}: {action} failed: {error}") from error
