"""The certificates that verify Google's signatures on identity tokens."""

import json
import re
import threading
import time
from collections.abc import Callable

import urllib3

CERTIFICATES_URL = "https://www.googleapis.com/oauth2/v1/certs"
ANSWER_SECONDS_MAX = 5.0
ANSWER_BYTES_MAX = 64 * 1024
# The validity of certificates without a max-age, and the longest validity with a max-age.
FRESH_SECONDS = 300
FRESH_SECONDS_MAX = 24 * 3600
# The shortest time between two requests to Google because of tokens with an unknown key.
ASK_SECONDS_MIN = 30

_MAX_AGE = re.compile(r"max-age=(\d{1,9})")


class GoogleCertificates:
    """The certificates at a URL, cached as long as the response allows. Several threads may share
    an object.
    """

    def __init__(
        self, url: str = CERTIFICATES_URL, now: Callable[[], float] = time.monotonic
    ) -> None:
        """Fetch nothing yet. `now` is a monotonic clock in seconds."""
        self._url = url
        self._now = now
        # The environment's proxy is not used, because the response decides which instances are
        # admitted.
        self._pool = urllib3.PoolManager(retries=False, timeout=ANSWER_SECONDS_MAX)
        self._lock = threading.Lock()
        self._certificates: dict[str, str] = {}
        self._fresh_until = self._asked_at = float("-inf")
        # The error of the last request; "" if the request succeeded.
        self._problem = ""

    def find(self, key_id: str) -> str | None:
        """Return the certificate of a key as PEM text, or None for a key that is not Google's.

        A certificate in the cache is returned until the cache expires. Fetch the certificates again
        if they have expired. For an unknown key, fetch at most every ASK_SECONDS_MIN. Raises
        OSError if the fetch fails. Within ASK_SECONDS_MIN after a failure, a call that would need a
        fetch, or has an unknown key, raises the same error without a new request.
        """
        with self._lock:
            is_fresh = self._now() < self._fresh_until
            may_be_new = self._now() >= self._asked_at + ASK_SECONDS_MIN
            if is_fresh and key_id in self._certificates:
                return self._certificates[key_id]
            if self._problem and not may_be_new:
                # Otherwise all waiting threads would send a request, each after the other.
                raise OSError(self._problem)
            if may_be_new or not is_fresh:
                self._fetch()
            return self._certificates.get(key_id)

    def _fetch(self) -> None:
        """Fetch the certificates and note the time, and the error if the fetch fails.

        Raises OSError.
        """
        self._asked_at = self._now()
        try:
            self._read()
            self._problem = ""
        except OSError as error:
            self._problem = str(error)
            raise

    def _read(self) -> None:
        """Replace the cached certificates and the time of their expiry by Google's response.

        Raises OSError if the request fails or the response is not a JSON object.
        """
        try:
            answer = self._pool.request("GET", self._url, redirect=False, preload_content=False)
            with answer:
                content = answer.read(ANSWER_BYTES_MAX)
            if answer.status != 200:
                raise OSError(f"cannot read Google's certificates: status {answer.status}")
            certificates = dict(json.loads(content))
        except (urllib3.exceptions.HTTPError, ValueError, TypeError) as error:
            raise OSError(f"cannot read Google's certificates: {error}") from None
        self._certificates = {str(key): str(text) for key, text in certificates.items()}
        match = _MAX_AGE.search(answer.headers.get("Cache-Control", ""))
        fresh_seconds = min(int(match[1]), FRESH_SECONDS_MAX) if match else FRESH_SECONDS
        self._fresh_until = self._asked_at + fresh_seconds
