"""Requests to one bucket of Amazon S3, or of a store that speaks its protocol. The cluster's object
store and the stores of checkpoints are made of them.

Botocore repeats what was throttled, broken off or not answered, with pauses that grow. All requests
may be repeated; a write that must be the first carries a token by which a repeat recognises its own
object when the answer was lost. Botocore takes a fifth of a second to import, so the first bucket
loads it (docs/benchmarks.md: the cold starts, "a trial's process, plain").
"""

from __future__ import annotations

import base64
import secrets
import time
from collections.abc import Iterable, Iterator, Mapping
from contextlib import closing, contextmanager, suppress
from dataclasses import replace
from functools import cached_property, lru_cache
from itertools import chain
from pathlib import Path
from typing import Any

from detcloud.shared.body_checksums import BodyChecksums
from detcloud.shared.bucket_errors import (
    BUSY_STATUSES,
    BucketError,
    NoSuchBucket,
    NoSuchKey,
    StoreBusy,
    WriteConflict,
)
from detcloud.shared.bucket_place import BucketPlace
from detcloud.shared.file_parts import FilePart, open_source
from detcloud.shared.http import backoff_seconds
from detcloud.shared.s3_errors import (
    client_error,
    error_code,
    http_status,
    is_conflict,
    remedy_of,
    transfer_errors,
)
from detcloud.shared.transfers import (
    FETCHED_BYTES,
    PART_BYTES,
    call_at_once,
    fetch_parts,
    part_bytes_of,
    parts_at_once,
    split_parts,
)

PARTS_MAX = 10_000
# Of a file that is sent, a block of each part is in memory.
SENT_PART_BYTES = 8 << 20
SENT_AT_ONCE = 10
ATTEMPTS_MAX = 6
CONNECT_SECONDS_MAX = 10
READ_SECONDS_MAX = 60
# Requests at once of all threads of a process that answers many.
CONNECTIONS_MAX = 32

_BLOCK_BYTES = 256 * 1024
_WRITES_MAX = 3
_TOKEN = "detcloud-put"
_ANYTHING_THERE = {"IfNoneMatch": "*"}
# Error codes of stores that speak a part of the protocol, and so keep no uploads to be listed.
_UNSUPPORTED = ("NotImplemented", "MethodNotAllowed")


