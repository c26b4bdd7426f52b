"""The certificates by which Google's signatures on identity tokens are checked."""

import json
import re
import threading
import time
from collections.abc import Callable

import urllib3

CERTIFICATES_URL = "https://www.googleapis.com/oauth2/v1/certs"
ANSWER_SECONDS_MAX = 5.0
ANSWER_BYTES_MAX = 64 * 1024
# How long certificates are good that come without a time of their own, and those with a very long
# one.
FRESH_SECONDS = 300
FRESH_SECONDS_MAX = 24 * 3600
# Tokens of keys that nobody knows have Google asked no more often than this.
ASK_SECONDS_MIN = 30

_MAX_AGE = re.compile(r"max-age=(\d{1,9})")


class GoogleCertificates:
    """The certificates at a URL, kept as long as their answer allows; for many threads."""

    def __init__(
        self, url: str = CERTIFICATES_URL, now: Callable[[], float] = time.monotonic
    ) -> None:
        self._url = url
        self._now = now
        # No proxy of the environment's: what answers decides which instances are admitted.
        self._pool = urllib3.PoolManager(retries=False, timeout=ANSWER_SECONDS_MAX)
        self._lock = threading.Lock()
        self._certificates: dict[str, str] = {}
        self._fresh_until = self._asked_at = float("-inf")
        # Why the last answer was none, "" where it was one.
        self._problem = ""

    def find(self, key_id: str) -> str | None:
        """The certificate (PEM) of a key, None for one that is not Google's. Raises OSError."""
        with self._lock:
            is_fresh = self._now() < self._fresh_until
            may_be_new = self._now() >= self._asked_at + ASK_SECONDS_MIN
            if is_fresh and key_id in self._certificates:
                return self._certificates[key_id]
            if self._problem and not may_be_new:
                # Each who asked would wait for an answer, one after the other.
                raise OSError(self._problem)
            if may_be_new or not is_fresh:
                self._fetch()
            return self._certificates.get(key_id)

    def _fetch(self) -> None:
        self._asked_at = self._now()
        try:
            self._read()
            self._problem = ""
        except OSError as error:
            self._problem = str(error)
            raise

    def _read(self) -> None:
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
