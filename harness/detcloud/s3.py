"""One bucket of Amazon S3, or of a store that speaks its protocol: the requests that the cluster's
object store and the stores of checkpoints are made of.

Botocore repeats what was throttled, broken off or not answered, with pauses that grow. All requests
may be repeated; a write that must be the first carries a token by which it knows itself again when
its answer was lost. Botocore takes a fifth of a second to import, so the first bucket loads it.
"""

from __future__ import annotations

import base64
import secrets
import time
from collections import deque
from collections.abc import Iterable, Iterator, Mapping
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import closing, contextmanager, suppress
from dataclasses import dataclass, field, replace
from functools import cached_property, lru_cache
from itertools import chain
from pathlib import Path
from typing import Any

from detcloud.http import backoff_seconds

PART_BYTES = 16 << 20
PARTS_MAX = 10_000
PARTS_AT_ONCE = 4
ATTEMPTS_MAX = 6
CONNECT_SECONDS_MAX = 10
READ_SECONDS_MAX = 60
# Requests at once of all threads of a process that answers many.
CONNECTIONS_MAX = 32

_BLOCK_BYTES = 256 * 1024
_TOKEN = "detcloud-put"
_ANYTHING_THERE = {"IfNoneMatch": "*"}
# Of stores that speak a part of the protocol, and so keep no uploads to be found.
_LACKING = ("NotImplemented", "MethodNotAllowed")
# By what S3 or botocore calls a failure, what the reader can do about it.
_REMEDIES = {
    "403": "the credentials may not do that in this bucket",
    "AccessDenied": "the credentials may not do that in this bucket",
    "ExpiredToken": "the credentials have expired",
    "InvalidAccessKeyId": "check the access key",
    "SignatureDoesNotMatch": "check the secret key",
    "NoCredentialsError": "give access_key and secret_key, or set AWS_ACCESS_KEY_ID and"
    " AWS_SECRET_ACCESS_KEY in the environment",
}


class BucketFailed(OSError):
    """The bucket cannot be used, or refused a request; the message is for users."""


class BucketMissing(FileNotFoundError, BucketFailed):
    """There is no such bucket."""


class WriteConflict(BucketFailed):
    """Somebody else wrote or deleted the key meanwhile; the whole request may be repeated."""


class KeyMissing(FileNotFoundError):
    """There is nothing under the key."""


@dataclass(frozen=True)
class BucketPlace:
    """Which bucket and how it is reached. Keys lie below `prefix`; credentials that are not given
    here are those of the environment.
    """

    name: str
    prefix: str = ""
    endpoint_url: str | None = None
    region: str | None = None
    access_key: str | None = field(default=None, repr=False)
    secret_key: str | None = field(default=None, repr=False)

    def __str__(self) -> str:
        whole = "/".join(filter(None, ("s3:/", self.name, self.prefix.strip("/"))))
        return f"{whole} at {self.endpoint_url}" if self.endpoint_url else whole

    @classmethod
    def of(cls, storage: Mapping[str, Any]) -> BucketPlace:
        """The place that a `storage` object of type s3 describes."""
        names = ("prefix", "endpoint_url", "access_key", "secret_key")
        given = {name: str(storage[name]) for name in names if storage.get(name) is not None}
        return cls(str(storage["bucket"]), **given)