class Bucket:
    """Requests on the objects of one place; may be used by many threads at once.

    Every method raises NoSuchBucket, and BucketError for what repeats did not mend.
    """

    def __init__(self, place: BucketPlace, client: Any = None) -> None:
        """`client` is one of botocore. BucketError without boto3 and for a place that cannot be."""
        self.place = place
        self._client = new_client(place) if client is None else client
        self._checksums = BodyChecksums(is_amazons_own=not place.endpoint_url)
        self._key_prefix = f"{place.prefix.strip('/')}/" if place.prefix.strip("/") else ""

    def write(
        self,
        key: str,
        content: Iterable[bytes],
        *,
        if_absent: bool = False,
        part_bytes: int = PART_BYTES,
    ) -> bool:
        """Write an object whole or not at all; with `if_absent` False where there is one already.

        What is longer than a part goes in several, some of them at once. Whatever `content` raises
        is raised, and nothing is written then.
        """
        parts = split_parts(content, part_bytes)
        first, second = next(parts, b""), next(parts, None)
        condition = _ANYTHING_THERE if if_absent else {}
        token = secrets.token_hex(16)
        with self._translate_errors(key):
            if second is None:
                return self._put_object(key, first, token, condition)
            content = chain((first, second), parts)
            at_once = parts_at_once(part_bytes)
            return self._put_in_parts(key, content, at_once, token, condition)

    def send(self, key: str, source: Path) -> bool:
        """Write a file's content as an object, whole or not at all; False where there is one."""
        token, failures = secrets.token_hex(16), 0
        while True:
            try:
                with self._translate_errors(key), open_source(source) as file:
                    part_bytes = part_bytes_of(file.size, PARTS_MAX, SENT_PART_BYTES)
                    if file.size <= part_bytes:
                        return self._put_object(key, file.read_whole(), token, _ANYTHING_THERE)
                    parts = file.parts(part_bytes)
                    return self._put_in_parts(key, parts, SENT_AT_ONCE, token, _ANYTHING_THERE)
            except WriteConflict:
                failures += 1
                if failures == _WRITES_MAX:
                    raise
            time.sleep(backoff_seconds(failures))

    def read(self, key: str, start: int = 0, end: int | None = None) -> Iterator[bytes]:
        """The bytes from `start` to before the later `end`, in blocks, or to the object's end.

        The object is opened by the call. Raises NoSuchKey.
        """
        return self._blocks(key, start, self._get_object(key, start, end))

    def open(self, key: str) -> tuple[int, Iterator[bytes]]:
        """Open an object: its size in bytes, and its bytes in blocks. Raises NoSuchKey."""
        answer = self._get_object(key)
        return int(answer["ContentLength"]), self._blocks(key, 0, answer)

    def fetch(self, key: str, destination: Path) -> None:
        """Copy an object to a file, several parts at a time. Raises NoSuchKey.

        All parts are of one version of the object: a replacement meanwhile is an error.
        """
        first = self._get_object(key, 0, FETCHED_BYTES)
        if first is None:
            destination.write_bytes(b"")
            return
        etag, size = first["ETag"], int(first["ContentRange"].rpartition("/")[2])

        def read(start: int, end: int) -> Iterator[bytes]:
            return self._blocks(
                key, start, self._get_object(key, start, end, etag) if start else first
            )

        fetch_parts(destination, size, FETCHED_BYTES, read)

    def object_size(self, key: str) -> int | None:
        """The object's size in bytes; None where there is none."""
        head = self._head_object(key)
        return None if head is None else int(head["ContentLength"])

    def list_objects(self, prefix: str) -> Iterator[tuple[str, int]]:
        """The keys with that prefix, in no particular order, and their sizes in bytes."""
        with self._translate_errors(prefix):
            for page in self._pages("list_objects_v2", prefix):
                for entry in page.get("Contents", ()):
                    yield entry["Key"].removeprefix(self._key_prefix), int(entry["Size"])

    def delete(self, key: str) -> None:
        """Remove an object; one that is gone already is no error."""
        with self._translate_errors(key):
            self._client.delete_object(**self._object_arguments(key))

    def abort_uploads(self, prefix: str) -> None:
        """Abort every multipart upload under keys with that prefix and remove its parts."""
        try:
            for upload in self.uploads_below(prefix):
                self.request(
                    "abort_multipart_upload", upload["Key"], {"UploadId": upload["UploadId"]}
                )
        except BucketError as error:
            if error_code(error.__cause__) not in _UNSUPPORTED:
                raise

    def signed_get_url(self, key: str, seconds: int) -> str:
        """A URL by which anybody may read the object, as a download, for that long."""
        params = {"ResponseContentDisposition": "attachment"}
        return self.signed_url("get_object", key, params, seconds)

    def signed_put_url(
        self, key: str, seconds: int, size: int, sha256: str, md5: str = ""
    ) -> tuple[str, dict[str, str]]:
        """A URL by which anybody may write that content for so long, and its headers. Stores other
        than Amazon's may compare the `md5` alone.
        """
        checksum = base64.b64encode(bytes.fromhex(sha256)).decode()
        params: dict[str, Any] = {"ContentLength": size, "ChecksumSHA256": checksum}
        headers = {"Content-Length": str(size), "x-amz-checksum-sha256": checksum}
        if md5 and self.place.endpoint_url:
            params["ContentMD5"] = base64.b64encode(bytes.fromhex(md5)).decode()
            headers["Content-MD5"] = params["ContentMD5"]
        return self.signed_url("put_object", key, params, seconds), headers

    def signed_url(self, name: str, key: str, arguments: Mapping[str, Any], seconds: int) -> str:
        """Sign a request on the key, by botocore's name for it, for so long."""
        named = {**arguments, **self._object_arguments(key)}
        with self._translate_errors(key):
            url: str = self._signing_client.generate_presigned_url(name, named, seconds)
            return url

    def request(self, name: str, key: str, arguments: Mapping[str, Any]) -> Mapping[str, Any]:
        """Send a request on the key, by botocore's name for it; its answer."""
        with self._translate_errors(key):
            answer: Mapping[str, Any] = getattr(self._client, name)(
                **arguments, **self._object_arguments(key)
            )
            return answer

    def uploads_below(self, prefix: str) -> Iterator[Mapping[str, Any]]:
        """The unfinished uploads in parts under keys with that prefix, as S3 describes them."""
        with self._translate_errors(prefix):
            for page in self._pages("list_multipart_uploads", prefix):
                for upload in page.get("Uploads", ()):
                    yield {**upload, "Key": upload["Key"].removeprefix(self._key_prefix)}

    @cached_property
    def _signing_client(self) -> Any:
        """The client that signs URLs, of the bucket's own region: they are valid nowhere else."""
        if self.place.region or self.place.endpoint_url:
            return self._client
        head = self._client.head_bucket(Bucket=self.place.name)
        return new_client(replace(self.place, region=head["BucketRegion"]))

    def _put_object(self, key: str, body: bytes, token: str, condition: Mapping[str, str]) -> bool:
        failures = 0
        while True:
            try:
                self._client.put_object(
                    **self._object_arguments(key),
                    Body=body,
                    Metadata={_TOKEN: token},
                    **self._checksums.object_fields(body),
                    **condition,
                )
                return True
            except client_error() as error:
                if (written := self._outcome_of_failed_write(key, token, error)) is not None:
                    return written
                failures += 1
                if not is_conflict(error) or failures >= ATTEMPTS_MAX:
                    raise
            time.sleep(backoff_seconds(failures))

    def _put_in_parts(
        self,
        key: str,
        parts: Iterable[bytes | FilePart],
        at_once: int,
        token: str,
        condition: Mapping[str, str],
    ) -> bool:
        named = self._object_arguments(key)
        announced = {"Metadata": {_TOKEN: token}, **self._checksums.upload_fields()}
        upload = self._client.create_multipart_upload(**named, **announced)["UploadId"]
        written = False

        def send(numbered: tuple[int, bytes | FilePart]) -> dict[str, Any]:
            return self._upload_part(key, upload, *numbered)

        try:
            sent = call_at_once(send, enumerate(parts, 1), at_once)
            try:
                self._client.complete_multipart_upload(
                    **named, UploadId=upload, MultipartUpload={"Parts": sent}, **condition
                )
                written = True
            except client_error() as error:
                outcome = self._outcome_of_failed_write(key, token, error)
                if outcome is None:
                    raise
                written = outcome
            return written
        finally:
            if not written:
                with suppress(Exception):
                    self.request("abort_multipart_upload", key, {"UploadId": upload})

    def _upload_part(
        self, key: str, upload: str, number: int, part: bytes | FilePart
    ) -> dict[str, Any]:
        """Send one part; what completes the upload has of it."""
        named = {**self._object_arguments(key), "UploadId": upload, "PartNumber": number}

        def request(digests: Mapping[str, str]) -> Mapping[str, Any]:
            answer: Mapping[str, Any] = self._client.upload_part(**named, Body=part, **digests)
            return answer

        answer = self._checksums.send_part(part, request)
        sums = {name: item for name, item in answer.items() if name.startswith("Checksum")}
        return {"PartNumber": number, "ETag": answer["ETag"], **sums}

    def _outcome_of_failed_write(self, key: str, token: str, error: Any) -> bool | None:
        """Whether a failed write created the existing object; None if that is not known.

        After a lost answer, a repeated write finds its own object, or its upload gone. The token
        distinguishes its own object from another writer's.
        """
        code = error_code(error)
        if code not in ("PreconditionFailed", "ConditionalRequestConflict", "NoSuchUpload"):
            return None
        head = self._head_object(key)
        if head is None:
            return None
        if head.get("Metadata", {}).get(_TOKEN) == token:
            return True
        return None if code == "NoSuchUpload" else False

    def _head_object(self, key: str) -> Mapping[str, Any] | None:
        with self._translate_errors(key):
            try:
                head: Mapping[str, Any] = self._client.head_object(**self._object_arguments(key))
                return head
            except client_error() as error:
                if http_status(error) == 404:
                    return None
                raise

    def _blocks(self, key: str, start: int, answer: Any) -> Iterator[bytes]:
        """The answer's bytes from `start` on; where it breaks off, the rest is requested again."""
        failures = 0
        while answer is not None:
            end = start + answer["ContentLength"]
            try:
                with self._translate_errors(key), closing(answer["Body"]) as body:
                    while block := body.read(_BLOCK_BYTES):
                        start += len(block)
                        yield block
                return
            except BucketError as error:
                failures += 1
                if not isinstance(error.__cause__, transfer_errors()) or failures >= ATTEMPTS_MAX:
                    raise
            time.sleep(backoff_seconds(failures))
            answer = self._get_object(key, start, end, answer["ETag"]) if start < end else None

    def _get_object(
        self, key: str, start: int = 0, end: int | None = None, etag: str | None = None
    ) -> Any:
        """The answer whose body is to be read; None for a range behind the object's end.

        With an ETag, only if the object is still of that content.
        """
        request = self._object_arguments(key)
        if start > 0 or end is not None:
            request["Range"] = f"bytes={start}-{'' if end is None else end - 1}"
        if etag is not None:
            request["IfMatch"] = etag
        with self._translate_errors(key):
            try:
                return self._client.get_object(**request)
            except client_error() as error:
                if error_code(error) == "InvalidRange":
                    return None
                raise

    def _pages(self, operation: str, prefix: str) -> Iterable[Mapping[str, Any]]:
        pages: Iterable[Mapping[str, Any]] = self._client.get_paginator(operation).paginate(
            Bucket=self.place.name, Prefix=self._key_prefix + prefix
        )
        return pages

    def _object_arguments(self, key: str) -> dict[str, str]:
        return {"Bucket": self.place.name, "Key": self._key_prefix + key}

    @contextmanager
    def _translate_errors(self, key: str) -> Iterator[None]:
        from botocore.exceptions import BotoCoreError

        try:
            yield
        except (client_error(), BotoCoreError) as error:
            raise self._bucket_error(key, error) from error

    def _bucket_error(self, key: str, error: Any) -> OSError:
        code = error_code(error)
        if code == "NoSuchBucket":
            return NoSuchBucket(f"there is no bucket {self.place.name}")
        if code == "NoSuchKey":
            return NoSuchKey(f"there is nothing under {self._key_prefix}{key} in {self.place.name}")
        remedy = remedy_of(error)
        kind = BucketError
        if is_conflict(error):
            kind = WriteConflict
        elif http_status(error) in BUSY_STATUSES:
            kind = StoreBusy
        return kind(f"{key!r:.200} in {self.place}: {error}{remedy and f'; {remedy}'}")


