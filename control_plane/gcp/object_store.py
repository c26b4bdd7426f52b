"""The ObjectStore in a bucket of Google Cloud Storage, for a cluster in the cloud."""

from collections.abc import Callable

from control_plane.objects.bucket_store import BucketObjectStore
from detcloud.shared.gcs import GcsBucket


class GcsObjectStore(BucketObjectStore):
    """An ObjectStore whose bucket is a `detcloud.shared.gcs.GcsBucket`."""


def open_object_store(bucket: str, prefix: str, now_ms: Callable[[], int]) -> GcsObjectStore:
    """Open the store below `prefix` of a bucket, with the environment's credentials.

    Google signs URLs for a service account, so this process needs no private key. `now_ms` is the
    clock in epoch ms. Raises OSError if the client library or the credentials are missing.
    """
    return GcsObjectStore(GcsBucket(bucket, prefix), now_ms)
