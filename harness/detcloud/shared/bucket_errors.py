"""The errors of requests to a bucket, whichever store it is in."""


class BucketError(OSError):
    """The bucket cannot be used, or refused a request; the message is for users."""


class NoSuchBucket(FileNotFoundError, BucketError):
    """There is no such bucket."""


class AccessDenied(BucketError):
    """The credentials may not do that with the key."""


class WriteConflict(BucketError):
    """Somebody else wrote or deleted the key meanwhile; the whole request may be repeated."""


class NoSuchKey(FileNotFoundError):
    """There is nothing under the key."""
