"""One file that somebody else uploads to a bucket of S3 in parts, by requests that are signed.

Which upload is a key's, and what of it is there, is asked of the store alone, so that a client
that comes back after a crash goes on with it. A key has to be of one content only.
"""

from __future__ import annotations

import base64
from collections.abc import Mapping
from functools import cached_property
from typing import Any

from detcloud.shared.bucket_errors import BucketError
from detcloud.shared.s3 import Bucket
from detcloud.shared.upload_parts import PartSizes


class S3PartsUpload:
    """The upload in parts of a file of `size` bytes to a key. Every method raises BucketError."""

    is_in_order = False
    # One request takes no more.
    whole_bytes_max: int | None = 5 << 30

    def __init__(self, bucket: Bucket, key: str, size: int) -> None:
        self._bucket = bucket
        self._key = key
        self.sizes = PartSizes(size)

    def stored_parts(self) -> list[int]:
        """The numbers, from 1, of the stored parts."""
        return sorted(self._parts())

    def sign_part(self, number: int, md5: str, seconds: int) -> tuple[str, dict[str, str]]:
        """A URL by which anybody may store that part for so long, and its headers."""
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
        """Raise BucketError: parts are sent to the store itself."""
        raise BucketError(f"part {number} of {self._key} has to be sent to the store itself")

    def join(self) -> bool:
        """Make the object of its parts; False where there is one already, and BucketError if a part
        is missing.
        """
        if self._bucket.object_size(self._key) is not None:
            return False
        try:
            self._complete()
            return True
        except BucketError:
            # Another client was faster, or the answer to an earlier try was lost.
            if self._bucket.object_size(self._key) is None:
                raise
            return False

    def _complete(self) -> None:
        parts = self._parts()
        missing = set(self.sizes.numbers) - parts.keys()
        if missing:
            raise BucketError(f"part {min(missing)} of {self._key} is missing")
        listed = [{"PartNumber": part, "ETag": parts[part]} for part in sorted(parts)]
        named = {**self._upload, "MultipartUpload": {"Parts": listed}, "IfNoneMatch": "*"}
        self._bucket.request("complete_multipart_upload", self._key, named)

    @cached_property
    def _upload(self) -> dict[str, str]:
        """The key's upload as a request names it: the oldest one, or a new one."""
        if (found := self._oldest()) is None:
            self._bucket.request("create_multipart_upload", self._key, {})
            # Somebody else may have begun another one meanwhile.
            found = self._oldest()
        if found is None:
            raise BucketError(f"{self._bucket.place} lists no uploads in parts")
        return {"UploadId": found}

    def _oldest(self) -> str | None:
        found = [item for item in self._bucket.uploads_below(self._key) if item["Key"] == self._key]
        oldest = min(found, key=lambda item: (item["Initiated"], item["UploadId"]), default=None)
        return None if oldest is None else str(oldest["UploadId"])

    def _parts(self) -> dict[int, str]:
        """The ETag of each stored part of the right size, by number."""
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
