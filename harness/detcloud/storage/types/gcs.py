"""The checkpoint store in a bucket of Google Cloud Storage."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from detcloud.shared.gcs import GcsBucket, trial_credentials
from detcloud.storage.bucket_store import BucketStore
from detcloud.storage.store import StorageError, translate_errors


def build_store(config: Mapping[str, Any]) -> BucketStore:
    """The store in the configuration's `bucket`, below its `prefix`, for checkpoints: with the
    tokens of the trial's agent where it offers some, or else the application's default credentials.

    Raises StorageError for one that cannot be.
    """
    if not config.get("bucket"):
        raise StorageError(f"storage bucket is {config.get('bucket')!r}: a name is needed")
    with translate_errors("using the checkpoint storage"):
        return BucketStore(_open_bucket(config, trial_credentials()))


def build_data_store(config: Mapping[str, Any]) -> BucketStore:
    """A store for data of the user's, with the application's default credentials. Raises
    StorageError for one that cannot be.
    """
    with translate_errors("using the data layer"):
        return BucketStore(_open_bucket(config, None))


def _open_bucket(config: Mapping[str, Any], credentials: Any) -> GcsBucket:
    return GcsBucket(str(config["bucket"]), str(config.get("prefix") or ""), credentials)
