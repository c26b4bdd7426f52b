"""S3 buckets: logins are never shown, redirects are not followed, and bad answers are errors."""

import io
from collections.abc import Callable
from typing import Any

import pytest

from detcloud.shared.bucket_errors import AccessDenied, BucketError, UploadLost
from detcloud.shared.bucket_place import BucketPlace
from detcloud.shared.s3 import Bucket
from detcloud.shared.s3_client import new_client
from detcloud.shared.s3_parts import S3PartsUpload
from tests.conftest import require

require("botocore")

PLACE = BucketPlace(
    "data", endpoint_url="http://me:canary@store.test:9000/base", access_key="a", secret_key="s"
)


def answer(status: int, content: bytes = b"", **headers: str) -> Callable[..., Any]:
    """Return a handler with a fixed HTTP answer; its attribute `urls` lists the requested URLs."""
    from botocore.awsrequest import AWSResponse

    def send(request: Any, **_: object) -> Any:
        urls.append(request.url)
        raw = io.BytesIO(content)
        raw.stream = lambda **_: iter([content])  # type: ignore[attr-defined]
        return AWSResponse(request.url, status, headers, raw)

    urls: list[str] = []
    send.urls = urls  # type: ignore[attr-defined]
    return send


def bucket_that(send: Callable[..., Any]) -> Bucket:
    client = new_client(PLACE)
    client.meta.events.register("before-send.s3", send)
    return Bucket(PLACE, client)


@pytest.mark.parametrize(
    ("given", "kept"),
    [
        ("http://me:canary@store.test:9000/base", "http://store.test:9000/base"),
        ("https://canary@store.test", "https://store.test"),
        ("http://a@b:canary@[::1]:9000", "http://[::1]:9000"),
        ("http://store.test/a@b", "http://store.test/a@b"),
    ],
)
def test_a_login_in_an_endpoint_is_removed(given: str, kept: str) -> None:
    place = BucketPlace("data", endpoint_url=given)
    assert place.endpoint_url == kept
    assert str(place) == f"s3://data at {kept}"


def test_an_endless_list_of_parts_is_an_error() -> None:
    listed = b"""<?xml version="1.0"?><ListMultipartUploadsResult><Upload><Key>k</Key>
        <UploadId>u</UploadId><Initiated>2026-01-01T00:00:00.000Z</Initiated></Upload>
        <IsTruncated>false</IsTruncated></ListMultipartUploadsResult>"""
    parts = b"""<?xml version="1.0"?><ListPartsResult><IsTruncated>true</IsTruncated>
        <NextPartNumberMarker>1</NextPartNumberMarker></ListPartsResult>"""
    client = new_client(PLACE)
    bucket, events = Bucket(PLACE, client), client.meta.events
    events.register("before-send.s3.ListMultipartUploads", answer(200, listed))
    events.register("before-send.s3.ListParts", send := answer(200, parts))
    with pytest.raises(BucketError, match="lists parts of k without an end"):
        S3PartsUpload(bucket, "k", 1).stored_parts()
    # The first list starts at the beginning, the second after part 1.
    assert len(send.urls) == 2  # type: ignore[attr-defined]


def test_denied_access_has_its_own_error() -> None:
    """The collector and the trial's store go on without a permission that they may lack."""
    bucket = bucket_that(answer(403, b"<Error><Code>AccessDenied</Code></Error>"))
    with pytest.raises(AccessDenied):
        list(bucket.versions.list_versions("folder/"))
    with pytest.raises(AccessDenied):
        bucket.versions.delete_version("key", "version")
    # The answer to a HEAD request has no content.
    with pytest.raises(AccessDenied):
        bucket_that(answer(403)).object_size("key")


def test_missing_upload_has_its_own_error() -> None:
    bucket = bucket_that(answer(404, b"<Error><Code>NoSuchUpload</Code></Error>"))
    with pytest.raises(UploadLost):
        bucket.request("list_parts", "key", {"UploadId": "u"})


@pytest.mark.parametrize("status", [200, 503])
def test_a_web_page_as_answer_is_a_bucket_error(status: int) -> None:
    bucket = bucket_that(answer(status, b"<html><p>Sign in to this network"))
    with pytest.raises(BucketError):
        list(bucket.list_objects("folder/"))


def test_errors_and_signed_urls_do_not_show_the_login() -> None:
    bucket = bucket_that(answer(403))
    with pytest.raises(BucketError) as refused:
        list(bucket.list_objects(""))
    assert "store.test:9000" in str(refused.value)
    assert "canary" not in str(refused.value)
    url = bucket.signed_get_url("key", 60)
    assert url.startswith("http://store.test:9000/base/data/key?")


@pytest.mark.parametrize("status", [301, 302, 307, 308])
def test_a_redirect_is_not_followed(status: int) -> None:
    send = answer(status, location="http://169.254.169.254/latest/meta-data")
    with pytest.raises(BucketError, match=f"a redirect .{status}., which is not followed"):
        list(bucket_that(send).list_objects(""))
    assert [url.split("?")[0] for url in send.urls] == [  # type: ignore[attr-defined]
        "http://store.test:9000/base/data"
    ]
