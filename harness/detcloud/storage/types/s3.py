"""The checkpoint store in a bucket of Amazon S3, or of another store with S3's protocol."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from detcloud.shared.bucket_place import BucketPlace
from detcloud.shared.s3 import Bucket
from detcloud.shared.s3_client import new_client
from detcloud.storage.bucket_store import BucketStore
from detcloud.storage.store import StorageError, translate_errors


def build_store(config: Mapping[str, Any]) -> BucketStore:
    """Return the store in the bucket `bucket` of the configuration, for checkpoints.

    The access keys are those of the configuration, the agent or the machine, never those of the
    user's environment. Raises StorageError if the configuration has no `bucket`, or if no client
    can be created. The bucket itself is not requested.
    """
    if not config.get("bucket"):
        raise StorageError(f"storage bucket is {config.get('bucket')!r}: a name is needed")
    with translate_errors("using the checkpoint storage"):
        place = BucketPlace.from_storage(config)
        return BucketStore(Bucket(place, new_client(place, for_checkpoints=True)))


def build_data_store(config: Mapping[str, Any]) -> BucketStore:
    """Return a store for the user's data in the bucket `bucket` of the configuration.

    Without access keys in the configuration, use the access keys and the region of the user's
    environment. Raises KeyError if the configuration has no `bucket`, and StorageError if no client
    can be created.
    """
    with translate_errors("using the data layer"):
        return BucketStore(Bucket(BucketPlace.from_storage(config)))
