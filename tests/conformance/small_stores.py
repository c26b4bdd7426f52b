"""The stores of trials with small parts, so that small files have several parts."""

from __future__ import annotations

from collections.abc import Mapping

from detcloud.shared.azure import AzureContainer
from detcloud.shared.azure_place import AzurePlace
from detcloud.shared.bucket_place import BucketPlace
from detcloud.shared.gcs import GcsBucket
from detcloud.shared.gcs_limits import GcsLimits
from detcloud.shared.s3 import Bucket
from detcloud.shared.s3_client import new_client
from detcloud.shared.s3_limits import S3Limits
from detcloud.shared.webhdfs import HdfsFolder
from detcloud.shared.webhdfs_limits import HdfsLimits
from detcloud.storage import CheckpointStore, build_store
from detcloud.storage.bucket_store import BucketStore

MIB = 1 << 20
# S3's minimum is 5 MiB.
_S3 = S3Limits(sent_part_bytes=5 * MIB, fetched_part_bytes=2 * MIB)


def build_small_store(storage: Mapping[str, str]) -> CheckpointStore:
    """Return the store of a `storage` object, with parts of 2 MiB, but 5 MiB for uploads to S3.

    HDFS uses the parts of a user's upload, which the fixture `set_upload_part_bytes` sets.
    """
    match storage["type"]:
        case "s3":
            place = BucketPlace.from_storage(storage)
            client = new_client(place, for_checkpoints=True)
            return BucketStore(Bucket(place, client, limits=_S3))
        case "gcs":
            limits, prefix = GcsLimits(part_bytes=2 * MIB), storage.get("prefix", "")
            return BucketStore(GcsBucket(storage["bucket"], prefix, limits=limits))
        case "azure":
            place_in_azure = AzurePlace.from_storage(storage)
            return BucketStore(AzureContainer(place_in_azure, part_bytes=2 * MIB))
        case "hdfs":
            small = HdfsLimits(fetched_part_bytes=2 * MIB)
            return BucketStore(HdfsFolder.from_storage(storage, limits=small))
    return build_store(storage)
