"""The reading of objects of Google Cloud Storage, which continues after broken answers.

The reader sends its own requests instead of using Google's client, and yields the content of an
open answer in small blocks.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager
from typing import Any
from urllib.parse import quote

from detcloud.shared.bucket_errors import BucketError, NoSuchKey
from detcloud.shared.gcs_errors import (
    NO_BUCKET,
    bucket_error,
    is_broken_connection,
    translate_errors,
)
from detcloud.shared.http import backoff_seconds

ENDPOINT = "https://storage.googleapis.com"
ATTEMPTS_MAX = 6
SECONDS_MAX = 60
REPEATED = (408, 429, 500, 502, 503, 504)
"""The statuses of requests that may be repeated."""
WHOLE = 200
"""The status of an answer with the whole object, in contrast to a requested range."""

# The statuses that refuse an unknown header or parameter.
_REFUSALS = (400, 405, 501)


class ObjectReader:
    """A reader of the objects below the prefix of a bucket. Several threads may share the object.

    Requests are repeated up to ATTEMPTS_MAX attempts, with growing pauses, after broken connections
    and answers with a status of REPEATED. Then every method that sends a request raises the bucket
    errors of `GcsBucket` in place of the errors of Google's packages.
    """

    def __init__(
        self,
        bucket: str,
        key_prefix: str,
        place: str,
        block_bytes: int,
        session: Callable[[], Any],
        is_listed: Callable[[str], bool],
    ) -> None:
        """Store the arguments. Nothing is sent.

        Args:
            bucket: the name of the bucket.
            key_prefix: the beginning of all keys, with a final slash, or "".
            place: the bucket's address for messages.
            block_bytes: the largest number of bytes that the reader yields at a time.
            session: returns the HTTP session with authorization. Called for each request.
            is_listed: returns whether a listing contains the object of a key.
        """
        self._name = bucket
        self._key_prefix = key_prefix
        self._place = place
        self._block_bytes = block_bytes
        self._session = session
        self._is_listed = is_listed

    def open(self, key: str, start: int, end: int | None, generation: str | None = None) -> Any:
        """Request an object's content, and return the open answer.

        The range is from `start` to before `end`; None means the object's end. The content is not
        read yet. Return None if `start` is at or behind the end of the object. If a server refuses
        ranges or generations, repeat the request without, so the answer may have the whole object.

        The caller closes the answer. Raise NoSuchKey without the object, also after status 403 if a
        listing lacks the object. With a generation, raise BucketError if the answer has another
        generation, and NoSuchKey if the store has dropped the generation. Raise the error of
        `bucket_error` for any other error status.
        """
        answer = self._ask_object(key, start, end, generation)
        if answer.status_code in _REFUSALS and (start > 0 or end is not None):
            answer = self._ask_object(key, 0, None, generation)
        if answer.status_code in _REFUSALS and generation is not None:
            answer = self._ask_object(key, 0, None, None)
        if answer.status_code == 416:
            return None
        if answer.status_code >= 300:
            text = answer.text[:200]
            raise bucket_error(self._name, self._place, key, answer.status_code, text)
        if generation is not None and generation_of(answer) not in (None, generation):
            answer.close()
            raise BucketError(f"{key!r:.200} in {self._place} was replaced while it was read")
        return answer

    def _ask_object(self, key: str, start: int, end: int | None, generation: str | None) -> Any:
        """Request an object's content, and return the first answer that asks for no repeat.

        The statuses REPEATED and broken connections cause repeats, with growing pauses. The answer
        may have the status of an error. After ATTEMPTS_MAX attempts, return the last answer, or
        raise BucketError if the connection broke. Raise NoSuchKey without the object, also after
        status 403 if a listing lacks the object.
        """
        name = quote(self._key_prefix + key, safe="")
        base = os.environ.get("STORAGE_EMULATOR_HOST", ENDPOINT)
        url = f"{base}/download/storage/v1/b/{self._name}/o/{name}?alt=media"
        if generation is not None:
            url = f"{url}&generation={generation}"
        headers = {"Accept-Encoding": "identity"}
        if start > 0 or end is not None:
            headers["Range"] = f"bytes={start}-{'' if end is None else end - 1}"
        failures = 0
        while True:
            failures += 1
            try:
                with self._translate_errors(key):
                    answer = self._session().get(
                        url, headers=headers, stream=True, timeout=SECONDS_MAX
                    )
                    if answer.status_code >= 300:
                        # Reading an error to its end frees the connection for the next request.
                        _ = answer.content
            except BucketError as error:
                if failures >= ATTEMPTS_MAX or not is_broken_connection(error.__cause__):
                    raise
                time.sleep(backoff_seconds(failures))
                continue
            is_missing = answer.status_code == 404 and NO_BUCKET not in answer.text
            if is_missing or (answer.status_code == 403 and not self._is_listed(key)):
                raise NoSuchKey(f"there is nothing under {self._key_prefix}{key} in {self._place}")
            if failures >= ATTEMPTS_MAX or answer.status_code not in REPEATED:
                return answer
            time.sleep(backoff_seconds(failures))

    def blocks(self, key: str, start: int, end: int | None, answer: Any) -> Iterator[bytes]:
        """Yield an answer's bytes from `start` to before `end`. Yield nothing for None.

        The arguments are those of `open` with its result. `end` of None means the object's end. An
        answer with the whole object is cut. If the answer breaks off or ends too early, request the
        rest of the same generation, with pauses. Raise BucketError after ATTEMPTS_MAX failures in
        total, and at once if the answer has no Content-Length. Raise errors of `open` for the
        further requests. The answer is closed at the end, also if the iteration is given up.
        """
        failures = 0
        while answer is not None:
            generation = generation_of(answer)
            place = 0 if answer.status_code == WHOLE else start
            whole = place + int(self.header(key, answer, "Content-Length"))
            whole = whole if end is None else min(whole, end)
            problem: BucketError | None = None
            try:
                with self._translate_errors(key), answer:
                    for block in answer.iter_content(self._block_bytes):
                        wanted = block[max(0, start - place) : max(0, whole - place)]
                        place += len(block)
                        if wanted:
                            start += len(wanted)
                            yield wanted
                        if start >= whole:
                            break
            except BucketError as error:
                problem = error
            if start >= whole:
                return
            failures += 1
            if failures >= ATTEMPTS_MAX:
                text = f"{key!r:.200} in {self._place}: the answer ends too early"
                raise problem or BucketError(text)
            time.sleep(backoff_seconds(failures))
            answer = self.open(key, start, end, generation)

    def header(self, key: str, answer: Any, name: str) -> str:
        """Return a header of an answer with content.

        Raise BucketError if the header is missing or empty. Google omits headers of objects that it
        decompresses while sending.
        """
        text: str = answer.headers.get(name, "")
        if not text:
            raise BucketError(
                f"{key!r:.200} in {self._place}: the answer has no {name}; an object whose "
                "Content-Encoding was set cannot be read"
            )
        return text

    def _translate_errors(self, key: str) -> AbstractContextManager[None]:
        return translate_errors(self._name, self._place, key)


def generation_of(answer: Any) -> str | None:
    """Return the generation of an answer's content, which identifies a version of the object.

    Return None if the store sent no generation.
    """
    generation: str | None = answer.headers.get("x-goog-generation")
    return generation