@lru_cache(maxsize=64)
def bucket_of(place: BucketPlace) -> Bucket:
    """The bucket at a place, made once. Raises BucketError as a Bucket does."""
    return Bucket(place)


def new_client(place: BucketPlace, *, for_checkpoints: bool = False) -> Any:
    """A client of botocore for the place. Raises BucketError as a Bucket does.

    That of a trial's checkpoints has none of the settings that the user's code finds in its
    environment.
    """
    try:
        from botocore.config import Config
        from botocore.exceptions import BotoCoreError, NoCredentialsError

        from detcloud.shared.aws import new_session, new_storage_session
    except ImportError:
        text = f"{place} cannot be used without boto3; install it with pip install 'detcloud[aws]'"
        raise BucketError(text) from None
    # Buckets as host names: signed URLs would lead to no region else, and from there be redirected.
    amazon: dict[str, Any] = {"s3": {"addressing_style": "virtual"}}
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
        ignore_configured_endpoint_urls=for_checkpoints,
        **(others if place.endpoint_url else amazon),
    )
    if (place.access_key is None) != (place.secret_key is None):
        raise BucketError(f"{place} cannot be used: access_key and secret_key must be set together")
    try:
        session = new_storage_session() if for_checkpoints else new_session()
        if place.access_key is not None:
            session.set_credentials(place.access_key, place.secret_key)
        if session.get_credentials() is None:
            raise NoCredentialsError
        client = session.create_client(
            "s3", config=config, endpoint_url=place.endpoint_url, region_name=place.region
        )
        if place.endpoint_url:
            client.meta.events.register_first("needs-retry.s3", _refuse_redirect)
        return client
    except (BotoCoreError, ValueError) as error:
        remedy = remedy_of(error, for_checkpoints=for_checkpoints)
        raise BucketError(f"{place} cannot be used: {error}; {remedy}".rstrip("; ")) from None


def _refuse_redirect(response: tuple[Any, Any] | None, **context: object) -> None:
    """Raise BucketError where another store than Amazon's answers by a redirect. Botocore takes it
    for one of Amazon's between regions, and asks that store again and again where to go.
    """
    status = 0 if response is None or response[0] is None else response[0].status_code
    if 300 <= status < 400:
        raise BucketError(
            f"the store answers with a redirect ({status}), which is not followed; check its "
            "endpoint_url"
        )
