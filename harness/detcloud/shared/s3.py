"""Requests to a bucket of Amazon S3 or of an S3-compatible store.

The cluster's object store and the checkpoint stores use this module. Botocore repeats throttled,
broken and unanswered requests with growing pauses. Each write carries a token, by which a repeated
conditional write recognizes its own object after a lost answer. Botocore takes 0.2 s to import, so
the first bucket imports it (docs/benchmarks.md: the cold starts, "a trial's process, plain").
"""

from __future__ import annotations

import base64
import secrets
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from functools import cached_property, lru_cache
from itertools import chain
from pathlib import Path
from typing import Any

from detcloud.shared.bucket_errors import BucketError, NoSuchKey, WriteConflict
from detcloud.shared.bucket_place import BucketPlace
from detcloud.shared.file_parts import open_source
from detcloud.shared.http import backoff_seconds
from detcloud.shared.s3_client import new_client
from detcloud.shared.s3_errors import (
    may_be_refusal,
)
from detcloud.shared.s3_features import Feature, StoreFeatures
from detcloud.shared.s3_limits import S3_LIMITS, S3Limits
from detcloud.shared.s3_reading import ObjectReader
from detcloud.shared.s3_requests import S3Requests
from detcloud.shared.s3_versions import S3Versions
from detcloud.shared.s3_writing import ObjectWriter
from detcloud.shared.transfers import (
    PART_BYTES,
    Digest,
    part_bytes_of,
    parts_at_once,
    split_parts,
)

PARTS_MAX = 10_000

_WRITES_MAX = 3
_TOKEN = "detcloud-put"
_ANYTHING_THERE = {"IfNoneMatch": "*"}