class Bucket:
    """Requests on the objects of one place; may be used by many threads at once.

    Every method raises BucketMissing, and BucketFailed for what repeats did not mend.
    """

    def __init__(self, place: BucketPlace, client: Any = None) -> None:
        """Raises BucketFailed without boto3 and for a place that cannot be."""
        self.place = place
        self._client = connected(place) if client is None else client
        self._below = f"{place.prefix.strip('/')}/" if place.prefix.strip("/") else ""

    def write(
        self,
        key: str,
        content: Iterable[bytes],
        *,
        if_absent: bool = False,
        part_bytes: int = PART_BYTES,
    ) -> bool:
        """Writes an object whole or not at all; with `if_absent` False where there is one already.

        What is longer than a part goes in several, some of them at once. Whatever `content` raises
        is raised, and nothing is written then.
        """
        parts = _parts(content, part_bytes)
        first, second = next(parts, b""), next(parts, None)
        condition = _ANYTHING_THERE if if_absent else {}
        token = secrets.token_hex(16)
        with self._translated(key):
            if second is None:
                return self._put(key, first, token, condition)
            return self._put_in_parts(key, chain((first, second), parts), token, condition)

    def read(self, key: str, start: int = 0, end: int | None = None) -> Iterator[bytes]:
        """The bytes from `start` to before the later `end`, in blocks, or to the object's end.

        The object is opened by the call. Raises KeyMissing.
        """
        return self._blocks(key, start, self._asked(key, start, end))

    def fetch(self, key: str, destination: Path) -> None:
        """Copies an object to a file, in parts of which some are read at once. Raises KeyMissing.

        All are of one content: a replacement meanwhile is an error.
        """
        first = self._asked(key, 0, PART_BYTES)
        destination.write_bytes(b"")
        if first is None:
            return
        etag, size = first["ETag"], int(first["ContentRange"].rpartition("/")[2])

        def copy(start: int) -> None:
            end = start + PART_BYTES
            answer = self._asked(key, start, end, etag) if start else first
            with destination.open("r+b") as file:
                file.seek(start)
                file.writelines(self._blocks(key, start, answer))

        with ThreadPoolExecutor(PARTS_AT_ONCE) as pool:
            _wait_for_all([pool.submit(copy, start) for start in range(0, size, PART_BYTES)])

    def size(self, key: str) -> int | None:
        """The object's bytes; None where there is none."""
        found = self._head(key)
        return None if found is None else int(found["ContentLength"])

    def listed(self, beginning: str) -> Iterator[tuple[str, int]]:
        """Keys that begin so, in no particular order, and their sizes."""
        with self._translated(beginning):
            for page in self._pages("list_objects_v2", beginning):
                for found in page.get("Contents", ()):
                    yield found["Key"].removeprefix(self._below), int(found["Size"])

    def delete(self, key: str) -> None:
        """Removes an object; one that is gone already is no error."""
        with self._translated(key):
            self._client.delete_object(**self._named(key))

    def abandon_uploads(self, beginning: str) -> None:
        """Removes the parts of objects that were begun, but never completed, under such keys."""
        with self._translated(beginning):
            try:
                for page in self._pages("list_multipart_uploads", beginning):
                    for found in page.get("Uploads", ()):
                        self._abandon(found["Key"].removeprefix(self._below), found["UploadId"])
            except _client_error() as error:
                if _code(error) not in _LACKING:
                    raise

    def signed_get(self, key: str, seconds: int) -> str:
        """A URL by which anybody may read the object, as a download, for that long."""
        params = {"ResponseContentDisposition": "attachment", **self._named(key)}
        with self._translated(key):
            url: str = self._signing.generate_presigned_url("get_object", params, seconds)
            return url

    def signed_put(
        self, key: str, seconds: int, size: int, sha256: str
    ) -> tuple[str, dict[str, str]]:
        """A URL by which anybody may write that content, and the headers that belong to it."""
        checksum = base64.b64encode(bytes.fromhex(sha256)).decode()
        params = {"ContentLength": size, "ChecksumSHA256": checksum, **self._named(key)}
        with self._translated(key):
            url = self._signing.generate_presigned_url("put_object", params, seconds)
        return url, {"Content-Length": str(size), "x-amz-checksum-sha256": checksum}

    @cached_property
    def _signing(self) -> Any:
        """The client that signs URLs: a signature is good in the bucket's own region only."""
        if self.place.region or self.place.endpoint_url:
            return self._client
        found = self._client.head_bucket(Bucket=self.place.name)
        return connected(replace(self.place, region=found["BucketRegion"]))

    def _put(self, key: str, body: bytes, token: str, condition: Mapping[str, str]) -> bool:
        failures = 0
        while True:
            try:
                self._client.put_object(
                    **self._named(key), Body=body, Metadata={_TOKEN: token}, **condition
                )
                return True
            except _client_error() as error:
                if (written := self._settled(key, token, error)) is not None:
                    return written
                failures += 1
                if not _is_conflict(error) or failures >= ATTEMPTS_MAX:
                    raise
            time.sleep(backoff_seconds(failures))

    def _put_in_parts(
        self, key: str, parts: Iterable[bytes], token: str, condition: Mapping[str, str]
    ) -> bool:
        named = self._named(key)
        upload = self._client.create_multipart_upload(**named, Metadata={_TOKEN: token})["UploadId"]
        written = False
        try:
            sent = {"Parts": self._sent(key, upload, parts)}
            try:
                self._client.complete_multipart_upload(
                    **named, UploadId=upload, MultipartUpload=sent, **condition
                )
                written = True
            except _client_error() as error:
                settled = self._settled(key, token, error)
                if settled is None:
                    raise
                written = settled
            return written
        finally:
            if not written:
                with suppress(Exception):
                    self._abandon(key, upload)

    def _sent(self, key: str, upload: str, parts: Iterable[bytes]) -> list[dict[str, Any]]:
        """Sends all parts and returns what completes them; none is on its way after an error."""

        def send(number: int, part: bytes) -> dict[str, Any]:
            answer = self._client.upload_part(
                **self._named(key), UploadId=upload, PartNumber=number, Body=part
            )
            sums = {name: it for name, it in answer.items() if name.startswith("Checksum")}
            return {"PartNumber": number, "ETag": answer["ETag"], **sums}

        sent: list[dict[str, Any]] = []
        running: deque[Future[dict[str, Any]]] = deque()
        with ThreadPoolExecutor(PARTS_AT_ONCE) as pool:
            for number, part in enumerate(parts, 1):
                if len(running) == PARTS_AT_ONCE:
                    sent.append(running.popleft().result())
                running.append(pool.submit(send, number, part))
            return [*sent, *(it.result() for it in running)]

    def _settled(self, key: str, token: str, error: Any) -> bool | None:
        """Whether a write that failed wrote what is there; None where nothing is settled.

        A repeat of a write whose answer was lost finds its own object in its way, or its upload
        gone; the token tells that from another's object.
        """
        code = _code(error)
        if code not in ("PreconditionFailed", "ConditionalRequestConflict", "NoSuchUpload"):
            return None
        found = self._head(key)
        if found is None:
            return None
        if found.get("Metadata", {}).get(_TOKEN) == token:
            return True
        return None if code == "NoSuchUpload" else False

    def _head(self, key: str) -> Mapping[str, Any] | None:
        with self._translated(key):
            try:
                found: Mapping[str, Any] = self._client.head_object(**self._named(key))
                return found
            except _client_error() as error:
                if _status(error) == 404:
                    return None
                raise

    def _blocks(self, key: str, start: int, answer: Any) -> Iterator[bytes]:
        """What the answer holds, from `start` on; what breaks off is asked for from there on."""
        failures = 0
        while answer is not None:
            end = start + answer["ContentLength"]
            try:
                with self._translated(key), closing(answer["Body"]) as body:
                    while block := body.read(_BLOCK_BYTES):
                        start += len(block)
                        yield block
                return
            except BucketFailed as error:
                failures += 1
                if not isinstance(error.__cause__, _broken_off()) or failures >= ATTEMPTS_MAX:
                    raise
            time.sleep(backoff_seconds(failures))
            answer = self._asked(key, start, end, answer["ETag"]) if start < end else None

    def _asked(
        self, key: str, start: int = 0, end: int | None = None, etag: str | None = None
    ) -> Any:
        """The answer whose body is to be read; None for a range behind the object's end.

        With an ETag, only if the object is still of that content.
        """
        asked = self._named(key)
        if start > 0 or end is not None:
            asked["Range"] = f"bytes={start}-{'' if end is None else end - 1}"
        if etag is not None:
            asked["IfMatch"] = etag
        with self._translated(key):
            try:
                return self._client.get_object(**asked)
            except _client_error() as error:
                if _code(error) == "InvalidRange":
                    return None
                raise

    def _pages(self, operation: str, beginning: str) -> Iterable[Mapping[str, Any]]:
        pages: Iterable[Mapping[str, Any]] = self._client.get_paginator(operation).paginate(
            Bucket=self.place.name, Prefix=self._below + beginning
        )
        return pages

    def _abandon(self, key: str, upload: str) -> None:
        self._client.abort_multipart_upload(**self._named(key), UploadId=upload)

    def _named(self, key: str) -> dict[str, str]:
        return {"Bucket": self.place.name, "Key": self._below + key}

    @contextmanager
    def _translated(self, key: str) -> Iterator[None]:
        from botocore.exceptions import BotoCoreError

        try:
            yield
        except (_client_error(), BotoCoreError) as error:
            raise self._failure(key, error) from error

    def _failure(self, key: str, error: Any) -> OSError:
        code = _code(error)
        if code == "NoSuchBucket":
            return BucketMissing(f"there is no bucket {self.place.name}")
        if code == "NoSuchKey":
            return KeyMissing(f"there is nothing under {self._below}{key} in {self.place.name}")
        remedy = f"; {_REMEDIES[code]}" if code in _REMEDIES else ""
        kind = WriteConflict if _is_conflict(error) else BucketFailed
        return kind(f"{key!r:.200} in {self.place}: {error}{remedy}")


