"""The checkpoint store in a bucket of Google Cloud Storage."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from detcloud.shared.gcs import GcsBucket
from detcloud.shared.google_packages import offer_google_packages
from detcloud.storage.bucket_store import BucketStore
from detcloud.storage.store import StorageError, translate_errors


def build_store(config: Mapping[str, Any]) -> BucketStore:
    """Return the store in the bucket `bucket` of the configuration, below `prefix`, for
    checkpoints.

    The store uses tokens of the trial's agent if the agent offers any, or else the application's
    default credentials. Raises StorageError if the configuration has no `bucket`, or if no client
    can be created.
    """
    if not config.get("bucket"):
        raise StorageError(f"storage bucket is {config.get('bucket')!r}: a name is needed")
    with translate_errors("using the checkpoint storage"):
        return BucketStore(_open_bucket(config, _trial_credentials()))


def build_data_store(config: Mapping[str, Any]) -> BucketStore:
    """Return a store for the user's data in the bucket `bucket` of the configuration, below
    `prefix`.

    The store uses the application's default credentials. Raises KeyError if the configuration has
    no `bucket`, and StorageError if no client can be created.
    """
    with translate_errors("using the data layer"):
        return BucketStore(_open_bucket(config, None))


def _open_bucket(config: Mapping[str, Any], credentials: Any) -> GcsBucket:
    return GcsBucket(str(config["bucket"]), str(config.get("prefix") or ""), credentials)


def _trial_credentials() -> Any:
    """Return the credentials that a trial's agent offers. Return None if no agent offers any.

    Also return None without Google's packages; creating a bucket then raises an error.
    """
    offer_google_packages()
    try:
        from detcloud.shared.google_credentials import agent_credentials
    except ImportError:
        return None
    return agent_credentials()
