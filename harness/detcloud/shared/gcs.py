"""Requests to a bucket of Google Cloud Storage, with the methods of `detcloud.shared.s3.Bucket`.

Google's client repeats throttled, broken and unanswered requests with growing pauses. Each write
carries a token, by which a repeated conditional write recognizes its own object after a lost
answer. Content above a part is sent by a resumable upload, which is no object before its end. The
client takes 0.3 s to import, so the first bucket imports it (docs/benchmarks.md: the cold starts).
"""

from __future__ import annotations

import base64
import os
import secrets
import time
from collections.abc import Iterable, Iterator, Mapping
from contextlib import AbstractContextManager, suppress
from datetime import timedelta
from functools import cached_property, lru_cache, partial
from itertools import chain
from pathlib import Path
from typing import Any
from urllib.parse import quote

from detcloud.shared.bucket_errors import AccessDenied, BucketError, NoSuchBucket, NoSuchKey
from detcloud.shared.gcs_errors import (
    NO_BUCKET,
    bucket_error,
    is_broken_connection,
    translate_errors,
)
from detcloud.shared.gcs_limits import GCS_LIMITS, GcsLimits
from detcloud.shared.gcs_signing import can_sign, find_signing_credentials
from detcloud.shared.http import backoff_seconds
from detcloud.shared.transfers import fetch_parts, split_parts

ATTEMPTS_MAX = 6
SECONDS_MAX = 60

_TOKEN = "detcloud-put"
_NOTHING_THERE = 0
# The statuses of requests that may be repeated, and of an upload that lacks parts.
_REPEATED = (408, 429, 500, 502, 503, 504)
_INCOMPLETE = 308
_WHOLE = 200
# The statuses that refuse an unknown header or parameter.
_REFUSALS = (400, 405, 501)
_ENDPOINT = "https://storage.googleapis.com"
_NO_PACKAGE = (
    "{place} cannot be used without google-cloud-storage; install it with pip install "
    "'detcloud[gcs]'"
)


