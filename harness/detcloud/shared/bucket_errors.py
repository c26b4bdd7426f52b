"""The errors of requests to a bucket, common to all services."""

BUSY_STATUSES = (429, 503)
"""The HTTP statuses by which stores request fewer requests. S3's SlowDown has status 503."""

NO_ANSWER = "the store does not answer: check the network, and whether the store runs"
EXPIRED = "the credentials have expired or are not valid: renew them"
NO_ROOM = "make room in the store"
"""The remedies for users that all services share."""


class BucketError(OSError):
    """The bucket cannot be used, or the store refused a request. The message is for users."""


class NoSuchBucket(FileNotFoundError, BucketError):
    """The bucket does not exist."""


class AccessDenied(BucketError):
    """The credentials do not allow the request on the key."""


class StoreBusy(BucketError):
    """The store still requests fewer requests after repeats with growing pauses."""


class WriteConflict(BucketError):
    """Another client wrote or deleted the key meanwhile. The whole request may be repeated."""


class UploadLost(BucketError):
    """The store does not know an upload in parts, which was aborted or lost with a bucket."""


class PartsConflict(BucketError):
    """A request of an upload in parts does not fit the stored content.

    Parts are missing, or the file has another size or content.
    """


class NoSuchKey(FileNotFoundError):
    """Nothing is stored under the key."""
