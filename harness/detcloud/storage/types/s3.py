"""The checkpoint store in a bucket of Amazon S3, or of a store that speaks its protocol."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from detcloud.shared.bucket_place import BucketPlace
from detcloud.shared.s3 import Bucket, new_client
from detcloud.storage.bucket_store import BucketStore
from detcloud.storage.store import StorageError, translate_errors


def build_store(config: Mapping[str, Any]) -> BucketStore:
    """The store in the configuration's `bucket`, for checkpoints, with keys that are the
    configuration's, the agent's or the machine's, never those of the user's own environment.

    Raises StorageError for one that cannot be.
    """
    if not config.get("bucket"):
        raise StorageError(f"storage bucket is {config.get('bucket')!r}: a name is needed")
    with translate_errors("using the checkpoint storage"):
        place = BucketPlace.from_storage(config)
        return BucketStore(Bucket(place, new_client(place, for_checkpoints=True)))


def build_data_store(config: Mapping[str, Any]) -> BucketStore:
    """A store for data of the user's: without keys in the configuration it uses those, and the
    region, that the user's own environment has. Raises StorageError for one that cannot be.
    """
    with translate_errors("using the data layer"):
        return BucketStore(Bucket(BucketPlace.from_storage(config)))
