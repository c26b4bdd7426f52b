"""The ObjectStore in a bucket of Google Cloud Storage, for a cluster in the cloud."""

from collections.abc import Callable

from control_plane.objects.bucket_store import BucketObjectStore
from detcloud.shared.gcs import GcsBucket


class GcsObjectStore(BucketObjectStore):
    """An ObjectStore in a `detcloud.shared.gcs.GcsBucket`."""


def open_object_store(bucket: str, prefix: str, now_ms: Callable[[], int]) -> GcsObjectStore:
    """Open the store below a bucket's prefix, with the environment's credentials. Raises OSError.

    URLs are signed without a key in this process: a service account has them signed by Google.
    """
    return GcsObjectStore(GcsBucket(bucket, prefix), now_ms)
