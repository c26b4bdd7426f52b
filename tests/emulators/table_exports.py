"""Exports of a table to S3 in the form of DynamoDB, whose files the emulator does not write.

Source: DynamoDB developer guide, "DynamoDB table export output format".
"""

import base64
import gzip
import hashlib
import json
import secrets
import time
from typing import Any

from tests.emulators.ministack import Ministack


def export_table(aws: Ministack, table: str, bucket: str, files: int = 2) -> str:
    """Write an export of a table into a bucket, and return the folder s3://BUCKET/PREFIX."""
    pages = aws.client("dynamodb").get_paginator("scan").paginate(TableName=table)
    items = [_encode(item) for page in pages for item in page["Items"]]
    folder = f"AWSDynamoDB/{time.time_ns() // 1_000_000:014d}-{secrets.token_hex(4)}/"
    s3 = aws.client("s3")

    def put(name: str, content: bytes) -> None:
        s3.put_object(Bucket=bucket, Key=f"{folder}{name}", Body=content)

    put("_started", b"")
    lines = []
    for number in range(files):
        part = items[number::files]
        text = "".join(json.dumps({"Item": item}) + "\n" for item in part)
        content = gzip.compress(text.encode())
        put(f"data/{number}.json.gz", content)
        line = {
            "itemCount": len(part),
            "md5Checksum": base64.b64encode(hashlib.md5(content).digest()).decode(),
            "etag": hashlib.md5(content).hexdigest(),
            "dataFileS3Key": f"{folder}data/{number}.json.gz",
        }
        lines.append(json.dumps(line) + "\n")
    put("manifest-files.json", "".join(lines).encode())
    moment = time.strftime("%Y-%m-%dT%H:%M:%S.000Z", time.gmtime())
    summary = {
        "version": "2020-06-30",
        "exportTime": moment,
        "s3Bucket": bucket,
        "s3Prefix": None,
        "manifestFilesS3Key": f"{folder}manifest-files.json",
        "itemCount": len(items),
        "outputFormat": "DYNAMODB_JSON",
    }
    put("manifest-summary.json", json.dumps(summary).encode())
    return f"s3://{bucket}/{folder}"


def _encode(item: dict[str, Any]) -> dict[str, Any]:
    return {
        name: {"B": base64.b64encode(value["B"]).decode()} if "B" in value else value
        for name, value in item.items()
    }
