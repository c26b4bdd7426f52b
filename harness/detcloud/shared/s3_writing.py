"""Writers of S3 objects, in a single request or in parts, with a token for conditional writes.

Each object is stored with the token of its writer. A write that was repeated after a lost answer
recognizes its own object by the token.
"""

from __future__ import annotations

import base64
import time
from collections.abc import Iterable, Mapping
from contextlib import suppress
from typing import Any

from detcloud.shared.body_checksums import BodyChecksums, md5_fields
from detcloud.shared.bucket_errors import BucketError
from detcloud.shared.file_parts import FilePart
from detcloud.shared.http import backoff_seconds
from detcloud.shared.s3_client import ATTEMPTS_MAX
from detcloud.shared.s3_errors import client_error, error_code, http_status, is_conflict
from detcloud.shared.s3_features import Feature
from detcloud.shared.s3_requests import S3Requests
from detcloud.shared.transfers import call_at_once

_TOKEN = "detcloud-put"


class ObjectWriter:
    """A writer of the objects of a bucket. Several threads may share the object.

    Methods raise botocore's errors, which callers translate by `S3Requests.translate_errors`. A
    look for an existing object raises bucket errors. The client repeats throttled, broken and
    unanswered requests as in S3Requests. A `token` identifies the writer, and is stored with the
    object.
    """

    def __init__(self, requests: S3Requests) -> None:
        self._requests = requests
        self._checksums = BodyChecksums(requests.features)

    def put_object(self, key: str, body: bytes, token: str, condition: Mapping[str, str]) -> bool:
        """Write an object with a single request. Return whether the object was written.

        `condition` are botocore's arguments that require a free key, or empty to replace an object.
        Return False if a condition is set and an object with another token exists. After a conflict
        with another writer, repeat the request with pauses, up to ATTEMPTS_MAX attempts, and then
        raise the error.
        """
        failures = 0
        while True:
            try:
                if condition and self.finds_object(key, token):
                    return False
                digests = self._checksums.object_fields(body)
                fields = {"Body": body, "Metadata": {_TOKEN: token}, **condition, **digests}
                self._requests.send("put_object", key, fields)
                return True
            except client_error() as error:
                if (written := self._outcome_of_failed_write(key, token, error)) is not None:
                    return written
                failures += 1
                if not is_conflict(error) or failures >= ATTEMPTS_MAX:
                    raise
            time.sleep(backoff_seconds(failures))

    def put_in_parts(
        self,
        key: str,
        parts: Iterable[bytes | FilePart],
        at_once: int,
        token: str,
        condition: Mapping[str, str],
    ) -> bool:
        """Write an object by an upload in parts. Return whether the object was written.

        At most `at_once` parts are sent at a time. `condition` are botocore's arguments that
        require a free key, or empty to replace an object. Return False if a condition is set and an
        object with another token exists; all parts were sent then. A conflict is not repeated.
        Errors of `parts` are passed on. Abort the upload, ignoring errors, unless the object was
        written.
        """
        upload = self.begin_upload(key, {"Metadata": {_TOKEN: token}})
        written = False

        def send(numbered: tuple[int, bytes | FilePart]) -> dict[str, Any]:
            return self._upload_part(key, upload, *numbered)

        try:
            sent = call_at_once(send, enumerate(parts, 1), at_once)
            try:
                if condition and self.finds_object(key, token):
                    return False
                fields = {"UploadId": upload, "MultipartUpload": {"Parts": sent}, **condition}
                self._requests.send("complete_multipart_upload", key, fields)
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
                    self._requests.request("abort_multipart_upload", key, {"UploadId": upload})

    def _upload_part(
        self, key: str, upload: str, number: int, part: bytes | FilePart
    ) -> dict[str, Any]:
        """Send a part, and return the part's fields for the completion: number, ETag, checksums.

        The part is sent a second time if the store refuses or ignores its checksum, as in
        `BodyChecksums.send_part`. A missing ETag in the answer is replaced by the part's MD5.
        """
        named = {**self._requests.arguments(key), "UploadId": upload, "PartNumber": number}

        def request(digests: Mapping[str, str]) -> Mapping[str, Any]:
            upload_part = self._requests.client.upload_part
            answer: Mapping[str, Any] = upload_part(**named, Body=part, **digests)
            return answer

        answer = self._checksums.send_part(part, request)
        sums = {name: item for name, item in answer.items() if name.startswith("Checksum")}
        # S3 defines a part's ETag as the part's MD5, which replaces a missing ETag.
        etag = answer.get("ETag") or f'"{_hexadecimal(md5_fields(part)["ContentMD5"])}"'
        return {"PartNumber": number, "ETag": etag, **sums}

    def begin_upload(self, key: str, fields: Mapping[str, Any]) -> str:
        """Begin an upload in parts, and return the upload's id.

        `fields` are further arguments of botocore. The upload has checksums unless the store
        refuses or lacks them. Raise BucketError if the answer has no id. No object exists before
        the completion. Each call begins a new upload.
        """
        announced = {**fields, **self._checksums.upload_fields()}
        answer = self._requests.send("create_multipart_upload", key, announced)
        return str(self._requests.field(key, answer, "UploadId"))

    def finds_object(self, key: str, token: str = "") -> bool:
        """Whether an object with another token exists, in a store that may ignore conditions.

        False for Amazon's store, without a request, and if the store answers with status 403. Raise
        BucketError for other failures. Without a token, any object counts. Simultaneous writers can
        both get False; then only a condition separates the writers.
        """
        if self._requests.features.is_proved(Feature.CONDITIONS):
            return False
        try:
            head = self._requests.head(key)
        except BucketError as error:
            if http_status(error.__cause__) != 403:
                raise
            return False
        return head is not None and (head.get("Metadata", {}).get(_TOKEN) != token or not token)

    def _outcome_of_failed_write(self, key: str, token: str, error: Any) -> bool | None:
        """Return whether a failed write has created the existing object, by the token.

        After a lost answer, a repeated write conflicts with its own object, or no longer finds its
        upload. Return True if the object has the token, and False for another object after a
        conflict. Return None if no object exists, for another object after a missing upload, and,
        without a request, for all other errors. `error` is botocore's. Raise BucketError if the
        store refuses or does not answer the request for the object.
        """
        code = error_code(error)
        if code not in ("PreconditionFailed", "ConditionalRequestConflict", "NoSuchUpload"):
            return None
        head = self._requests.head(key)
        if head is None:
            return None
        if head.get("Metadata", {}).get(_TOKEN) == token:
            return True
        return None if code == "NoSuchUpload" else False


def _hexadecimal(base64_digest: str) -> str:
    return base64.b64decode(base64_digest).hex()
