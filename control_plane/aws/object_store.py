"""The ObjectStore in a bucket of Amazon S3, for a cluster in the cloud."""

from control_plane.objects.bucket_store import BucketObjectStore


class S3ObjectStore(BucketObjectStore):
    """An ObjectStore whose bucket is a `detcloud.shared.s3.Bucket`."""
