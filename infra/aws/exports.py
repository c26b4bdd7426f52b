"""Exports of the state table in S3, which DynamoDB writes for copies in another region.

An export is the folder AWSDynamoDB/ID of a bucket. DynamoDB writes the summary last, so that an
export with a summary is complete. Each data file has the MD5 in the manifest.
"""

import base64
import gzip
import hashlib
import json
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, Final

import botocore.exceptions as sdk

from infra.aws.account_facts import Clients
from infra.aws.instance_ends import error_code
from infra.aws.item_store import to_stored_item
from infra.restoration import RestoreFailed
from infra.row_copy import StoredItem

FOLDER: Final = "AWSDynamoDB/"
SUMMARY: Final = "manifest-summary.json"
FILES: Final = "manifest-files.json"
_MISSING: Final = frozenset({"404", "NoSuchBucket", "NoSuchKey"})


@dataclass(frozen=True)
class TableExport:
    """A complete export."""

    bucket: str
    """The bucket of the export."""
    folder: str
    """The prefix of the export's objects, which ends with a slash."""
    time: str
    """The moment of the exported state, as DynamoDB writes it."""
    items: int
    """The number of items."""

    @property
    def text(self) -> str:
        """The export in words."""
        return f"the export s3://{self.bucket}/{self.folder} of {self.time}"


def find_export(clients: Clients, source: str) -> TableExport:
    """Return the newest complete export at or below `source`.

    `source` is s3://BUCKET, s3://BUCKET/PREFIX or the folder of an export. Raise RestoreFailed if
    no complete full export exists there, and the SDK's errors.
    """
    bucket, _, prefix = source.removeprefix("s3://").partition("/")
    pages = clients("s3").get_paginator("list_objects_v2")
    found: list[TableExport] = []
    try:
        for page in pages.paginate(Bucket=bucket, Prefix=prefix):
            for content in page.get("Contents", ()):
                if content["Key"].endswith(f"/{SUMMARY}"):
                    found.append(_read_summary(clients, bucket, content["Key"]))
    except sdk.ClientError as error:
        if error_code(error) not in _MISSING:
            raise
        raise RestoreFailed(f"--from is {source}: the bucket {bucket} does not exist") from None
    if not found:
        raise RestoreFailed(
            f"--from is {source}: expected a complete export of DynamoDB, with a file "
            f"{FOLDER}ID/{SUMMARY}; an export that is still written has none yet"
        )
    return max(found, key=lambda export: export.time)


def read_export(clients: Clients, export: TableExport) -> Iterator[StoredItem]:
    """Yield all items of an export.

    Raise RestoreFailed if a file is damaged or items are missing, and the SDK's errors.
    """
    count = 0
    for line in _read(clients, export.bucket, f"{export.folder}{FILES}").splitlines():
        file = json.loads(line)
        # Keys of the manifest may lack the prefix of the export.
        key = f"{export.folder}data/{file['dataFileS3Key'].rpartition('/')[2]}"
        content = _read(clients, export.bucket, key)
        if base64.b64encode(hashlib.md5(content).digest()).decode() != file["md5Checksum"]:
            raise RestoreFailed(
                f"s3://{export.bucket}/{key} is damaged: its MD5 is not the manifest's; restore an "
                "older export with --from"
            )
        for text in gzip.decompress(content).splitlines():
            count += 1
            yield to_stored_item(_decode(json.loads(text)["Item"]))
    if count != export.items:
        raise RestoreFailed(
            f"{export.text} has {count} items: expected {export.items}; restore an older export "
            "with --from"
        )


def _read_summary(clients: Clients, bucket: str, key: str) -> TableExport:
    """Return the export of a summary. Raise RestoreFailed for an incremental export or another
    format, and the SDK's errors.
    """
    summary = json.loads(_read(clients, bucket, key))
    kind = summary.get("exportType", "FULL_EXPORT")
    if summary.get("outputFormat") != "DYNAMODB_JSON" or kind != "FULL_EXPORT":
        raise RestoreFailed(
            f"s3://{bucket}/{key}: expected a full export in the format DYNAMODB_JSON, found "
            f"{kind} in {summary.get('outputFormat')}; name another export with --from"
        )
    folder = key.removesuffix(SUMMARY)
    return TableExport(bucket, folder, str(summary["exportTime"]), int(summary["itemCount"]))


def _read(clients: Clients, bucket: str, key: str) -> bytes:
    """Return the content of an object. Raise the SDK's errors."""
    content: bytes = clients("s3").get_object(Bucket=bucket, Key=key)["Body"].read()
    return content


def _decode(item: dict[str, Any]) -> dict[str, Any]:
    """Return an item of an export in the form of the SDK: binary values become bytes."""
    return {
        name: {"B": base64.b64decode(value["B"])} if "B" in value else value
        for name, value in item.items()
    }
