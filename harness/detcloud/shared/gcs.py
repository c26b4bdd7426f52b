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

from detcloud.shared.bucket_errors import AccessDenied, BucketError, NoSuchBucket
from detcloud.shared.certificates import complete_environment
from detcloud.shared.gcs_errors import NO_BUCKET, bucket_error, translate_errors
from detcloud.shared.gcs_limits import GCS_LIMITS, GcsLimits
from detcloud.shared.gcs_reading import (
    ATTEMPTS_MAX,
    ENDPOINT,
    REPEATED,
    SECONDS_MAX,
    WHOLE,
    ObjectReader,
    generation_of,
)
from detcloud.shared.gcs_signing import can_sign, find_signing_credentials
from detcloud.shared.gcs_versions import GcsVersions
from detcloud.shared.google_packages import offer_google_packages
from detcloud.shared.http import backoff_seconds
from detcloud.shared.transfers import Digest, fetch_parts, split_parts, write_blocks

_TOKEN = "detcloud-put"
_NOTHING_THERE = 0
# The status of an upload that lacks parts.
_INCOMPLETE = 308
_NO_PACKAGE = (
    "{place} cannot be used without google-cloud-storage; install it with pip install "
    "'detcloud[gcs]'"
)


class GcsBucket:
    """The objects below a prefix of a bucket. Keys are relative to the prefix. Thread-safe.

    Throttled, broken and unanswered requests are repeated with growing pauses: by Google's client
    for two minutes, and for reads up to ATTEMPTS_MAX attempts. Then every method that sends a
    request raises bucket errors in place of the errors of Google's packages: NoSuchBucket without
    the bucket, AccessDenied, StoreBusy if the store requests fewer requests, and BucketError for
    other failures. Only methods that say so raise NoSuchKey. Errors of local files are passed on as
    OSError.

    Each call that writes is a writer of its own: an object of an earlier call, by this bucket or
    any other, counts as another writer's. A server other than Google's may ignore the condition
    that no object exists. An object that another writer creates there during the call may be
    replaced.
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

        Slashes around `prefix` are ignored. `auth_request` requests tokens and signatures from
        Google; None means a new connection. `session` is a session of `requests` that authorizes
        and sends all requests; None means new sessions. Nothing is sent to the store; the search
        for the environment's credentials may send requests to the machine's metadata server. Raise
        BucketError if Google's packages or the credentials are missing.
        """
        self._name = name
        self._key_prefix = f"{prefix.strip('/')}/" if prefix.strip("/") else ""
        self.place = f"gs://{name}/{self._key_prefix}".rstrip("/")
        offer_google_packages()
        try:
            complete_environment(os.environ)
        except ValueError as error:
            raise BucketError(f"{self.place} cannot be used: {error}") from None
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
        self._reader = ObjectReader(
            name,
            self._key_prefix,
            self.place,
            limits.block_bytes,
            lambda: self._session,
            self._is_listed,
        )

    def write(self, key: str, content: Iterable[bytes], *, if_absent: bool = False) -> bool:
        """Write an object, completely or not at all. Return whether the object was written.

        Without `if_absent`, replace an existing object. With `if_absent`, return False, and change
        nothing, if another writer's object exists, even with equal content; `content` may be read
        to the end nevertheless. Content above a part's size is sent in parts as `content` yields
        blocks, with a few parts in memory. Empty content gives an empty object. Errors of `content`
        are passed on, and then nothing is written and an existing object stays.
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
        """Write an object in parts. After an error, cancel the upload and raise the error.

        The object appears when the last part is sent. Google's client repeats the requests. Its
        errors, and errors of `parts`, are passed on untranslated. A failed cancellation is ignored.
        """
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

        This call opens the object, and the content is received during the iteration, once. The
        result yields nothing if `start` is at or behind the object's end, and stops at the end if
        `end` is behind. Raise NoSuchKey without the object. If an answer breaks off, the iterator
        requests the rest, with pauses. The iterator raises BucketError after ATTEMPTS_MAX failures,
        and either BucketError or NoSuchKey if the object is replaced or deleted meanwhile.
        """
        return self._reader.blocks(key, start, end, self._reader.open(key, start, end))

    def open(self, key: str) -> tuple[int, Iterator[bytes]]:
        """Open an object, and return the size in bytes and an iterator of blocks.

        The content is received during the iteration, once. Raise NoSuchKey without the object, and
        BucketError if the answer has no size, because the object has a Content-Encoding. The
        iterator continues and raises errors as the result of `read` does.
        """
        answer = self._reader.open(key, 0, None)
        length = self._reader.header(key, answer, "Content-Length")
        return int(length), self._reader.blocks(key, 0, None, answer)

    def send(self, key: str, source: Path) -> bool:
        """Upload a file as a new object, completely or not at all. Return True if written.

        Return False, and change nothing, if another writer's object exists, even with equal
        content. Raise OSError if the file is missing or unreadable. The file is read to its present
        end. After an error, this call has written no object, unless the answer was lost, and an
        upload in parts is canceled.
        """
        with source.open("rb") as file:
            blocks = iter(partial(file.read, self._limits.block_bytes), b"")
            return self.write(key, blocks, if_absent=True)

    def fetch(self, key: str, destination: Path, digest: Digest | None = None) -> None:
        """Copy an object to a file, several parts at a time. Replace an existing file.

        A store without ranges gets a single request at a time. Answers that break off are continued
        as in `read`. Raise NoSuchKey without the object; the file then stays as before. Raise
        BucketError if not all bytes are received, and either BucketError or NoSuchKey if the object
        is replaced or deleted meanwhile; the file may then contain a part. Update `digest` with the
        content.
        """
        part_bytes = self._limits.part_bytes
        first = self._reader.open(key, 0, part_bytes)
        if first is None:
            destination.write_bytes(b"")
            return
        if first.status_code == WHOLE:
            # The store lacks ranges, or decompresses the object while sending.
            write_blocks(destination, self._reader.blocks(key, 0, None, first), digest)
            return
        size = int(self._reader.header(key, first, "Content-Range").rpartition("/")[2])
        generation = generation_of(first)

        def read(start: int, end: int) -> Iterator[bytes]:
            answer = self._reader.open(key, start, end, generation) if start else first
            return self._reader.blocks(key, start, end, answer)

        fetch_parts(destination, size, part_bytes, read, digest)

    def object_size(self, key: str) -> int | None:
        """Return the object's size in bytes. Return None without the object or the bucket.

        Each call sends a request. Raise AccessDenied if the credentials may neither read the
        object's properties nor show by a listing that no object exists.
        """
        found = self._find(key)
        return None if found is None else int(found.size)

    def list_objects(self, prefix: str) -> Iterator[tuple[str, int]]:
        """Yield the key and the size in bytes of each object with the prefix, in the keys' order.

        `prefix` follows the prefix of this bucket and may end within a name; "" means all objects
        below this bucket's prefix. Keys are relative to this bucket's prefix and include `prefix`.
        Pages are requested during the iteration, which raises the errors.
        """
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
        """Delete an object. Do nothing if no object exists. Raise NoSuchBucket without the bucket.

        A failed request is repeated for `repeated_seconds_max` of the limits, by default 15 s, and
        so for less time than other requests. A bucket with versions keeps earlier versions.
        """
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
        MD5, in hexadecimal or "" for any, and only if the key is free. A refusal by Google raises
        BucketError. Each call begins a new session. No object exists before the last part. Raise
        ValueError for an MD5 that is not hexadecimal.
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
        """Return the number of stored bytes of a session. 0 before the first part.

        Return None for a completed, canceled, expired or unknown session, and for a refusal such as
        status 403. Each call sends a request, which is repeated up to ATTEMPTS_MAX attempts if
        Google is busy. Raise BucketError at once if the connection breaks.
        """
        answer = self._ask_session("PUT", session, {"Content-Range": "bytes */*"})
        if answer.status_code != _INCOMPLETE:
            return None
        return int(answer.headers.get("Range", "bytes=0--1").partition("-")[2]) + 1

    def end_session(self, session: str) -> None:
        """Cancel a session, which Google would keep for a week. An ended session is no error.

        The object of a completed session stays. A refusal by Google is ignored. Raise BucketError
        at once if Google does not answer, and after ATTEMPTS_MAX attempts if Google is busy.
        """
        self._ask_session("DELETE", session, {"Content-Length": "0"})

    def _ask_session(self, method: str, session: str, headers: Mapping[str, str]) -> Any:
        """Send a request about a session, and return the first answer that asks for no repeat.

        The statuses REPEATED ask for a repeat, after a growing pause. The answer may have any other
        status, also of an error. Raise the bucket error of the last answer after ATTEMPTS_MAX
        attempts. Raise BucketError at once for a broken connection.
        """
        failures = 0
        while True:
            with self._translate_errors(""):
                answer = self._session.request(
                    method, session, headers=headers, timeout=SECONDS_MAX, allow_redirects=False
                )
            if answer.status_code not in REPEATED:
                return answer
            failures += 1
            if failures >= ATTEMPTS_MAX:
                raise bucket_error(
                    self._name, self.place, "", answer.status_code, answer.text[:200]
                )
            time.sleep(backoff_seconds(failures))

    def stored_digest(self, key: str) -> tuple[int, str] | None:
        """Return an object's size in bytes and MD5 in hexadecimal.

        The MD5 is "" if the store has none. Return None without the object or the bucket. The
        properties are requested, not the content.
        """
        found = self._find(key)
        if found is None:
            return None
        return int(found.size), base64.b64decode(found.md5_hash or "").hex()

    @property
    def versions(self) -> GcsVersions:
        """The versions of the bucket's objects, if the bucket keeps versions."""
        return GcsVersions(self._client, self._bucket, self._key_prefix, self.place, self._limits)

    def abort_uploads(self, prefix: str) -> None:
        """Do nothing. `prefix` is ignored.

        Google cannot list unfinished uploads. The process of an upload cancels it after an error,
        and Google drops the upload of a dead process after a week.
        """

    def signed_get_url(self, key: str, seconds: int) -> str:
        """Return a URL that allows anybody to download the object for `seconds`.

        Browsers save the content to a file. Requires `can_sign`. Without a private key, Google is
        asked for the signature, and errors of this request become BucketError. The store is not
        asked, so the object may be missing. Raise ValueError for more than seven days.
        """
        return self._signed_url("GET", key, seconds, response_disposition="attachment")

    def signed_put_url(
        self, key: str, seconds: int, size: int, sha256: str
    ) -> tuple[str, dict[str, str]]:
        """Return a URL that allows anybody to write the content, and the request's headers.

        The URL is valid for `seconds`, and bound to the size and the hexadecimal SHA-256. A request
        must have all the headers, and replaces an existing object. Requires `can_sign`. Without a
        private key, Google is asked for the signature, and errors of this request become
        BucketError. The digest is not checked. Raise ValueError for more than seven days.
        """
        headers = {
            "x-goog-content-sha256": sha256,
            "x-goog-content-length-range": f"{size},{size}",
        }
        url = self._signed_url("PUT", key, seconds, headers=dict(headers))
        return url, {"Content-Length": str(size), **headers}

    @property
    def can_sign(self) -> bool:
        """Whether the credentials can sign URLs: a service account's can, a person's cannot.

        Nothing is sent. Whether Google allows the account to sign is not checked.
        """
        return can_sign(self._client._credentials)

    def _signed_url(self, method: str, key: str, seconds: int, **options: Any) -> str:
        with self._translate_errors(key):
            url: str = self._blob(key).generate_signed_url(
                version="v4",
                expiration=timedelta(seconds=seconds),
                method=method,
                credentials=self._signing_credentials,
                api_access_endpoint=os.environ.get("STORAGE_EMULATOR_HOST", ENDPOINT),
                **options,
            )
            return url

    @cached_property
    def _signing_credentials(self) -> Any:
        return find_signing_credentials(self._client._credentials, self._auth_request)

    def _find(self, key: str) -> Any:
        """Request the object's properties. Return None without the object or the bucket.

        If Google denies access, raise AccessDenied unless a listing shows that no object exists.
        Raise BucketError for other failures.
        """
        try:
            with self._translate_errors(key):
                return self._bucket.get_blob(self._key_prefix + key, timeout=SECONDS_MAX)
        except AccessDenied:
            if self._is_listed(key):
                raise
            return None

    def _is_listed(self, key: str) -> bool:
        """Request a listing, and return whether the listing contains exactly this key.

        Callers ask after a request for the object got status 403, which credentials without the
        right to list the whole bucket also get for a missing object. Raise AccessDenied if the
        listing is refused.
        """
        # The key itself is the first of all listed names with this beginning.
        return next((found == key for found, _ in self.list_objects(key)), False)

    @cached_property
    def _session(self) -> Any:
        """The HTTP session, with authorization, whose answers can be read in blocks.

        The given session, or a new session at the first access. Nothing is sent.
        """
        if self._given_session is not None:
            return self._given_session
        from google.auth.transport.requests import AuthorizedSession

        return AuthorizedSession(self._client._credentials)

    def _blob(self, key: str) -> Any:
        return self._bucket.blob(self._key_prefix + key)

    def _translate_errors(self, key: str) -> AbstractContextManager[None]:
        return translate_errors(self._name, self.place, key)


def _is_googles_own() -> bool:
    """Whether requests go to Google's own service, and not to a compatible server.

    STORAGE_EMULATOR_HOST then is unset or empty in this process's environment.
    """
    return not os.environ.get("STORAGE_EMULATOR_HOST")


@lru_cache(maxsize=64)
def gcs_bucket_of(name: str, prefix: str) -> GcsBucket:
    """Return the bucket below a prefix with the environment's credentials, from a cache of 64.

    Equal arguments give the same object, which the process keeps. Raise BucketError as the
    constructor of GcsBucket does; errors are not cached.
    """
    return GcsBucket(name, prefix)
