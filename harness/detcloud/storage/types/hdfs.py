"""The checkpoint store in a folder of HDFS."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from detcloud.shared.webhdfs import HdfsFolder
from detcloud.storage.bucket_store import BucketStore
from detcloud.storage.store import StorageError, translate_errors


def build_store(config: Mapping[str, Any]) -> BucketStore:
    """The store in the configuration's `hdfs_path`, as its `user`. Raises StorageError for one that
    cannot be.
    """
    for name in ("hdfs_url", "hdfs_path"):
        if not config.get(name):
            raise StorageError(f"storage {name} is {config.get(name)!r}: a value is needed")
    with translate_errors("using the checkpoint storage"):
        return BucketStore(HdfsFolder.from_storage(config))
