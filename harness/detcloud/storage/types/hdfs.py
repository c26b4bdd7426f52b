"""The checkpoint store in a folder of HDFS."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from detcloud.shared.webhdfs import HdfsFolder
from detcloud.storage.bucket_store import BucketStore
from detcloud.storage.store import StorageError, translate_errors


def build_store(config: Mapping[str, Any]) -> BucketStore:
    """Return the store in the folder `hdfs_path` of the configuration, at `hdfs_url`.

    Requests are made as `user`; no request is sent yet. Raises StorageError if `hdfs_path` or
    `hdfs_url` is missing, or if `hdfs_url` names no namenode.
    """
    for name in ("hdfs_url", "hdfs_path"):
        if not config.get(name):
            raise StorageError(f"storage {name} is {config.get(name)!r}: a value is needed")
    with translate_errors("using the checkpoint storage"):
        return BucketStore(HdfsFolder.from_storage(config))
