"""The errors of requests to S3: what a store answered, and what users can do about it.

Botocore, which takes a fifth of a second, is imported with the first client.
"""

from __future__ import annotations

from typing import Any

from detcloud.shared.bucket_errors import EXPIRED, NO_ANSWER, NO_ROOM

# The remedy for users, by what S3 or botocore calls a failure.
_REMEDIES = {
    "403": "the credentials do not allow that in this bucket",
    "AccessDenied": "the credentials do not allow that in this bucket",
    "ExpiredToken": EXPIRED,
    "TokenRefreshRequired": EXPIRED,
    "InvalidAccessKeyId": "check the access key",
    "SignatureDoesNotMatch": "check the secret key",
    "NoCredentialsError": "set access_key and secret_key, or set AWS_ACCESS_KEY_ID and"
    " AWS_SECRET_ACCESS_KEY in the environment",
    # Of MinIO and Ceph; Amazon's buckets are never full.
    "XMinioStorageFull": NO_ROOM,
    "QuotaExceeded": NO_ROOM,
}
# The same where a trial's own environment does not count.
_CHECKPOINT_REMEDIES = {
    "NoCredentialsError": "set access_key and secret_key in checkpoint_storage: environment "
    "variables are used by your own code only",
}


def remedy_of(error: Any, *, for_checkpoints: bool = False) -> str:
    """The remedy for users of an error, "" where there is none; `for_checkpoints` of a trial, whose
    own environment does not count.
    """
    if isinstance(error, _no_answer_errors()):
        return NO_ANSWER
    remedies = {**_REMEDIES, **(_CHECKPOINT_REMEDIES if for_checkpoints else {})}
    return remedies.get(error_code(error), "")


def client_error() -> Any:
    """The class of the errors that a store answers."""
    from botocore.exceptions import ClientError

    return ClientError


def transfer_errors() -> Any:
    """The classes of errors of a body that breaks off."""
    from botocore.exceptions import HTTPClientError, IncompleteReadError

    return (HTTPClientError, IncompleteReadError)


def error_code(error: Any) -> str:
    """S3's code of an error that it answered, or else the name of botocore's error."""
    answered = getattr(error, "response", {}) or {}
    return str(answered.get("Error", {}).get("Code") or type(error).__name__)


def http_status(error: Any) -> int:
    """The status of an answer; 0 for an error that is none."""
    answered = getattr(error, "response", {}) or {}
    return int(answered.get("ResponseMetadata", {}).get("HTTPStatusCode", 0))


def is_conflict(error: Any) -> bool:
    """Whether another writer of the key was faster, or may be."""
    conflicts = ("PreconditionFailed", "ConditionalRequestConflict", "OperationAborted")
    return error_code(error) in conflicts


def _no_answer_errors() -> Any:
    from botocore.exceptions import ConnectionError as BrokenConnection
    from botocore.exceptions import HTTPClientError

    return (BrokenConnection, HTTPClientError)
