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
    """The store in the configuration's `bucket`, below its `prefix`, for checkpoints: with the
    tokens of the trial's agent where it offers some, or else the application's default credentials.

    Raises StorageError for one that cannot be.
    """
    return _build_store(config, for_checkpoints=True)


def build_data_store(config: Mapping[str, Any]) -> GcsStore:
    """A store for data of the user's, with the application's default credentials. Raises
    StorageError for one that cannot be.
    """
    return _build_store(config, for_checkpoints=False)


def _build_store(config: Mapping[str, Any], *, for_checkpoints: bool) -> GcsStore:
    if not config.get("bucket"):
        raise StorageError(f"storage bucket is {config.get('bucket')!r}: a name is needed")
    name, prefix = str(config["bucket"]), str(config.get("prefix") or "")
    return GcsStore(name, prefix, for_checkpoints=for_checkpoints)


class GcsStore:
    """A store whose keys lie below a prefix of a bucket."""

    root = None

    def __init__(self, bucket: str, prefix: str = "", *, for_checkpoints: bool = False) -> None:
        self._prefix = f"{prefix.strip('/')}/" if prefix.strip("/") else ""
        self._place = f"gs://{bucket}/{self._prefix}".rstrip("/")
        try:
            from google.cloud.storage import Client

            from detcloud.shared.google_credentials import agent_credentials
        except ImportError:
            raise StorageError(_NO_PACKAGE.format(place=self._place)) from None
        credentials = agent_credentials() if for_checkpoints else None
        with self._translate_errors("using it"):
            self._client = Client(project="-", credentials=credentials)
        self._bucket = self._client.bucket(bucket)

    def put(self, key: str, source: Path) -> None:
        from google.api_core.exceptions import Forbidden, PreconditionFailed

        blob = self._blob(key)
        token = secrets.token_hex(16)
        blob.metadata = {_TOKEN: token}
        with self._translate_errors(f"storing {key!r}"):
            try:
                blob.upload_from_filename(
                    str(source), if_generation_match=_NOTHING_THERE, timeout=_SECONDS_MAX
                )
            except (Forbidden, PreconditionFailed) as refused:
                # A repeat of an upload whose answer was lost finds its own object in its way, which
                # credentials that replace nothing may not even try to write.
                stored = self._bucket.get_blob(blob.name, timeout=_SECONDS_MAX)
                if stored is None and isinstance(refused, Forbidden):
                    raise
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
            # A trial's credentials list what is below its folders, and no names that begin alike.
            below = f"{name}/"
            found = list(self._client.list_blobs(self._bucket, prefix=below, timeout=_SECONDS_MAX))
            if not found:
                alone = self._bucket.get_blob(name, timeout=_SECONDS_MAX)
                found = [] if alone is None else [alone]
            return {blob.name.removeprefix(self._prefix): int(blob.size) for blob in found}

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
