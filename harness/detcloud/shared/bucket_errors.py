"""The errors of requests to a bucket, common to all services."""

BUSY_STATUSES = (429, 503)
"""The HTTP statuses by which stores ask for fewer requests: S3's SlowDown is a 503."""

NO_ANSWER = "the store does not answer: check the network, and whether the store runs"
EXPIRED = "the credentials have expired or are not valid: renew them"
NO_ROOM = "make room in the store"
"""The remedies for users that are the same in all services."""


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