@lru_cache(maxsize=64)
def bucket_of(place: BucketPlace) -> Bucket:
    """The bucket at a place, made once. Raises BucketFailed as a Bucket does."""
    return Bucket(place)


def connected(place: BucketPlace) -> Any:
    """A client of botocore for the place. Raises BucketFailed as a Bucket does."""
    try:
        from botocore.config import Config
        from botocore.exceptions import BotoCoreError, NoCredentialsError

        from detcloud.aws import session
    except ImportError:
        text = f"{place} cannot be used without boto3; install it with pip install 'detcloud[aws]'"
        raise BucketFailed(text) from None
    # Buckets as host names: signed URLs would lead to no region else, and from there be redirected.
    own: dict[str, Any] = {"s3": {"addressing_style": "virtual"}}
    # Stores other than Amazon's may know neither those nor the newer checksums.
    others = {
        "s3": {"addressing_style": "path"},
        "request_checksum_calculation": "when_required",
        "response_checksum_validation": "when_required",
    }
    config = Config(
        signature_version="s3v4",
        retries={"mode": "standard", "total_max_attempts": ATTEMPTS_MAX},
        connect_timeout=CONNECT_SECONDS_MAX,
        read_timeout=READ_SECONDS_MAX,
        max_pool_connections=CONNECTIONS_MAX,
        **(others if place.endpoint_url else own),
    )
    if (place.access_key is None) != (place.secret_key is None):
        raise BucketFailed(f"{place} cannot be used: access_key and secret_key belong together")
    try:
        opened = session()
        if place.access_key is not None:
            opened.set_credentials(place.access_key, place.secret_key)
        if opened.get_credentials() is None:
            raise NoCredentialsError
        return opened.create_client(
            "s3", config=config, endpoint_url=place.endpoint_url, region_name=place.region
        )
    except (BotoCoreError, ValueError) as error:
        remedy = _REMEDIES.get(type(error).__name__, "")
        raise BucketFailed(f"{place} cannot be used: {error}; {remedy}".rstrip("; ")) from None


