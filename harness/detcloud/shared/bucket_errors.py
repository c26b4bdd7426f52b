"""The errors of requests to a bucket, common to all services."""

BUSY_STATUSES = (429, 503)
"""The HTTP statuses by which stores ask for fewer requests: S3's SlowDown is a 503."""


class BucketError(OSError):
    """The bucket cannot be used, or refused a request; the message is for users."""


class NoSuchBucket(FileNotFoundError, BucketError):
    """There is no such bucket."""


class AccessDenied(BucketError):
    """The credentials may not do that with the key."""


class StoreBusy(BucketError):
    """The store asks for fewer requests, also after repeats with pauses that grow."""


class WriteConflict(BucketError):
    """Somebody else wrote or deleted the key meanwhile; the whole request may be repeated."""


class NoSuchKey(FileNotFoundError):
    """There is nothing under the key."""
