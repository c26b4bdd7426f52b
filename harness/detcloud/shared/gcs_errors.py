"""The translation of Google Cloud Storage's errors into bucket errors with remedies for users.

Google's packages are imported at the first use, as in `detcloud.shared.gcs`.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from detcloud.shared.bucket_errors import (
    BUSY_STATUSES,
    EXPIRED,
    AccessDenied,
    BucketError,
    NoSuchBucket,
    StoreBusy,
)
from detcloud.shared.connection_failures import no_answer_remedy

ENDPOINT = "https://storage.googleapis.com"
# Google's words for a missing bucket, with the same status as for a missing object.
NO_BUCKET = "bucket does not exist"
_NO_CREDENTIALS = (
    "set GOOGLE_APPLICATION_CREDENTIALS to the path of a key, or use a service account"
)


@contextmanager
def translate_errors(bucket: str, place: str, key: str) -> Iterator[None]:
    """Translate errors of Google's packages in the block into bucket errors with messages.

    An answer with an error status becomes NoSuchBucket, AccessDenied, StoreBusy or BucketError, as
    `bucket_error` says, also as the last failure of repeats. Missing or expired credentials, broken
    connections and damaged content become BucketError. A missing object becomes BucketError, never
    NoSuchKey. The cause is the original error. Other errors are passed on. Nothing is repeated.
    `place` is the bucket's address for messages.
    """
    from google.api_core.exceptions import GoogleAPICallError, RetryError
    from google.auth.exceptions import DefaultCredentialsError, GoogleAuthError, TransportError
    from google.cloud.storage.exceptions import DataCorruption, InvalidResponse
    from requests import RequestException

    try:
        yield
    except DefaultCredentialsError as error:
        text = f"{place} cannot be used: {error}; {_NO_CREDENTIALS}"
        raise BucketError(text) from error
    except GoogleAPICallError as error:
        raise bucket_error(bucket, place, key, error.code, str(error.message)) from error
    except RetryError as error:
        # The cause is the error of the last attempt.
        last = error.cause
        text = str(getattr(last, "message", last))
        if isinstance(last, RequestException | ConnectionError):
            remedy = no_answer_remedy(ENDPOINT, text)
            raise BucketError(f"{key!r:.200} in {place}: {text}; {remedy}") from error
        raise bucket_error(bucket, place, key, getattr(last, "code", None), text) from error
    except InvalidResponse as error:
        raise bucket_error(bucket, place, key, error.response.status_code, str(error)) from error
    except RequestException as error:
        remedy = no_answer_remedy(ENDPOINT, error)
        raise BucketError(f"{key!r:.200} in {place}: {error}; {remedy}") from error
    except GoogleAuthError as error:
        is_lost = isinstance(error, TransportError)
        remedy = no_answer_remedy(ENDPOINT, error) if is_lost else EXPIRED
        raise BucketError(f"{key!r:.200} in {place}: {error}; {remedy}") from error
    except DataCorruption as error:
        raise BucketError(f"{key!r:.200} in {place}: {error}") from error


def bucket_error(bucket: str, place: str, key: str, status: int | None, text: str) -> OSError:
    """Return the error for an answer with this HTTP status, for the caller to raise.

    Return NoSuchBucket for 404 if `text` contains NO_BUCKET, AccessDenied for 403, and StoreBusy
    for 429 and 503. Return BucketError otherwise, also for a missing object or a status of None.
    `text` is the text of the answer.
    """
    if status == 404 and NO_BUCKET in text:
        return NoSuchBucket(f"there is no bucket {bucket}")
    message = f"{key!r:.200} in {place}: {status} {text}"
    if status == 403:
        return AccessDenied(f"{message}; the credentials do not allow that in this bucket")
    if status == 401:
        return BucketError(f"{message}; {EXPIRED}")
    return StoreBusy(message) if status in BUSY_STATUSES else BucketError(message)


def is_broken_connection(error: object) -> bool:
    """Whether a request failed because of the connection or a timeout, so that a retry may help.

    `error` is an error of `requests`. False for any other object, also a translated error.
    """
    from requests import ConnectionError as BrokenConnection
    from requests import Timeout

    return isinstance(error, BrokenConnection | Timeout)