def _parts(content: Iterable[bytes], part_bytes: int) -> Iterator[bytes]:
    """The content anew, in parts of which only the last is shorter."""
    held = bytearray()
    for block in content:
        left = memoryview(block)
        while left:
            room = part_bytes - len(held)
            held += left[:room]
            left = left[room:]
            if len(held) == part_bytes:
                yield bytes(held)
                held.clear()
    if held:
        yield bytes(held)


def _wait_for_all(futures: Iterable[Future[Any]]) -> None:
    """Waits until none runs, beginning none once one has failed, and raises the first failure."""
    waiting = list(futures)
    try:
        for future in waiting:
            future.result()
    except BaseException:
        for future in waiting:
            future.cancel()
        raise


def _client_error() -> Any:
    from botocore.exceptions import ClientError

    return ClientError


def _broken_off() -> Any:
    from botocore.exceptions import HTTPClientError, IncompleteReadError

    return (HTTPClientError, IncompleteReadError)


def _code(error: Any) -> str:
    """What S3 calls an error that it answered, or else what botocore does."""
    answered = getattr(error, "response", {}) or {}
    return str(answered.get("Error", {}).get("Code") or type(error).__name__)


def _status(error: Any) -> int:
    return int(error.response.get("ResponseMetadata", {}).get("HTTPStatusCode", 0))


def _is_conflict(error: Any) -> bool:
    conflicts = ("PreconditionFailed", "ConditionalRequestConflict", "OperationAborted")
    return _code(error) in conflicts