class GcsBucket:
    """The objects below a prefix of a bucket. Keys are relative to the prefix. Thread-safe.

    Every method may raise NoSuchBucket without the bucket, AccessDenied, StoreBusy if the store
    requests fewer requests, and BucketError for other failures after repeats.
    """

    def __init__(
        self,
        name: str,
        prefix: str = "",
        credentials: Any = None,
        auth_request: Any = None,
        *,
        session: Any = None,
        limits: GcsLimits = GCS_LIMITS,
    ) -> None:
        """Create a client. `credentials` of None are the environment's credentials.

        `auth_request` requests tokens and signatures from Google; None means a new connection.
        `session` is a session of `requests` that authorizes and sends all requests; None means new
        sessions. Raise BucketError if Google's packages or the credentials are missing.
        """
        self._name = name
        self._key_prefix = f"{prefix.strip('/')}/" if prefix.strip("/") else ""
        self.place = f"gs://{name}/{self._key_prefix}".rstrip("/")
        try:
            from google.cloud.storage import Client
        except ImportError:
            raise BucketError(_NO_PACKAGE.format(place=self.place)) from None
        with self._translate_errors(""):
            self._client = Client(project="-", credentials=credentials, _http=session)
        # For traces, the client would request the bucket's metadata, which needs more permissions.
        self._client._bucket_metadata_cache = None
        self._bucket = self._client.bucket(name)
        self._auth_request = auth_request
        self._given_session = session
        self._limits = limits

    def write(self, key: str, content: Iterable[bytes], *, if_absent: bool = False) -> bool:
        """Write an object, completely or not at all. Return whether the object was written.

        Without `if_absent`, replace an existing object. With `if_absent`, return False, and change
        nothing, if another writer's object exists. Large content is sent in parts. Errors of
        `content` are passed on, and then nothing is written.
        """
        from google.api_core.exceptions import Forbidden, NotFound, PreconditionFailed
        from google.cloud.storage.exceptions import InvalidResponse
        from google.cloud.storage.retry import DEFAULT_RETRY

        parts = split_parts(content, self._limits.part_bytes)
        first, second = next(parts, b""), next(parts, None)
        blob, token = self._blob(key), secrets.token_hex(16)
        blob.metadata = {_TOKEN: token}
        options: dict[str, Any] = {"timeout": SECONDS_MAX, "retry": DEFAULT_RETRY}
        if if_absent:
            # Compatible servers may ignore the condition.
            if not _is_googles_own() and self._find(key) is not None:
                return False
            options["if_generation_match"] = _NOTHING_THERE
        with self._translate_errors(key):
            try:
                if second is None:
                    blob.upload_from_string(first, **options)
                else:
                    self._write_parts(blob, chain((first, second), parts), options)
            except (Forbidden, NotFound, PreconditionFailed, InvalidResponse) as error:
                # For an upload in parts, the client raises InvalidResponse with the answer.
                is_answer = isinstance(error, InvalidResponse)
                status = error.response.status_code if is_answer else error.code
                # Credentials without the right to replace objects get 403 for an existing object.
                if status == 404:
                    raise NoSuchBucket(f"there is no bucket {self._name}") from None
                if status not in (403, 412) or (status == 403 and not if_absent):
                    raise
                stored = self._find(key)
                if stored is None and status == 403:
                    raise
                return stored is not None and (stored.metadata or {}).get(_TOKEN) == token
        return True

    def _write_parts(self, blob: Any, parts: Iterator[bytes], options: Mapping[str, Any]) -> None:
        """Write an object in parts. After an error, cancel the upload and raise the error."""
        upload = blob.open("wb", chunk_size=self._limits.part_bytes, **options)
        try:
            upload.writelines(parts)
            upload.close()
        except BaseException:
            # The client's `terminate` uses a wrong URL, and an unclosed writer sends a last part.
            begun, upload._upload_and_transport = upload._upload_and_transport, None
            upload.terminate()
            if begun is not None and begun[0].resumable_url:
                with suppress(OSError):
                    self.end_session(begun[0].resumable_url)
            raise

    def read(self, key: str, start: int = 0, end: int | None = None) -> Iterator[bytes]:
        """Return the bytes from `start` to before `end`, in blocks. None means the object's end.

        This call opens the object. The blocks are empty if `start` is behind the object. Raise
        NoSuchKey without the object. The iterator may raise BucketError.
        """
        return self._blocks(key, start, end, self._open(key, start, end))

    def open(self, key: str) -> tuple[int, Iterator[bytes]]:
        """Open an object, and return its size in bytes and an iterator of blocks.

        Raise NoSuchKey without the object. The iterator may raise BucketError.
        """
        answer = self._open(key, 0, None)
        length = self._header(key, answer, "Content-Length")
        return int(length), self._blocks(key, 0, None, answer)

    def send(self, key: str, source: Path) -> bool:
        """Upload a file as a new object, completely or not at all.

        Return False, and change nothing, if another writer's object exists.
        """
        with source.open("rb") as file:
            blocks = iter(partial(file.read, self._limits.block_bytes), b"")
            return self.write(key, blocks, if_absent=True)

    def fetch(self, key: str, destination: Path) -> None:
        """Copy an object to a file, several parts at a time. Replace an existing file.

        Raise NoSuchKey without the object. Raise BucketError if the object is replaced meanwhile or
        not all bytes are received; the file may then contain a part.
        """
        part_bytes = self._limits.part_bytes
        first = self._open(key, 0, part_bytes)
        if first is None:
            destination.write_bytes(b"")
            return
        if first.status_code == _WHOLE:
            # The store lacks ranges, or decompresses the object while sending.
            with destination.open("wb") as file:
                file.writelines(self._blocks(key, 0, None, first))
            return
        size = int(self._header(key, first, "Content-Range").rpartition("/")[2])
        generation = _generation(first)

        def read(start: int, end: int) -> Iterator[bytes]:
            answer = self._open(key, start, end, generation) if start else first
            return self._blocks(key, start, end, answer)

        fetch_parts(destination, size, part_bytes, read)

    def object_size(self, key: str) -> int | None:
        """Return the object's size in bytes. Return None without the object or the bucket."""
        found = self._find(key)
        return None if found is None else int(found.size)

    def list_objects(self, prefix: str) -> Iterator[tuple[str, int]]:
        """Yield the key and the bytes of each object with the prefix, in the order of the keys."""
        from google.api_core.exceptions import NotFound

        with self._translate_errors(prefix):
            found = self._client.list_blobs(
                self._bucket,
                prefix=self._key_prefix + prefix,
                fields="items(name,size),nextPageToken",
                timeout=SECONDS_MAX,
            )
            try:
                for blob in found:
                    yield blob.name.removeprefix(self._key_prefix), int(blob.size)
            except NotFound:
                raise NoSuchBucket(f"there is no bucket {self._name}") from None

    def delete(self, key: str) -> None:
        """Delete an object. Do nothing if no object exists."""
        from google.api_core.exceptions import NotFound
        from google.cloud.storage.retry import DEFAULT_RETRY

        retry = DEFAULT_RETRY.with_timeout(self._limits.repeated_seconds_max)
        with self._translate_errors(key):
            try:
                self._blob(key).delete(timeout=SECONDS_MAX, retry=retry)
            except NotFound as error:
                if NO_BUCKET in str(error):
                    raise

    def begin_session(self, key: str, size: int, md5: str) -> str:
        """Begin the upload of `size` bytes to a key in parts, and return the session's URL.

        The URL allows anybody to send the parts for a week. Google only accepts content with the
        MD5, in hexadecimal or "" for any, and only if the key is free.
        """
        from google.cloud.storage.retry import DEFAULT_RETRY

        blob = self._blob(key)
        if md5:
            blob.md5_hash = base64.b64encode(bytes.fromhex(md5)).decode()
        with self._translate_errors(key):
            session: str = blob.create_resumable_upload_session(
                size=size,
                checksum=None,
                if_generation_match=_NOTHING_THERE,
                timeout=SECONDS_MAX,
                retry=DEFAULT_RETRY,
            )
            return session

    def session_bytes(self, session: str) -> int | None:
        """Return the number of stored bytes of a session.

        Return None for a completed, canceled or expired session.
        """
        answer = self._ask_session("PUT", session, {"Content-Range": "bytes */*"})
        if answer.status_code != _INCOMPLETE:
            return None
        return int(answer.headers.get("Range", "bytes=0--1").partition("-")[2]) + 1

    def end_session(self, session: str) -> None:
        """Cancel a session, which Google would keep for a week. An ended session is no error."""
        self._ask_session("DELETE", session, {"Content-Length": "0"})

    def _ask_session(self, method: str, session: str, headers: Mapping[str, str]) -> Any:
        """Send a request about a session, and return the first answer that asks for no repeat.

        Raise the bucket error of the last answer after ATTEMPTS_MAX attempts.
        """
        failures = 0
        while True:
            with self._translate_errors(""):
                answer = self._session.request(
                    method, session, headers=headers, timeout=SECONDS_MAX, allow_redirects=False
                )
            if answer.status_code not in _REPEATED:
                return answer
            failures += 1
            if failures >= ATTEMPTS_MAX:
                raise bucket_error(
                    self._name, self.place, "", answer.status_code, answer.text[:200]
                )
            time.sleep(backoff_seconds(failures))

    def stored_digest(self, key: str) -> tuple[int, str] | None:
        """Return an object's size in bytes and MD5 in hexadecimal.

        The MD5 is "" if the store has none. Return None without the object or the bucket.
        """
        found = self._find(key)
        if found is None:
            return None
        return int(found.size), base64.b64decode(found.md5_hash or "").hex()

    def abort_uploads(self, prefix: str) -> None:
        """Do nothing, because only its process knows an unfinished upload and cancels the upload.

        Google drops the upload of a dead process after a week.
        """

    def signed_get_url(self, key: str, seconds: int) -> str:
        """Return a URL to download the object for `seconds`, for anybody. Requires `can_sign`."""
        return self._signed_url("GET", key, seconds, response_disposition="attachment")

    def signed_put_url(
        self, key: str, seconds: int, size: int, sha256: str
    ) -> tuple[str, dict[str, str]]:
        """Return a URL that allows anybody to write the content, and the request's headers.

        The URL is valid for `seconds`, and bound to the size and the hexadecimal SHA-256.
        """
        headers = {
            "x-goog-content-sha256": sha256,
            "x-goog-content-length-range": f"{size},{size}",
        }
        url = self._signed_url("PUT", key, seconds, headers=dict(headers))
        return url, {"Content-Length": str(size), **headers}

    @property
    def can_sign(self) -> bool:
        """Whether the credentials can sign URLs: a service account's can, a person's cannot."""
        return can_sign(self._client._credentials)

    def _signed_url(self, method: str, key: str, seconds: int, **options: Any) -> str:
        with self._translate_errors(key):
            url: str = self._blob(key).generate_signed_url(
                version="v4",
                expiration=timedelta(seconds=seconds),
                method=method,
                credentials=self._signing_credentials,
                api_access_endpoint=os.environ.get("STORAGE_EMULATOR_HOST", _ENDPOINT),
                **options,
            )
            return url

    @cached_property
    def _signing_credentials(self) -> Any:
        return find_signing_credentials(self._client._credentials, self._auth_request)

    def _find(self, key: str) -> Any:
        """Return the object's properties. Return None without the object or the bucket.

        If Google denies access, raise AccessDenied unless a listing shows that no object exists.
        """
        try:
            with self._translate_errors(key):
                return self._bucket.get_blob(self._key_prefix + key, timeout=SECONDS_MAX)
        except AccessDenied:
            if self._is_listed(key):
                raise
            return None

    def _is_listed(self, key: str) -> bool:
        """Whether a listing contains the object. Raise AccessDenied if the listing is refused.

        Credentials without the right to list the whole bucket get 403 for a missing object.
        """
        # The key itself is the first of all listed names with this beginning.
        return next((found == key for found, _ in self.list_objects(key)), False)

    def _open(self, key: str, start: int, end: int | None, generation: str | None = None) -> Any:
        """Request an object's content, and return the open answer.

        Return None if the range is behind the object. If a server refuses ranges or generations,
        repeat the request without. Raise NoSuchKey without the object. With a generation, raise
        BucketError if the object has another generation, and for any other error status.
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
            raise bucket_error(self._name, self.place, key, answer.status_code, text)
        if generation is not None and _generation(answer) not in (None, generation):
            raise BucketError(f"{key!r:.200} in {self.place} was replaced while it was read")
        return answer

    def _ask_object(self, key: str, start: int, end: int | None, generation: str | None) -> Any:
        """Request an object's content, and return the first answer that asks for no repeat.

        Return the last answer after ATTEMPTS_MAX attempts. Raise NoSuchKey without the object.
        """
        name = quote(self._key_prefix + key, safe="")
        base = os.environ.get("STORAGE_EMULATOR_HOST", _ENDPOINT)
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
                    answer = self._session.get(
                        url, headers=headers, stream=True, timeout=SECONDS_MAX
                    )
            except BucketError as error:
                if failures >= ATTEMPTS_MAX or not is_broken_connection(error.__cause__):
                    raise
                time.sleep(backoff_seconds(failures))
                continue
            is_missing = answer.status_code == 404 and NO_BUCKET not in answer.text
            if is_missing or (answer.status_code == 403 and not self._is_listed(key)):
                raise NoSuchKey(f"there is nothing under {self._key_prefix}{key} in {self.place}")
            if failures >= ATTEMPTS_MAX or answer.status_code not in _REPEATED:
                return answer
            time.sleep(backoff_seconds(failures))

    def _blocks(self, key: str, start: int, end: int | None, answer: Any) -> Iterator[bytes]:
        """Yield an answer's bytes from `start` to before `end`. Yield nothing for None.

        An answer with the whole object is cut. If the answer breaks off, request the rest, and
        raise BucketError after ATTEMPTS_MAX failures.
        """
        failures = 0
        while answer is not None:
            generation = _generation(answer)
            place = 0 if answer.status_code == _WHOLE else start
            whole = place + int(self._header(key, answer, "Content-Length"))
            whole = whole if end is None else min(whole, end)
            problem: BucketError | None = None
            try:
                with self._translate_errors(key), answer:
                    for block in answer.iter_content(self._limits.block_bytes):
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
                text = f"{key!r:.200} in {self.place}: the answer ends too early"
                raise problem or BucketError(text)
            time.sleep(backoff_seconds(failures))
            answer = self._open(key, start, end, generation)

    def _header(self, key: str, answer: Any, name: str) -> str:
        """Return a header of an answer with content. Raise BucketError if the header is missing.

        Google omits headers of objects that it decompresses while sending.
        """
        text: str = answer.headers.get(name, "")
        if not text:
            raise BucketError(
                f"{key!r:.200} in {self.place}: the answer has no {name}; an object whose "
                "Content-Encoding was set cannot be read"
            )
        return text

    @cached_property
    def _session(self) -> Any:
        """The HTTP session, with authorization, whose answers can be read in blocks."""
        if self._given_session is not None:
            return self._given_session
        from google.auth.transport.requests import AuthorizedSession

        return AuthorizedSession(self._client._credentials)

    def _blob(self, key: str) -> Any:
        return self._bucket.blob(self._key_prefix + key)

    def _translate_errors(self, key: str) -> AbstractContextManager[None]:
        return translate_errors(self._name, self.place, key)


def _is_googles_own() -> bool:
    """Whether requests go to Google's own service, and not to a compatible server."""
    return not os.environ.get("STORAGE_EMULATOR_HOST")


def _generation(answer: Any) -> str | None:
    """Return the generation of an answer's content, which identifies a version, or None."""
    generation: str | None = answer.headers.get("x-goog-generation")
    return generation


@lru_cache(maxsize=64)
def gcs_bucket_of(name: str, prefix: str) -> GcsBucket:
    """Return the bucket below a prefix, from a cache. Raise BucketError as GcsBucket does."""
    return GcsBucket(name, prefix)
