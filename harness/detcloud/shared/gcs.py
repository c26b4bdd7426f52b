"""Requests to one bucket of Google Cloud Storage, with the methods of `detcloud.shared.s3.Bucket`.

Google's client repeats what was throttled, broken off or not answered, with pauses that grow. A
write that must be the first carries a token by which a repeat recognises its own object when the
answer was lost. Content of more than a part goes by a resumable upload, which is no object before
its end. The client takes a third of a second to import, so the first bucket loads it
(docs/benchmarks.md: the cold starts).
"""

from __future__ import annotations

import base64
import os
import secrets
import time
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager, suppress
from datetime import timedelta
from functools import cached_property, lru_cache, partial
from itertools import chain
from pathlib import Path
from typing import Any
from urllib.parse import quote

from detcloud.shared.bucket_errors import (
    BUSY_STATUSES,
    EXPIRED,
    NO_ANSWER,
    AccessDenied,
    BucketError,
    NoSuchBucket,
    NoSuchKey,
    StoreBusy,
)
from detcloud.shared.gcs_signing import can_sign, find_signing_credentials
from detcloud.shared.http import backoff_seconds
from detcloud.shared.transfers import fetch_parts, split_parts

PART_BYTES = 16 << 20
ATTEMPTS_MAX = 6
SECONDS_MAX = 60
REPEATED_SECONDS_MAX = 15.0

_BLOCK_BYTES = 256 * 1024
_TOKEN = "detcloud-put"
_NOTHING_THERE = 0
# Statuses of requests that may be sent again, and of an upload that lacks parts.
_REPEATED = (408, 429, 500, 502, 503, 504)
_INCOMPLETE = 308
# What Google says of a bucket that is not there, with the status of an object that is not.
_NO_BUCKET = "bucket does not exist"
_ENDPOINT = "https://storage.googleapis.com"
_NO_PACKAGE = (
    "{place} cannot be used without google-cloud-storage; install it with pip install "
    "'detcloud[gcs]'"
)
_NO_CREDENTIALS = (
    "set GOOGLE_APPLICATION_CREDENTIALS to the path of a key, or use a service account"
)


