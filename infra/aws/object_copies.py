"""Objects of S3's buckets and versions of objects, for restores."""

from collections import defaultdict
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import datetime
from typing import Any, Final

import botocore.exceptions as sdk

from infra.aws.account_facts import Clients
from infra.aws.instance_ends import error_code
from infra.bucket_objects import NoBucket, ObjectVersion

# S3 copies at most 5 GB in a single request.
SINGLE_BYTES_MAX: Final = 5 * 10**9
PART_BYTES: Final = 10**9
_MISSING: Final = frozenset({"404", "NoSuchBucket"})


class S3Buckets:
    """The buckets that the deployer may read. S3 itself copies objects."""

    def __init__(self, clients: Clients) -> None:
        self._s3 = clients("s3")

    def objects(self, bucket: str, prefix: str = "") -> Iterator[ObjectVersion]:
        """Yield the current objects below a prefix. Raise NoBucket and the SDK's errors."""
        with _translate(bucket):
            pages = self._s3.get_paginator("list_objects_v2")
            for page in pages.paginate(Bucket=bucket, Prefix=prefix):
                for content in page.get("Contents", ()):
                    yield ObjectVersion(content["Key"], "", content["Size"])

    def versions(self, bucket: str, prefix: str = "") -> Iterator[ObjectVersion]:
        """Yield all versions below a prefix. Raise NoBucket and the SDK's errors.

        A version ends when the next version or a delete marker was written.
        """
        written: dict[str, list[tuple[datetime, dict[str, Any]]]] = defaultdict(list)
        with _translate(bucket):
            pages = self._s3.get_paginator("list_object_versions")
            for page in pages.paginate(Bucket=bucket, Prefix=prefix):
                for entry in (*page.get("Versions", ()), *page.get("DeleteMarkers", ())):
                    written[entry["Key"]].append((entry["LastModified"], entry))
        for key, entries in written.items():
            # The current entry is the last of several writes in a second.
            entries.sort(key=lambda pair: (pair[0], bool(pair[1].get("IsLatest"))))
            ends = [*(time for time, _ in entries[1:]), None]
            for (time, entry), ended in zip(entries, ends, strict=True):
                if "Size" in entry:
                    yield ObjectVersion(key, entry["VersionId"], entry["Size"], time, ended)

    def copy(self, source: str, found: ObjectVersion, target: str) -> None:
        """Copy a version to another bucket. Raise NoBucket and the SDK's errors."""
        with _translate(target):
            _copy_object(self._s3, source, found, target)


@contextmanager
def _translate(bucket: str) -> Iterator[None]:
    """Raise NoBucket instead of S3's error about a missing bucket."""
    try:
        yield
    except sdk.ClientError as error:
        if error_code(error) not in _MISSING:
            raise
        raise NoBucket(bucket) from None


def _copy_object(s3: Any, source: str, found: ObjectVersion, target: str) -> None:
    """Copy an object; large objects are copied in parts. Raise the SDK's errors.

    After an error, no unfinished upload is left.
    """
    place = {"Bucket": source, "Key": found.key}
    if found.version:
        place["VersionId"] = found.version
    if found.size <= SINGLE_BYTES_MAX:
        s3.copy_object(Bucket=target, Key=found.key, CopySource=place)
        return
    upload = s3.create_multipart_upload(Bucket=target, Key=found.key)["UploadId"]
    named = {"Bucket": target, "Key": found.key, "UploadId": upload}
    try:
        parts = []
        for number, first in enumerate(range(0, found.size, PART_BYTES), 1):
            span = f"bytes={first}-{min(first + PART_BYTES, found.size) - 1}"
            answer = s3.upload_part_copy(
                **named, PartNumber=number, CopySource=place, CopySourceRange=span
            )
            parts.append({"PartNumber": number, "ETag": answer["CopyPartResult"]["ETag"]})
        s3.complete_multipart_upload(**named, MultipartUpload={"Parts": parts})
    except (sdk.ClientError, sdk.BotoCoreError):
        s3.abort_multipart_upload(**named)
        raise