class Bucket:
    """The objects of a bucket. Keys are relative to the place's prefix. Thread-safe.

    Botocore repeats throttled, broken and unanswered requests, also writes, up to ATTEMPTS_MAX
    attempts with growing pauses. Then every method raises bucket errors in place of botocore's:
    NoSuchBucket without the bucket, StoreBusy if the store requests fewer requests, WriteConflict
    if another writer was faster, and BucketError for other failures. Only methods that say so raise
    NoSuchKey. Errors of local files are passed on as OSError.

    Each call that writes is a writer of its own: an object of an earlier call counts as another
    writer's. A store that ignores conditions may replace an object that is created during a write.
    """

    def __init__(
        self, place: BucketPlace, client: Any = None, *, limits: S3Limits = S3_LIMITS
    ) -> None:
        """Create a client. `client` is a botocore client to use instead of a new one.

        Nothing is sent to the store. Raise BucketError if boto3 or credentials are missing, or if
        the place is invalid.
        """
        self.place = place
        self._limits = limits
        self._client = new_client(place) if client is None else client
        self.features = StoreFeatures(is_amazons_own=not place.endpoint_url)
        self._requests = S3Requests(place, self._client, self.features)
        self._writer = ObjectWriter(self._requests)
        self._reader = ObjectReader(
            self._requests.send, self._requests.translate_errors, self.features, self.object_size
        )
        self._key_prefix = place.key_prefix

    def write(
        self,
        key: str,
        content: Iterable[bytes],
        *,
        if_absent: bool = False,
        part_bytes: int = PART_BYTES,
    ) -> bool:
        """Write an object, completely or not at all. Return whether the object was written.

        Without `if_absent`, replace an existing object. With `if_absent`, return False, and change
        nothing, if another writer's object exists, even with equal content; `content` may be read
        to the end nevertheless. Empty content gives an empty object. Content above `part_bytes` is
        sent in parts, several at a time. Errors of `content` are passed on, and then nothing is
        written. WriteConflict is raised at once in parts, else after ATTEMPTS_MAX attempts.
        """
        parts = split_parts(content, part_bytes)
        first, second = next(parts, b""), next(parts, None)
        condition = _ANYTHING_THERE if if_absent else {}
        token = secrets.token_hex(16)
        with self._requests.translate_errors(key):
            if second is None:
                return self._writer.put_object(key, first, token, condition)
            content = chain((first, second), parts)
            at_once = min(parts_at_once(part_bytes), self._limits.written_at_once)
            return self._writer.put_in_parts(key, content, at_once, token, condition)

    def send(self, key: str, source: Path) -> bool:
        """Upload a file as a new object, completely or not at all. Return True.

        Return False, and change nothing, if another writer's object exists, even with equal
        content. Large files are sent in parts, several at a time. After a WriteConflict, repeat the
        whole upload up to twice, with pauses. After an error, stored parts are deleted if possible.
        Raise BucketError also if the file is no regular file or becomes shorter, and OSError if the
        file is missing or cannot be opened. Links are followed.
        """
        token, failures, limits = secrets.token_hex(16), 0, self._limits
        while True:
            try:
                with self._requests.translate_errors(key), open_source(source) as file:
                    part_bytes = part_bytes_of(file.size, PARTS_MAX, limits.sent_part_bytes)
                    if file.size <= part_bytes:
                        content = file.read_whole()
                        return self._writer.put_object(key, content, token, _ANYTHING_THERE)
                    parts = file.parts(part_bytes)
                    return self._writer.put_in_parts(
                        key, parts, limits.sent_at_once, token, _ANYTHING_THERE
                    )
            except WriteConflict:
                failures += 1
                if failures == _WRITES_MAX:
                    raise
            time.sleep(backoff_seconds(failures))

    def read(self, key: str, start: int = 0, end: int | None = None) -> Iterator[bytes]:
        """Return the bytes from `start` to before `end`, in blocks. None means the object's end.

        This call opens the object, and the content is received during the iteration, once. The
        result yields nothing if `start` is at or behind the object's end, and stops at the end if
        `end` is behind. Raise NoSuchKey without the object. If an answer breaks off, the iterator
        requests the rest, with pauses. The iterator raises BucketError after ATTEMPTS_MAX failures
        or if the object is replaced meanwhile, and NoSuchKey if the object is deleted meanwhile.
        """
        return self._reader.read(key, start, end)

    def open(self, key: str) -> tuple[int, Iterator[bytes]]:
        """Open an object, and return the size in bytes and an iterator of blocks.

        This call opens the object, and requests the size if the answer has none. Raise NoSuchKey
        without the object. The iterator continues and raises errors as the result of `read` does.
        """
        content = self._reader.open(key)
        size = None if content is None else content.size
        if size is None:
            size = self.object_size(key)
        return size or 0, self._reader.blocks(key, content)

    def fetch(self, key: str, destination: Path, digest: Digest | None = None) -> None:
        """Copy an object to a file, several parts at a time. Replace an existing file.

        Use a single request at a time if the store lacks ranges. Answers that break off are
        continued as in `read`. Raise NoSuchKey without the object; the file then stays. Raise
        BucketError if the object is replaced meanwhile or not all bytes are received, and NoSuchKey
        if the object is deleted meanwhile; the file may then contain a part. Update `digest` with
        the content.
        """
        self._reader.fetch(key, destination, self._limits.fetched_part_bytes, digest)

    def object_size(self, key: str) -> int | None:
        """Return the object's size in bytes. Return None if no object exists.

        Return None also without the bucket, since S3 answers both alike. Without permission to list
        the bucket, S3 hides missing objects, and BucketError is raised in place of None.
        """
        head = self._requests.head(key)
        return None if head is None else int(self._requests.field(key, head, "ContentLength"))

    def list_objects(self, prefix: str) -> Iterator[tuple[str, int]]:
        """Yield the key and the size in bytes of each object with the prefix, in any order.

        `prefix` follows the place's prefix and may end within a name; "" means all objects below
        the place's prefix. Keys are relative to the place's prefix and include `prefix`. Pages of
        the list are requested during the iteration, which raises the errors.
        """
        with self._requests.translate_errors(prefix):
            for page in self._requests.pages("list_objects_v2", prefix):
                for entry in page.get("Contents", ()):
                    found = str(self._requests.field(prefix, entry, "Key"))
                    size = int(self._requests.field(found, entry, "Size"))
                    yield found.removeprefix(self._key_prefix), size

    def delete(self, key: str) -> None:
        """Delete an object. Do nothing if no object exists.

        A bucket with versions keeps earlier versions. A store that reports a missing object, unlike
        Amazon's, makes the call raise NoSuchKey. Parts of unfinished uploads stay.
        """
        with self._requests.translate_errors(key):
            self._client.delete_object(**self._requests.arguments(key))

    @property
    def versions(self) -> S3Versions:
        """The versions of the bucket's objects, if the bucket keeps versions."""
        return S3Versions(self._requests)

    def abort_uploads(self, prefix: str) -> None:
        """Abort every multipart upload under keys with the prefix, and delete the parts.

        Running uploads are aborted, too. An error, also of an upload that ended meanwhile, leaves
        further uploads. Do nothing if the store cannot list unfinished uploads.
        """
        if self.features.lacks(Feature.UPLOAD_LISTS):
            return
        for upload in self.uploads_below(prefix):
            self.request("abort_multipart_upload", upload["Key"], {"UploadId": upload["UploadId"]})

    def lists_uploads(self, key: str) -> bool:
        """Whether the store can list unfinished uploads and parts. Always True for Amazon's store.

        For another store, the first call begins an upload of the key `key`.try, searches the lists
        for it, and aborts it. This object keeps the result. Amazon's store gets no request. Raise
        BucketError, and keep no result, if the upload cannot be begun.
        """
        if not self.features.is_known(Feature.UPLOAD_LISTS):
            self._try_upload(f"{key}.try")
        return not self.features.lacks(Feature.UPLOAD_LISTS)

    def signed_get_url(self, key: str, seconds: int) -> str:
        """Return a URL that allows anybody to download the object, as a file, for `seconds`.

        Nothing is checked, so the object need not exist. The region is requested as in
        `signed_url`.
        """
        params = {"ResponseContentDisposition": "attachment"}
        return self.signed_url("get_object", key, params, seconds)

    def signed_put_url(
        self, key: str, seconds: int, size: int, sha256: str, md5: str = ""
    ) -> tuple[str, dict[str, str]]:
        """Return a URL that allows anybody to write the content, and the request's headers.

        The URL is valid for `seconds`, bound to the size and the hexadecimal digests, and replaces
        an existing object. The client must send the headers. `md5` is ignored for Amazon's store;
        other stores may only compare `md5`. The SHA-256 is omitted for a store that refuses it;
        then raise BucketError without an MD5. While its support is unknown, calls begin and abort
        an upload of `key`.try. Raise ValueError for a digest that is not hexadecimal.
        """
        params: dict[str, Any] = {"ContentLength": size}
        headers = {"Content-Length": str(size)}
        if md5 and not self.features.is_amazons_own:
            params["ContentMD5"] = base64.b64encode(bytes.fromhex(md5)).decode()
            headers["Content-MD5"] = params["ContentMD5"]
        if self._may_sign_checksums(key):
            params["ChecksumSHA256"] = base64.b64encode(bytes.fromhex(sha256)).decode()
            headers["x-amz-checksum-sha256"] = params["ChecksumSHA256"]
        elif not md5:
            raise BucketError(f"{key!r:.200} in {self.place}: the store takes no SHA-256")
        return self.signed_url("put_object", key, params, seconds), headers

    def signed_url(self, name: str, key: str, arguments: Mapping[str, Any], seconds: int) -> str:
        """Return a signed URL for a request on the key, valid for `seconds`.

        `name` is botocore's method, such as `get_object`; `arguments` are its other arguments. The
        first call requests the bucket's region, unless the place has a region or an endpoint. Else
        nothing is sent, so the object may be missing.
        """
        named = {**arguments, **self._requests.arguments(key)}
        with self._requests.translate_errors(key):
            url: str = self._signing_client.generate_presigned_url(name, named, seconds)
            return url

    def request(self, name: str, key: str, arguments: Mapping[str, Any]) -> Mapping[str, Any]:
        """Send a request on the key, and return the answer.

        `name` is botocore's method, such as `list_parts`; `arguments` are its other arguments.
        Optional fields that the store lacks or refuses are left out; a refused request is sent
        again without them. Raise NoSuchKey if the request needs an object and nothing is stored
        under the key. A missing upload raises BucketError.
        """
        return self._requests.request(name, key, arguments)

    def complete_upload(self, key: str, upload: str, parts: Sequence[Mapping[str, Any]]) -> bool:
        """Create an object from an upload's parts. Return True if the object was created.

        `upload` is the upload's id. `parts` have the fields PartNumber and ETag. A store other than
        Amazon's is first asked for an object, and False is returned if the key is taken. If the
        store itself detects an existing object, raise WriteConflict, also for an object of an
        earlier call. Both leave the upload. Raise BucketError for a missing upload or part. After a
        lost answer, an error may be raised although the object was created.
        """
        if self._writer.finds_object(key):
            return False
        named = {"UploadId": upload, "MultipartUpload": {"Parts": parts}, **_ANYTHING_THERE}
        self.request("complete_multipart_upload", key, named)
        return True

    def uploads_below(self, prefix: str) -> Iterator[Mapping[str, Any]]:
        """Yield S3's description of each unfinished upload under keys with the prefix.

        The field `Key` is relative to the place's prefix, as all keys. The pages are requested
        during the iteration. If a store other than Amazon's refuses the listing, yield nothing and
        record the missing feature.
        """
        try:
            with self._requests.translate_errors(prefix):
                for page in self._requests.pages("list_multipart_uploads", prefix):
                    for upload in page.get("Uploads", ()):
                        # Callers abort listed uploads, so other uploads must not be yielded.
                        if upload["Key"].startswith(self._key_prefix + prefix):
                            yield {**upload, "Key": upload["Key"].removeprefix(self._key_prefix)}
        except BucketError as error:
            if self.features.is_amazons_own or not may_be_refusal(error.__cause__):
                raise
            self.features.note(Feature.UPLOAD_LISTS, is_there=False)

    @cached_property
    def _signing_client(self) -> Any:
        """The client that signs URLs for the bucket's region, where alone the URLs are valid.

        With a region or an endpoint in the place, the bucket's other client is returned. Otherwise
        the store is asked for the region, once, and a new client is created. Raises botocore's
        errors, which the caller translates, and BucketError as `new_client` does. Errors are not
        cached.
        """
        if self.place.region or self.place.endpoint_url:
            return self._client
        head = self._client.head_bucket(Bucket=self.place.name)
        return new_client(replace(self.place, region=head["BucketRegion"]))

    def _try_upload(self, key: str) -> None:
        """Begin and abort an upload, and record whether the store lists uploads and parts.

        A refused list counts as a missing feature. Other errors are raised, and nothing is recorded
        then. Errors of the abortion are ignored.
        """
        with self._requests.translate_errors(key):
            upload = self._writer.begin_upload(key, {})
        try:
            found = {item["UploadId"] for item in self.uploads_below(key)}
            is_there = upload in found and self._lists_parts(key, upload)
            self.features.note(Feature.UPLOAD_LISTS, is_there=is_there)
        finally:
            with suppress(BucketError):
                self.request("abort_multipart_upload", key, {"UploadId": upload})

    def _lists_parts(self, key: str, upload: str) -> bool:
        try:
            self.request("list_parts", key, {"UploadId": upload})
        except (BucketError, NoSuchKey) as error:
            if not isinstance(error, NoSuchKey) and not may_be_refusal(error.__cause__):
                raise
            return False
        return True

    def _may_sign_checksums(self, key: str) -> bool:
        """Whether signed requests may contain a SHA-256. True unless the store refused checksums.

        While the support is unknown, each call begins and aborts an upload of the key `key`.try.
        Errors of the abortion are ignored, and errors of the beginning are raised.
        """
        if not self.features.is_known(Feature.CHECKSUMS):
            # Permission to write objects includes uploads, but not always the list of uploads.
            with self._requests.translate_errors(key):
                upload = self._writer.begin_upload(f"{key}.try", {})
            with suppress(BucketError):
                self.request("abort_multipart_upload", f"{key}.try", {"UploadId": upload})
        return not self.features.lacks(Feature.CHECKSUMS)


@lru_cache(maxsize=64)
def bucket_of(place: BucketPlace) -> Bucket:
    """Return the bucket at a place, from a cache of 64 buckets.

    Equal places get the same object, which the process keeps. Nothing is sent to the store. Raise
    BucketError as the constructor of Bucket does; errors are not cached.
    """
    return Bucket(place)