class GcsBucket:
    """Requests on the objects below a prefix of a bucket; may be used by many threads at once.

    Every method raises NoSuchBucket, and BucketError for what repeats did not mend.
    """

    def __init__(
        self, name: str, prefix: str = "", credentials: Any = None, auth_request: Any = None
    ) -> None:
        """`credentials` are Google's, those of the environment if None, and `auth_request` asks
        Google for tokens and signatures. Raises BucketError.
        """
        self._name = name
        self._key_prefix = f"{prefix.strip('/')}/" if prefix.strip("/") else ""
        self.place = f"gs://{name}/{self._key_prefix}".rstrip("/")
        try:
            from google.cloud.storage import Client
        except ImportError:
            raise BucketError(_NO_PACKAGE.format(place=self.place)) from None
        with self._translate_errors(""):
            self._client = Client(project="-", credentials=credentials)
        # For traces, which nobody makes, it would ask for the bucket itself, which few may.
        self._client._bucket_metadata_cache = None
        self._bucket = self._client.bucket(name)
        self._auth_request = auth_request

    def write(self, key: str, content: Iterable[bytes], *, if_absent: bool = False) -> bool:
        """Write an object whole or not at all; with `if_absent` False where there is one already.

        What is longer than a part goes in several. Whatever `content` raises is raised, and nothing
        is written then.
        """
        from google.api_core.exceptions import Forbidden, NotFound, PreconditionFailed
        from google.cloud.storage.exceptions import InvalidResponse
        from google.cloud.storage.retry import DEFAULT_RETRY

        parts = split_parts(content, PART_BYTES)
        first, second = next(parts, b""), next(parts, None)
        blob, token = self._blob(key), secrets.token_hex(16)
        blob.metadata = {_TOKEN: token}
        options: dict[str, Any] = {"timeout": SECONDS_MAX, "retry": DEFAULT_RETRY}
        if if_absent:
            options["if_generation_match"] = _NOTHING_THERE
        with self._translate_errors(key):
            try:
                if second is None:
                    blob.upload_from_string(first, **options)
                else:
                    self._write_parts(blob, chain((first, second), parts), options)
            except (Forbidden, NotFound, PreconditionFailed, InvalidResponse) as error:
                # An upload in parts is refused by the answer itself.
                is_answer = isinstance(error, InvalidResponse)
                status = error.response.status_code if is_answer else error.code
                # Who may replace nothing is not even told that there is something already.
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
        """Write an object in parts; after an error, end the upload that it began."""
        upload = blob.open("wb", chunk_size=PART_BYTES, **options)
        try:
            upload.writelines(parts)
            upload.close()
        except BaseException:
            # Its own `terminate` asks another URL. What is not closed would send a last part.
            begun, upload._upload_and_transport = upload._upload_and_transport, None
            upload.terminate()
            if begun is not None and begun[0].resumable_url:
                with suppress(OSError):
                    self.end_session(begun[0].resumable_url)
            raise

    def read(self, key: str, start: int = 0, end: int | None = None) -> Iterator[bytes]:
        """The bytes from `start` to before the later `end`, in blocks, or to the object's end.

        The object is opened by the call. Raises NoSuchKey.
        """
        return self._blocks(key, start, end, self._open(key, start, end))

    def open(self, key: str) -> tuple[int, Iterator[bytes]]:
        """Open an object: its size in bytes, and its bytes in blocks. Raises NoSuchKey."""
        answer = self._open(key, 0, None)
        length = self._header(key, answer, "Content-Length")
        return int(length), self._blocks(key, 0, None, answer)

    def send(self, key: str, source: Path) -> bool:
        """Write a file's content as an object, whole or not at all; False where there is one."""
        with source.open("rb") as file:
            return self.write(key, iter(partial(file.read, _BLOCK_BYTES), b""), if_absent=True)

    def fetch(self, key: str, destination: Path) -> None:
        """Copy an object to a file, several parts at a time. Raises NoSuchKey.

        All parts are of one version of the object: a replacement meanwhile is an error.
        """
        first = self._open(key, 0, PART_BYTES)
        if first is None:
            destination.write_bytes(b"")
            return
        size = int(self._header(key, first, "Content-Range").rpartition("/")[2])
        generation = _generation(first)

        def read(start: int, end: int) -> Iterator[bytes]:
            answer = self._open(key, start, end, generation) if start else first
            return self._blocks(key, start, end, answer)

        fetch_parts(destination, size, PART_BYTES, read)

    def object_size(self, key: str) -> int | None:
        """The object's size in bytes; None where there is none."""
        found = self._find(key)
        return None if found is None else int(found.size)

    def list_objects(self, prefix: str) -> Iterator[tuple[str, int]]:
        """The keys with that prefix, in the order of their bytes, and their sizes in bytes."""
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
        """Remove an object; one that is gone already is no error."""
        from google.api_core.exceptions import NotFound
        from google.cloud.storage.retry import DEFAULT_RETRY

        # Who deletes much wants to know soon that the store is asked for too much.
        retry = DEFAULT_RETRY.with_timeout(REPEATED_SECONDS_MAX)
        with self._translate_errors(key):
            try:
                self._blob(key).delete(timeout=SECONDS_MAX, retry=retry)
            except NotFound as error:
                if _NO_BUCKET in str(error):
                    raise

    def begin_session(self, key: str, size: int, md5: str) -> str:
        """Begin the upload of a key in parts; the URL by which anybody may send them for a week.

        Google takes no other content than that of the MD5, in hexadecimal or empty for any, and
        none for a key that is taken.
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
        """How many bytes of an upload in parts are there; None of one that has come to its end."""
        answer = self._ask_session("PUT", session, {"Content-Range": "bytes */*"})
        if answer.status_code != _INCOMPLETE:
            return None
        return int(answer.headers.get("Range", "bytes=0--1").partition("-")[2]) + 1

    def end_session(self, session: str) -> None:
        """End an upload in parts, which nobody can go on with then; Google would keep it for a
        week. One that has come to its end is no error.
        """
        self._ask_session("DELETE", session, {"Content-Length": "0"})

    def _ask_session(self, method: str, session: str, headers: Mapping[str, str]) -> Any:
        """The first answer of an upload in parts that asks for no repeat."""
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
                raise self._bucket_error("", answer.status_code, answer.text[:200])
            time.sleep(backoff_seconds(failures))

    def stored_digest(self, key: str) -> tuple[int, str] | None:
        """The size in bytes of an object, and its MD5 in hexadecimal or "" where the store has
        none; None where there is no object.
        """
        found = self._find(key)
        if found is None:
            return None
        return int(found.size), base64.b64decode(found.md5_hash or "").hex()

    def abort_uploads(self, prefix: str) -> None:
        """Do nothing: an upload that was cut short is known to its maker alone, who ends it. That
        of a process that died becomes no object, and Google drops it a week after its beginning.
        """

    def signed_get_url(self, key: str, seconds: int) -> str:
        """A URL by which anybody may read the object, as a download, for that long."""
        return self._signed_url("GET", key, seconds, response_disposition="attachment")

    def signed_put_url(
        self, key: str, seconds: int, size: int, sha256: str
    ) -> tuple[str, dict[str, str]]:
        """A URL by which anybody may write that content for so long, and its headers."""
        headers = {
            "x-goog-content-sha256": sha256,
            "x-goog-content-length-range": f"{size},{size}",
        }
        url = self._signed_url("PUT", key, seconds, headers=dict(headers))
        return url, {"Content-Length": str(size), **headers}

    @property
    def can_sign(self) -> bool:
        """Whether the credentials are a service account's; a person's sign nothing."""
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
        """The object's properties; None where there is none. Raises AccessDenied."""
        try:
            with self._translate_errors(key):
                return self._bucket.get_blob(self._key_prefix + key, timeout=SECONDS_MAX)
        except AccessDenied:
            if self._is_listed(key):
                raise
            return None

    def _is_listed(self, key: str) -> bool:
        """Whether a listing contains the object.

        Credentials that may not list the whole bucket, such as a trial's, get 403 for a missing
        object. Raises AccessDenied.
        """
        # Of names that begin so, the shortest comes first.
        return next((found == key for found, _ in self.list_objects(key)), False)

    def _open(self, key: str, start: int, end: int | None, generation: str | None = None) -> Any:
        """The answer whose content is to be read; None for a range behind the object's end.

        With a generation, only that content of the object.
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
            try:
                with self._translate_errors(key):
                    answer = self._session.get(
                        url, headers=headers, stream=True, timeout=SECONDS_MAX
                    )
            except BucketError as error:
                failures += 1
                if failures >= ATTEMPTS_MAX or not _is_broken_connection(error.__cause__):
                    raise
                time.sleep(backoff_seconds(failures))
                continue
            if answer.status_code < 300:
                return answer
            text = answer.text
            failures += 1
            if answer.status_code == 416:
                return None
            is_missing = answer.status_code == 404 and _NO_BUCKET not in text
            if is_missing or (answer.status_code == 403 and not self._is_listed(key)):
                raise NoSuchKey(f"there is nothing under {self._key_prefix}{key} in {self.place}")
            if failures >= ATTEMPTS_MAX or answer.status_code not in _REPEATED:
                raise self._bucket_error(key, answer.status_code, text[:200])
            time.sleep(backoff_seconds(failures))

    def _blocks(self, key: str, start: int, end: int | None, answer: Any) -> Iterator[bytes]:
        """The answer's bytes from `start` on; where it breaks off, the rest is requested again."""
        failures = 0
        while answer is not None:
            generation = _generation(answer)
            whole = start + int(self._header(key, answer, "Content-Length"))
            problem: BucketError | None = None
            try:
                with self._translate_errors(key), answer:
                    for block in answer.iter_content(_BLOCK_BYTES):
                        start += len(block)
                        yield block
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
        """A header that an answer with content has. Raises BucketError for one without, which
        Google gives for what it unpacks on its way.
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
        """Connections whose answers can be read block by block."""
        from google.auth.transport.requests import AuthorizedSession

        return AuthorizedSession(self._client._credentials)

    def _blob(self, key: str) -> Any:
        return self._bucket.blob(self._key_prefix + key)

    @contextmanager
    def _translate_errors(self, key: str) -> Iterator[None]:
        from google.api_core.exceptions import GoogleAPICallError, RetryError
        from google.auth.exceptions import DefaultCredentialsError, GoogleAuthError, TransportError
        from google.cloud.storage.exceptions import DataCorruption, InvalidResponse
        from requests import RequestException

        try:
            yield
        except DefaultCredentialsError as error:
            text = f"{self.place} cannot be used: {error}; {_NO_CREDENTIALS}"
            raise BucketError(text) from error
        except GoogleAPICallError as error:
            raise self._bucket_error(key, error.code, str(error.message)) from error
        except RetryError as error:
            # What the last of its repeats was answered.
            last = error.cause
            text = str(getattr(last, "message", last))
            if isinstance(last, RequestException | ConnectionError):
                raise BucketError(f"{key!r:.200} in {self.place}: {text}; {NO_ANSWER}") from error
            raise self._bucket_error(key, getattr(last, "code", None), text) from error
        except InvalidResponse as error:
            raise self._bucket_error(key, error.response.status_code, str(error)) from error
        except RequestException as error:
            raise BucketError(f"{key!r:.200} in {self.place}: {error}; {NO_ANSWER}") from error
        except GoogleAuthError as error:
            remedy = NO_ANSWER if isinstance(error, TransportError) else EXPIRED
            raise BucketError(f"{key!r:.200} in {self.place}: {error}; {remedy}") from error
        except DataCorruption as error:
            raise BucketError(f"{key!r:.200} in {self.place}: {error}") from error

    def _bucket_error(self, key: str, status: int | None, text: str) -> OSError:
        if status == 404 and _NO_BUCKET in text:
            return NoSuchBucket(f"there is no bucket {self._name}")
        message = f"{key!r:.200} in {self.place}: {status} {text}"
        if status == 403:
            return AccessDenied(f"{message}; the credentials do not allow that in this bucket")
        if status == 401:
            return BucketError(f"{message}; {EXPIRED}")
        return StoreBusy(message) if status in BUSY_STATUSES else BucketError(message)


def _is_broken_connection(error: object) -> bool:
    """Whether a request failed on the way, so that it may be sent again."""
    from requests import ConnectionError as BrokenConnection
    from requests import Timeout

    return isinstance(error, BrokenConnection | Timeout)


def _generation(answer: Any) -> str | None:
    """The generation of the content that was opened, which no later one has."""
    generation: str | None = answer.headers.get("x-goog-generation")
    return generation


def trial_credentials() -> Any:
    """The credentials that a trial's agent offers; None where it offers none, and without Google's
    packages, of which a bucket then tells.
    """
    try:
        from detcloud.shared.google_credentials import agent_credentials
    except ImportError:
        return None
    return agent_credentials()


@lru_cache(maxsize=64)
def gcs_bucket_of(name: str, prefix: str) -> GcsBucket:
    """The bucket below a prefix, made once. Raises BucketError as a GcsBucket does."""
    return GcsBucket(name, prefix)
