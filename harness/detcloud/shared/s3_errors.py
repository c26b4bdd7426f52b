"""The errors of requests to S3: their codes and kinds, and remedies for users.

Botocore takes 0.2 s to import, so the first client imports it.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from detcloud.shared.bucket_errors import (
    BUSY_STATUSES,
    EXPIRED,
    NO_ROOM,
    AccessDenied,
    BucketError,
    NoSuchBucket,
    NoSuchKey,
    StoreBusy,
    UploadLost,
    WriteConflict,
)
from detcloud.shared.bucket_place import BucketPlace
from detcloud.shared.connection_failures import no_answer_remedy

AMAZON = "https://s3.amazonaws.com"
FOREIGN = "S3's protocol requires; check the endpoint_url, and proxies before the store"
"""The end of a message about an answer that lacks a part."""

# The remedies for users, by the error's code in S3's answer or by botocore's name.
_REMEDIES = {
    "403": "the credentials do not allow that in this bucket",
    "AccessDenied": "the credentials do not allow that in this bucket",
    "ExpiredToken": EXPIRED,
    "TokenRefreshRequired": EXPIRED,
    "InvalidAccessKeyId": "check the access key",
    "SignatureDoesNotMatch": "check the secret key",
    "NoCredentialsError": "set access_key and secret_key, or set AWS_ACCESS_KEY_ID and"
    " AWS_SECRET_ACCESS_KEY in the environment",
    # The codes of MinIO and Ceph; Amazon's buckets are never full.
    "XMinioStorageFull": NO_ROOM,
    "QuotaExceeded": NO_ROOM,
}
# Other remedies for checkpoint stores, which ignore the environment of the trial's code.
_CHECKPOINT_REMEDIES = {
    "NoCredentialsError": "set access_key and secret_key in checkpoint_storage: environment "
    "variables are used by your own code only",
}

# An answer to a request for an object's properties has a status only.
_DENIALS = ("AccessDenied", "403")
_NO_KEY = ("NoSuchKey", "NoSuchVersion", "404")
# The statuses that refuse an unknown header or parameter.
_REFUSALS = (400, 405, 501)
# The error codes with these statuses that are about the content or the credentials.
_OTHER_REASONS = (
    "BadDigest",
    "ExpiredToken",
    "InvalidToken",
    "TokenRefreshRequired",
    "RequestTimeout",
    "IncompleteBody",
    "EntityTooLarge",
    "EntityTooSmall",
    "InvalidPart",
    "InvalidPartOrder",
    "InvalidBucketName",
)


@contextmanager
def translate_errors(place: BucketPlace, key: str) -> Iterator[None]:
    """Translate botocore's errors in the block into bucket errors with messages.

    Raise NoSuchBucket, NoSuchKey for a missing object, UploadLost for a missing upload,
    AccessDenied, WriteConflict as `is_conflict` says, StoreBusy for status 429 or 503, or
    BucketError otherwise: also for missing credentials and a broken connection. The cause is
    botocore's error, except for an answer that is no XML. Errors of other libraries and OSErrors
    are passed on. `key` is only used in messages. Nothing is repeated.
    """
    from botocore.exceptions import BotoCoreError
    from botocore.parsers import ResponseParserError

    try:
        yield
    except (client_error(), BotoCoreError) as error:
        raise _bucket_error(place, key, error) from error
    except ResponseParserError:
        # The error's text contains the whole answer.
        text = f"{key!r:.200} in {place}: the store's answer is no XML, which {FOREIGN}"
        raise BucketError(text) from None


def _bucket_error(place: BucketPlace, key: str, error: Any) -> OSError:
    code = error_code(error)
    if code == "NoSuchBucket":
        return NoSuchBucket(f"there is no bucket {place.name}")
    if code in _NO_KEY and http_status(error) == 404:
        return NoSuchKey(f"there is nothing under {place.key_prefix}{key} in {place.name}")
    remedy = remedy_of(error, url=place.endpoint_url or AMAZON)
    kind = BucketError
    if is_conflict(error):
        kind = WriteConflict
    elif code in _DENIALS:
        kind = AccessDenied
    elif code == "NoSuchUpload":
        kind = UploadLost
    elif http_status(error) in BUSY_STATUSES:
        kind = StoreBusy
    return kind(f"{key!r:.200} in {place}: {error}{remedy and f'; {remedy}'}")


def remedy_of(error: Any, *, for_checkpoints: bool = False, url: str = AMAZON) -> str:
    """Return the remedy that a message suggests to users for an error. Return "" without a remedy.

    The remedy is a clause without a final period. Broken connections, denied access, invalid or
    missing keys and full stores have remedies. `error` is an error of botocore; any other object
    gives "". `for_checkpoints` changes the remedy for missing keys, because environment variables
    have no effect on a trial's checkpoints. `url` is the address of the store, which decides
    whether a broken connection used a proxy.
    """
    if isinstance(error, _no_answer_errors()):
        return no_answer_remedy(url, error)
    remedies = {**_REMEDIES, **(_CHECKPOINT_REMEDIES if for_checkpoints else {})}
    return remedies.get(error_code(error), "")


def client_error() -> Any:
    """Import and return botocore's class of errors that a store has answered."""
    from botocore.exceptions import ClientError

    return ClientError


def transfer_errors() -> Any:
    """Import and return the tuple of botocore's errors for an answer's body that breaks off.

    These are HTTPClientError, which includes broken connections, and IncompleteReadError.
    """
    from botocore.exceptions import HTTPClientError, IncompleteReadError

    return (HTTPClientError, IncompleteReadError)


def error_code(error: Any) -> str:
    """Return the error code in S3's answer, or the name of the error's class without a code."""
    answered = getattr(error, "response", {}) or {}
    return str(answered.get("Error", {}).get("Code") or type(error).__name__)


def http_status(error: Any) -> int:
    """Return the HTTP status of the answer in an error. Return 0 for an error without an answer."""
    answered = getattr(error, "response", {}) or {}
    return int(answered.get("ResponseMetadata", {}).get("HTTPStatusCode", 0))


def is_conflict(error: Any) -> bool:
    """Whether the error says that another writer of the key was faster, or may have been.

    True for the codes PreconditionFailed, ConditionalRequestConflict and OperationAborted. A failed
    condition of a read has such a code, too.
    """
    conflicts = ("PreconditionFailed", "ConditionalRequestConflict", "OperationAborted")
    return error_code(error) in conflicts


def may_be_refusal(error: Any) -> bool:
    """Whether an error may mean that the store does not support a feature of the request.

    True for status 400, 405 or 501, unless the code names the content or the credentials. True for
    a wrong signature as well, because a proxy may have removed a signed header. False for None.
    """
    if http_status(error) in _REFUSALS:
        return error_code(error) not in _OTHER_REASONS
    return error_code(error) == "SignatureDoesNotMatch"


def _no_answer_errors() -> Any:
    from botocore.exceptions import ConnectionError as BrokenConnection
    from botocore.exceptions import HTTPClientError

    return (BrokenConnection, HTTPClientError)
