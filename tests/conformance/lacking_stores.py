"""Stores without an optional feature of the protocol, by store type and feature."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

from tests.emulators.azurite import ACCOUNT, KEY
from tests.emulators.lacking_front import (
    Feature,
    FrontRequest,
    LackingFront,
    MissingFeature,
    azure_refusal,
    change_headers,
    gcs_refusal,
    hdfs_refusal,
    s3_refusal,
    sign_azure,
    sign_s3,
)
from tests.emulators.passing_front import Answer
from tests.emulators.seaweedfs import ACCESS_KEY, REGION, SECRET_KEY

S3_NAMES = {
    Feature.CHECKSUMS: "x-amz-checksum-.*|x-amz-sdk-checksum-.*|x-amz-trailer",
    Feature.RANGES: "range",
    Feature.CONDITIONS: "if-none-match",
    Feature.MATCHES: "if-match",
    Feature.UPLOAD_LISTS: "uploads|uploadid",
}
GCS_NAMES = {
    Feature.CHECKSUMS: "x-goog-hash|content-md5",
    Feature.RANGES: "range",
    Feature.CONDITIONS: "ifgenerationmatch",
    Feature.MATCHES: "generation",
}
AZURE_NAMES = {
    Feature.CHECKSUMS: "content-md5|x-ms-content-crc64|x-ms-blob-content-md5",
    Feature.RANGES: "x-ms-range|range",
    Feature.CONDITIONS: "if-none-match",
    Feature.MATCHES: "if-match",
    Feature.UPLOAD_LISTS: "include|blocklisttype",
}
HDFS_NAMES = {Feature.RANGES: "offset|length", Feature.JOINS: "sources"}


def lacking(kind: str, feature: Feature, lack: MissingFeature, store: str) -> LackingFront:
    """Return a front of the store at a URL that lacks a feature."""
    # Lists use GET; the same names also begin and complete uploads.
    method = "GET" if feature is Feature.UPLOAD_LISTS else ""
    front = LackingFront(store, lack=lack, method=method)
    match kind:
        case "s3":
            sign = sign_s3(ACCESS_KEY, SECRET_KEY, REGION)
            refusal = s3_refusal(501, "NotImplemented")
            return replace(front, names=S3_NAMES[feature], sign=sign, refusal=refusal)
        case "gcs":
            return replace(front, names=GCS_NAMES[feature], refusal=gcs_refusal(501))
        case "azure":
            sign, refusal = sign_azure(ACCOUNT, KEY), azure_refusal(400, "UnsupportedHeader")
            return replace(front, names=AZURE_NAMES[feature], sign=sign, refusal=refusal)
    return replace(front, names=HDFS_NAMES[feature], refusal=hdfs_refusal())


def empty_404(request: FrontRequest, answer: Answer) -> Answer:
    """Return the answer of a versioned store for a deleted object.

    The answer has no content, and a marker of the deletion.
    """
    status, content, headers = answer
    headers = {**headers, "x-amz-version-id": "3sL4kqtJlcpXroDTDmJ.rmSpXd3dIbrHY"}
    if status == 404:
        return status, b"", {**headers, "x-amz-delete-marker": "true", "Content-Length": "0"}
    return status, content, headers


def weak_etags(request: FrontRequest, answer: Answer) -> Answer:
    """Return the answer of a compressing proxy: with weak ETags, which never equal If-Match."""
    status, content, headers = answer
    if "if-match" in request.headers:
        return s3_refusal(412, "PreconditionFailed")
    is_content = request.method in ("GET", "HEAD")
    changed = {n: f"W/{v}" if n.lower() == "etag" and is_content else v for n, v in headers.items()}
    return status, content, changed


def new_etags() -> Callable[[FrontRequest, Answer], Answer]:
    """Return a change of answers that gives an object a new ETag each time."""
    count = iter(range(10**6))

    def change(request: FrontRequest, answer: Answer) -> Answer:
        changes = {"etag": f'"{next(count)}"'} if request.method in ("GET", "HEAD") else {}
        return change_headers(changes)(request, answer)

    return change


ODD_ANSWERS: dict[str, dict[str, Callable[[FrontRequest, Answer], Answer]]] = {
    "s3": {
        "versions": empty_404,
        "weak ETags": weak_etags,
        "no ETags of contents": lambda request, answer: change_headers(
            {"etag": None} if request.method in ("GET", "HEAD") else {}
        )(request, answer),
        "no ETags of parts": lambda request, answer: change_headers(
            {"etag": None} if request.method == "PUT" else {}
        )(request, answer),
        "no ranges in answers": change_headers({"content-range": None}),
    },
    "gcs": {
        "no generations": change_headers({"x-goog-generation": None, "x-goog-hash": None}),
    },
    "azure": {
        "versions": change_headers({"x-ms-version-id": "2026-11-28T00:00:00.0000000Z"}),
        "no digests": change_headers({"content-md5": None, "x-ms-content-crc64": None}),
    },
}


def storage_behind(storage: dict[str, str], store: str, front: str) -> dict[str, str]:
    """Return the `storage` of a store behind the front."""
    return {name: value.replace(store, front) for name, value in storage.items()}
