"""The upload of a file to an S3 bucket in parts, which a user sends by signed requests.

The store alone knows the upload of a key and the stored parts. A client can therefore continue an
upload after a crash. All uploads to a key must have the same content.
"""

from __future__ import annotations

import base64
from collections.abc import Mapping
from functools import cached_property
from typing import Any

from detcloud.shared.bucket_errors import BucketError, PartsConflict
from detcloud.shared.s3 import Bucket
from detcloud.shared.upload_parts import PartSizes, check_stored_size


class S3PartsUpload:
    """The upload in parts of a file of `size` bytes to a key.

    Every method that sends a request may raise BucketError if the store refuses or does not answer
    after repeats, or if an upload is needed and the store cannot list unfinished uploads. The
    object uses the upload that it found first, and then raises BucketError once that upload has
    ended.
    """

    is_in_order = False
    # The limit of S3 on a single request.
    whole_bytes_max: int | None = 5 << 30

    def __init__(self, bucket: Bucket, key: str, size: int) -> None:
        self._bucket = bucket
        self._key = key
        self.sizes = PartSizes(size)

    def stored_parts(self) -> list[int]:
        """Return the sorted numbers, from 1, of the stored parts. Each call asks the store.

        Parts of a wrong size are skipped. Begin a missing upload, also if the object exists
        already.
        """
        return sorted(self._parts())

    def sign_part(self, number: int, md5: str, seconds: int) -> tuple[str, dict[str, str]]:
        """Return a URL that allows anybody to store the part, and the headers of the request.

        `number` counts from 1, and is not checked. `md5` is the part's digest in hexadecimal, to
        which the URL is bound, as to the part's size. The URL is valid for `seconds`, and replaces
        a stored part. The client must send the headers. The first call of the object looks for the
        upload, and begins an upload if none exists. Raise ValueError for an `md5` that is not
        hexadecimal.
        """
        digest = base64.b64encode(bytes.fromhex(md5)).decode()
        size = self.sizes.size_of(number)
        params = {
            **self._upload,
            "PartNumber": number,
            "ContentLength": size,
            "ContentMD5": digest,
        }
        url = self._bucket.signed_url("upload_part", self._key, params, seconds)
        return url, {"Content-Length": str(size), "Content-MD5": digest}

    def store_part(self, number: int, md5: str, source: str) -> None:
        """Always raise PartsConflict, because clients send parts to the store directly."""
        raise PartsConflict(f"part {number} of {self._key} has to be sent to the store itself")

    def join(self) -> bool:
        """Create the object from the stored parts. Return False if the object exists already.

        Return True if this call created the object. An existing object of the same size counts as
        the same file, whatever its content; a not yet completed upload then stays. Raise
        PartsConflict if a part is missing, or if the existing object has another size. Raise
        BucketError if the store fails and no object exists. A missing upload is begun, and then all
        parts are missing.
        """
        if self._is_stored():
            return False
        try:
            return self._complete()
        except BucketError:
            # Another client was faster, or the answer to an earlier attempt was lost.
            if not self._is_stored():
                raise
            return False

    def _is_stored(self) -> bool:
        """Whether the object exists. Raise PartsConflict if the object has another size."""
        stored = self._bucket.object_size(self._key)
        if stored is not None:
            check_stored_size(self._key, stored, self.sizes.size)
        return stored is not None

    def _complete(self) -> bool:
        parts = self._parts()
        missing = set(self.sizes.numbers) - parts.keys()
        if missing:
            raise PartsConflict(f"part {min(missing)} of {self._key} is missing")
        listed = [{"PartNumber": part, "ETag": parts[part]} for part in sorted(parts)]
        return self._bucket.complete_upload(self._key, self._upload["UploadId"], listed)

    @cached_property
    def _upload(self) -> dict[str, str]:
        """The field of a request that names the key's oldest upload. Begin a missing upload.

        The store is asked once for this object; errors are not cached. Raise BucketError if the
        store cannot list unfinished uploads.
        """
        if (found := self._oldest()) is None:
            self._bucket.request("create_multipart_upload", self._key, {})
            # Another client may have begun an upload at the same time. The oldest upload counts.
            found = self._oldest()
        if found is None:
            raise BucketError(f"{self._bucket.place} lists no uploads in parts")
        return {"UploadId": found}

    def _oldest(self) -> str | None:
        found = [item for item in self._bucket.uploads_below(self._key) if item["Key"] == self._key]
        oldest = min(found, key=lambda item: (item["Initiated"], item["UploadId"]), default=None)
        return None if oldest is None else str(oldest["UploadId"])

    def _parts(self) -> dict[int, str]:
        """Return the ETags of the stored parts by number. Parts of a wrong size are skipped.

        Begin a missing upload, which has no parts. Raise BucketError if the store repeats a page of
        its list.
        """
        found: dict[int, str] = {}
        marker = 0
        while True:
            named = {**self._upload, "PartNumberMarker": marker}
            page: Mapping[str, Any] = self._bucket.request("list_parts", self._key, named)
            for part in page.get("Parts", ()):
                number = int(part["PartNumber"])
                if number in self.sizes.numbers and part["Size"] == self.sizes.size_of(number):
                    found[number] = part["ETag"]
            if not page.get("IsTruncated"):
                return found
            following = int(page.get("NextPartNumberMarker") or 0)
            if following <= marker:
                text = f"{self._bucket.place} lists parts of {self._key} without an end"
                raise BucketError(f"{text}: the store has an error")
            marker = following
