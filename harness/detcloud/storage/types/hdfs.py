"""The checkpoint store in a folder of HDFS."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from detcloud.shared.webhdfs import HdfsFolder
from detcloud.storage.bucket_store import BucketStore
from detcloud.storage.store import StorageError, translate_errors


def build_store(config: Mapping[str, Any]) -> BucketStore:
    """Return the store in the folder `hdfs_path` of the configuration, at `hdfs_url`.

    Requests are made as `user`. Raises StorageError if a field is missing or the store cannot be
    used.
    """
    for name in ("hdfs_url", "hdfs_path"):
        if not config.get(name):
            raise StorageError(f"storage {name} is {config.get(name)!r}: a value is needed")
    with translate_errors("using the checkpoint storage"):
        return BucketStore(HdfsFolder.from_storage(config))
