"""Copies of objects between buckets: from the copy in another region into the bucket of a stack."""

from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import partial
from typing import Any, Final

import botocore.exceptions as sdk

from infra.aws.account_facts import Clients
from infra.aws.instance_ends import error_code

# S3 copies at most 5 GB in a single request.
SINGLE_BYTES_MAX: Final = 5 * 10**9
PART_BYTES: Final = 10**9
_AT_ONCE: Final = 8
_MISSING: Final = frozenset({"404", "NoSuchBucket"})


@dataclass(frozen=True)
class ObjectsCopied:
    """The numbers of a copy."""

    copied: int
    """The objects that were missing or different."""
    unchanged: int
    """The objects that existed already with the same size."""


def copy_objects(clients: Clients, source: str, target: str) -> ObjectsCopied | None:
    """Copy all objects of the bucket `source` that `target` lacks or has with another size.

    Objects are copied by S3 itself. No object is deleted. A repeated call continues. Return None if
    `source` does not exist. Raise the SDK's errors.
    """
    try:
        sizes = dict(_list_sizes(clients, source))
    except sdk.ClientError as error:
        if error_code(error) not in _MISSING:
            raise
        return None
    present = dict(_list_sizes(clients, target))
    missing = [key for key, size in sizes.items() if present.get(key) != size]
    s3 = clients("s3")
    with ThreadPoolExecutor(_AT_ONCE) as pool:
        copy = partial(_copy_object, s3, source, target)
        for _ in pool.map(copy, missing, (sizes[key] for key in missing)):
            pass
    return ObjectsCopied(len(missing), len(sizes) - len(missing))


def _list_sizes(clients: Clients, bucket: str) -> Iterator[tuple[str, int]]:
    """Yield the key and the size of each object of a bucket. Raise the SDK's errors."""
    pages = clients("s3").get_paginator("list_objects_v2")
    for page in pages.paginate(Bucket=bucket):
        for content in page.get("Contents", ()):
            yield content["Key"], content["Size"]


def _copy_object(s3: Any, source: str, target: str, key: str, size: int) -> None:
    """Copy an object of `size` bytes; large objects are copied in parts. Raise the SDK's errors.

    After an error, no unfinished upload is left.
    """
    place = {"Bucket": source, "Key": key}
    if size <= SINGLE_BYTES_MAX:
        s3.copy_object(Bucket=target, Key=key, CopySource=place)
        return
    upload = s3.create_multipart_upload(Bucket=target, Key=key)["UploadId"]
    named = {"Bucket": target, "Key": key, "UploadId": upload}
    try:
        parts = []
        for number, first in enumerate(range(0, size, PART_BYTES), 1):
            span = f"bytes={first}-{min(first + PART_BYTES, size) - 1}"
            answer = s3.upload_part_copy(
                **named, PartNumber=number, CopySource=place, CopySourceRange=span
            )
            parts.append({"PartNumber": number, "ETag": answer["CopyPartResult"]["ETag"]})
        s3.complete_multipart_upload(**named, MultipartUpload={"Parts": parts})
    except (sdk.ClientError, sdk.BotoCoreError):
        s3.abort_multipart_upload(**named)
        raise
