"""Buckets of S3 beyond the conformance suites: parts, network faults, signatures, credentials."""

import hashlib
import json
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path
from typing import Any
from urllib.parse import parse_qs, urlsplit

import pytest
from botocore.awsrequest import AWSResponse
from botocore.exceptions import ConnectTimeoutError, ReadTimeoutError
from botocore.httpsession import URLLib3Session
from botocore.response import StreamingBody

from control_plane.aws.object_store import S3ObjectStore
from control_plane.objects.store import ObjectKey, SignedUrl
from detcloud.shared.bucket_errors import (
    BucketError,
    NoSuchBucket,
    NoSuchKey,
    StoreBusy,
    WriteConflict,
)
from detcloud.shared.bucket_place import BucketPlace
from detcloud.shared.s3 import Bucket
from detcloud.shared.s3_client import ATTEMPTS_MAX, new_client
from detcloud.shared.s3_limits import S3Limits
from tests.emulators.seaweedfs import ACCESS_KEY, SECRET_KEY, SeaweedFs
from tests.emulators.strangers import send

# The least that a part but the last may have.
PART = 5 << 20
LONG = b"".join(bytes([n]) * (1 << 20) for n in range(12))
NOW_MS = 1_800_000_000_000

Fault = Callable[[Any], AWSResponse | None]
"""Answers a request in the store's place, lets it be sent (None), or raises."""


@pytest.fixture
def bucket(s3: SeaweedFs) -> Bucket:
    return s3.bucket("of/a")


@pytest.fixture(scope="module")
def client(s3: SeaweedFs) -> Any:
    """Return a client for this test alone, into which tests inject faults."""
    return new_client(s3.place())


@contextmanager
def faults(client: Any, operation: str, *injected: Fault) -> Iterator[list[Any]]:
    """Inject faults into the first requests of an operation; yield all requests."""
    left, made = list(injected), []

    def inject_fault(request: Any, **_: Any) -> AWSResponse | None:
        made.append(request)
        return left.pop(0)(request) if left else None

    client.meta.events.register(f"before-send.s3.{operation}", inject_fault)
    try:
        yield made
    finally:
        client.meta.events.unregister(f"before-send.s3.{operation}", inject_fault)


def error_response(status: int, code: str) -> Fault:
    body = f"<Error><Code>{code}</Code><Message>injected</Message></Error>".encode()

    class Raw:
        def stream(self, **_: Any) -> Iterator[bytes]:
            yield body

        def read(self, *_: Any) -> bytes:
            return body

    return lambda request: AWSResponse(request.url, status, {}, Raw())


def refuse_connection(request: Any) -> None:
    raise ConnectTimeoutError(endpoint_url=request.url)


def exchange(request: Any) -> AWSResponse:
    """Send a request over another connection, and return the store's answer."""
    answer: AWSResponse = URLLib3Session().send(request)
    return answer


def lose_answer(request: Any) -> None:
    assert exchange(request).status_code == 200
    raise ReadTimeoutError(endpoint_url=request.url)


def content(bucket: Bucket, key: str) -> bytes:
    return b"".join(bucket.read(key))


def uploads(bucket: Bucket) -> list[str]:
    client = new_client(bucket.place)
    listed = client.list_multipart_uploads(Bucket=bucket.place.name).get("Uploads", [])
    return [upload["Key"] for upload in listed]


def test_s3_sends_long_content_in_parts(bucket: Bucket) -> None:
    blocks = (LONG[start : start + 700_001] for start in range(0, len(LONG), 700_001))
    assert bucket.write("k/long", blocks, part_bytes=PART)
    # 12 MiB in parts of 5 MiB are three, as S3 shows in the ETag.
    client = new_client(bucket.place)
    stored = client.head_object(Bucket=bucket.place.name, Key="of/a/k/long")
    assert stored["ETag"].endswith('-3"')
    assert content(bucket, "k/long") == LONG
    assert b"".join(bucket.read("k/long", PART - 2, PART + 2)) == LONG[PART - 2 : PART + 2]
    assert uploads(bucket) == []


def test_first_of_two_s3_uploads_in_parts_stays(bucket: Bucket) -> None:
    assert bucket.write("k", [LONG], if_absent=True, part_bytes=PART)
    assert not bucket.write("k", [b"x" * len(LONG)], if_absent=True, part_bytes=PART)
    assert content(bucket, "k") == LONG
    assert uploads(bucket) == []


def test_failing_content_in_a_later_part_keeps_the_old_object(bucket: Bucket) -> None:
    def failing_blocks() -> Iterator[bytes]:
        yield LONG
        raise ConnectionError("gone")

    bucket.write("k", [b"old"])
    for key in ("k", "new"):
        with pytest.raises(ConnectionError, match="gone"):
            bucket.write(key, failing_blocks(), part_bytes=PART)
    assert content(bucket, "k") == b"old"
    assert list(bucket.list_objects("")) == [("k", 3)]
    assert uploads(bucket) == []


def test_s3_file_is_fetched_in_parts_of_the_same_content(bucket: Bucket, tmp_path: Path) -> None:
    client = new_client(bucket.place)
    reader = Bucket(bucket.place, client, limits=S3Limits(fetched_part_bytes=1_000_003))
    for size in (0, 1, 1_000_003, len(LONG)):
        bucket.write("k", [LONG[:size]])
        reader.fetch("k", tmp_path / "copy")
        assert (tmp_path / "copy").read_bytes() == LONG[:size]

    def replace_between_parts(request: Any, **_: Any) -> None:
        if request.headers["Range"] == b"bytes=3000009-4000011":
            bucket.write("k", [b"other" * 1_000_000])

    client.meta.events.register("before-send.s3.GetObject", replace_between_parts)
    with pytest.raises(BucketError, match="PreconditionFailed"):
        reader.fetch("k", tmp_path / "copy")
    with pytest.raises(NoSuchKey, match="of/a/other"):
        bucket.fetch("other", tmp_path / "copy")


@pytest.mark.parametrize("size", [5, 9_000_000])
def test_s3_refuses_garbled_content(s3: SeaweedFs, client: Any, tmp_path: Path, size: int) -> None:
    def garble(request: Any) -> None:
        body = request.body
        whole = b"".join(iter(body.read, b"")) if hasattr(body, "read") else body
        request.body = b"?" + whole[1:]

    bucket = Bucket(s3.place(), client)
    (tmp_path / "source").write_bytes(b"x" * size)
    operation = "PutObject" if size == 5 else "UploadPart"
    for known in ("nothing", "what the store compares"):
        with faults(client, operation, garble), pytest.raises(BucketError, match="BadDigest"):
            bucket.send("k", tmp_path / "source")
        assert bucket.object_size("k") is None, known
        assert uploads(bucket) == []
        assert bucket.send("other" if known == "nothing" else "k", tmp_path / "source")
    assert not bucket.send("k", tmp_path / "source")


def test_file_that_shrinks_during_the_upload_is_not_stored(
    bucket: Bucket, client: Any, tmp_path: Path
) -> None:
    source = tmp_path / "source"
    source.write_bytes(LONG)

    def shrink(request: Any) -> None:
        source.write_bytes(b"short")

    shrinking = Bucket(bucket.place, client)
    with faults(client, "UploadPart", shrink), pytest.raises(BucketError, match="source shrank"):
        shrinking.send("k", source)
    assert bucket.object_size("k") is None
    assert uploads(bucket) == []


def test_keys_outside_the_prefix_are_invisible(s3: SeaweedFs) -> None:
    whole = s3.bucket()
    below = Bucket(replace(whole.place, prefix="/of/a/"), s3.client)
    for key in ("of/a/1/x", "of/ab/1/x", "1/x", "of/a/12/x"):
        whole.write(key, [b"123"])
    assert list(below.list_objects("1/")) == [("1/x", 3)]
    assert sorted(key for key, _ in below.list_objects("")) == ["1/x", "12/x"]
    below.delete("1/x")
    assert sorted(key for key, _ in whole.list_objects("")) == ["1/x", "of/a/12/x", "of/ab/1/x"]


def test_aborts_uploads_only_below_the_key(
    bucket: Bucket,
) -> None:
    for key in ("of/a/1/x", "of/a/12/x", "1/x"):
        new_client(bucket.place).create_multipart_upload(Bucket=bucket.place.name, Key=key)
    bucket.abort_uploads("1/")
    assert sorted(uploads(bucket)) == ["1/x", "of/a/12/x"]


def test_store_without_upload_listings_has_no_uploads_to_abort(s3: SeaweedFs, client: Any) -> None:
    bucket = Bucket(s3.place(), client)
    with faults(client, "ListMultipartUploads", error_response(501, "NotImplemented")):
        bucket.abort_uploads("1/")
    with (
        faults(client, "ListMultipartUploads", error_response(403, "AccessDenied")),
        pytest.raises(BucketError, match="do not allow that in this bucket"),
    ):
        Bucket(bucket.place, client).abort_uploads("1/")


@pytest.mark.parametrize(
    ("operation", "call", "expected"),
    [
        ("PutObject", lambda bucket: bucket.write("new", [b"x"], if_absent=True), True),
        ("GetObject", lambda bucket: content(bucket, "k"), b"line"),
        ("HeadObject", lambda bucket: bucket.object_size("k"), 4),
        ("ListObjectsV2", lambda bucket: list(bucket.list_objects("k")), [("k", 4)]),
        ("DeleteObject", lambda bucket: bucket.delete("k"), None),
    ],
)
@pytest.mark.usefixtures("pauses")
def test_s3_retries_temporary_failures(
    s3: SeaweedFs, client: Any, operation: str, call: Callable[[Bucket], Any], expected: Any
) -> None:
    bucket = Bucket(s3.place(), client)
    bucket.write("k", [b"line"])
    slow, broken = error_response(503, "SlowDown"), error_response(500, "InternalError")
    with faults(client, operation, slow, refuse_connection, broken) as made:
        assert call(bucket) == expected
    assert len(made) == 4


@pytest.mark.usefixtures("pauses")
def test_permanent_failure_of_s3_is_an_error_without_secrets(s3: SeaweedFs, client: Any) -> None:
    bucket = Bucket(s3.place(), client)
    with (
        faults(client, "PutObject", *[error_response(503, "SlowDown")] * ATTEMPTS_MAX) as made,
        pytest.raises(OSError, match="SlowDown") as caught,
    ):
        bucket.write("logs/1", [b"x"])
    assert len(made) == ATTEMPTS_MAX
    assert bucket.place.name in str(caught.value)
    assert SECRET_KEY not in f"{caught.value} {caught.value.__cause__} {bucket.place!r}"
    assert ACCESS_KEY not in f"{caught.value} {caught.value.__cause__} {bucket.place!r}"


@pytest.mark.parametrize(("status", "code"), [(503, "SlowDown"), (429, "TooManyRequests")])
@pytest.mark.usefixtures("pauses")
def test_busy_s3_store_raises_store_busy(
    s3: SeaweedFs, client: Any, status: int, code: str
) -> None:
    bucket = Bucket(s3.place(), client)
    with (
        faults(client, "DeleteObject", *[error_response(status, code)] * ATTEMPTS_MAX),
        pytest.raises(StoreBusy, match=code),
    ):
        bucket.delete("k")


@pytest.mark.parametrize(("size", "operation"), [(9, "PutObject"), (12, "CompleteMultipartUpload")])
@pytest.mark.usefixtures("pauses")
def test_s3_writer_wins_despite_a_lost_answer(
    s3: SeaweedFs, client: Any, size: int, operation: str
) -> None:
    bucket = Bucket(s3.place(), client)
    part_bytes = PART if operation != "PutObject" else len(LONG)
    with faults(client, operation, lose_answer) as made:
        assert bucket.write("k", [LONG[: size << 20]], if_absent=True, part_bytes=part_bytes)
    assert len(made) == 2
    assert not bucket.write("k", [b"other"], if_absent=True)
    assert uploads(bucket) == []


@pytest.mark.usefixtures("pauses")
def test_conflict_of_two_s3_writers_is_retried_until_a_writer_wins(
    s3: SeaweedFs, client: Any
) -> None:
    bucket = Bucket(s3.place(), client)
    conflict = error_response(409, "ConditionalRequestConflict")
    with faults(client, "PutObject", conflict, conflict) as made:
        assert bucket.write("k", [b"x"], if_absent=True)
        assert len(made) == 3
    with faults(client, "PutObject", conflict):
        assert not bucket.write("k", [b"other"], if_absent=True)
    with (
        faults(client, "PutObject", *[conflict] * ATTEMPTS_MAX),
        pytest.raises(WriteConflict, match="other"),
    ):
        bucket.write("other", [b"x"], if_absent=True)


@pytest.mark.usefixtures("pauses")
def test_s3_reader_resumes_in_the_same_content_after_a_break(s3: SeaweedFs) -> None:
    place = s3.place()
    client = new_client(place)
    bucket = Bucket(place, client)
    bucket.write("k", [LONG])
    broken: list[bytes] = []

    class BreakingBody:
        def __init__(self, body: StreamingBody) -> None:
            self.body = body
            self.close = body.close

        def read(self, amount: int | None = None) -> bytes:
            block: bytes = self.body.read(amount)
            if len(broken) < 2 and block[-1:] in (b"\x01", b"\x03"):
                broken.append(block)
                raise ReadTimeoutError(endpoint_url="")
            return block

    def break_body(parsed: dict[str, Any], **_: Any) -> None:
        if "Body" in parsed:
            parsed["Body"] = BreakingBody(parsed["Body"])

    client.meta.events.register("after-call.s3.GetObject", break_body)
    assert content(bucket, "k") == LONG
    assert len(broken) == 2
    broken.clear()
    blocks = bucket.read("k")
    next(blocks)
    bucket.write("k", [b"other"])
    with pytest.raises(BucketError, match="PreconditionFailed"):
        b"".join(blocks)


def test_error_names_a_missing_bucket_or_wrong_credentials(s3: SeaweedFs) -> None:
    place = s3.place()
    nowhere = Bucket(replace(place, name="no-such-bucket"), s3.client)
    for call in (lambda: nowhere.write("k", [b"x"]), lambda: list(nowhere.list_objects("k"))):
        with pytest.raises(NoSuchBucket, match="there is no bucket no-such-bucket"):
            call()
    stranger = Bucket(replace(place, secret_key="of somebody else"))
    with pytest.raises(BucketError, match="check the secret key") as caught:
        stranger.read("k")
    assert "of somebody else" not in str(caught.value)


def test_credentials_of_an_endpoint_in_the_environment_are_used(
    s3: SeaweedFs, monkeypatch: pytest.MonkeyPatch
) -> None:
    class Credentials(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            fields = {"AccessKeyId": ACCESS_KEY, "SecretAccessKey": SECRET_KEY}
            body = json.dumps({**fields, "Token": "", "Expiration": "2999-01-01T00:00:00Z"})
            self.send_response(200)
            self.end_headers()
            self.wfile.write(body.encode())

        def log_message(self, *_: Any) -> None:
            pass

    place = replace(s3.place(), access_key=None, secret_key=None)
    with HTTPServer(("127.0.0.1", 0), Credentials) as server:
        thread = threading.Thread(target=server.handle_request)
        thread.start()
        url = f"http://127.0.0.1:{server.server_port}/credentials"
        monkeypatch.setenv("AWS_CONTAINER_CREDENTIALS_FULL_URI", url)
        bucket = Bucket(place)
        thread.join()
    bucket.write("k", [b"x"])
    assert content(bucket, "k") == b"x"


def test_missing_s3_credentials_are_an_immediate_error(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("AWS_EC2_METADATA_DISABLED", "true")
    monkeypatch.setenv("AWS_SHARED_CREDENTIALS_FILE", "/dev/null")
    with pytest.raises(BucketError, match="set access_key and secret_key"):
        Bucket(BucketPlace("b"))


def test_url_is_signed_for_the_region_of_the_bucket() -> None:
    class Client:
        def head_bucket(self, Bucket: str) -> dict[str, str]:
            return {"BucketRegion": "eu-west-3"}

    bucket = Bucket(BucketPlace("bucket", access_key="a", secret_key="s"), Client())
    url = urlsplit(bucket.signed_get_url("k", 60))
    assert url.hostname == "bucket.s3.eu-west-3.amazonaws.com"
    assert "/eu-west-3/s3/" in parse_qs(url.query)["X-Amz-Credential"][0]


@pytest.mark.parametrize(
    ("changed", "body"),
    [
        ({"Content-Length": "3"}, b"log"),
        ({"x-amz-checksum-sha256": None}, b"log\n"),
        ({"x-amz-checksum-sha256": "other"}, b"LOG\n"),
    ],
)
def test_signed_s3_put_refuses_different_headers_and_content(
    s3: SeaweedFs, changed: dict[str, str | None], body: bytes
) -> None:
    bucket = s3.bucket("of/a")
    store = S3ObjectStore(bucket, lambda: NOW_MS)
    digest = hashlib.sha256(b"log\n")
    if changed.get("x-amz-checksum-sha256") == "other":
        _, headers = bucket.signed_put_url("k", 60, 4, hashlib.sha256(b"LOG\n").hexdigest())
        changed = {"x-amz-checksum-sha256": headers["x-amz-checksum-sha256"]}
    signed = store.signed_url(
        "PUT", ObjectKey("logs/1"), size=4, sha256=digest.hexdigest(), expires_ms=NOW_MS + 60_000
    )
    bound = parse_qs(urlsplit(signed.url).query)["X-Amz-SignedHeaders"]
    assert bound == ["content-length;host;x-amz-checksum-sha256"]
    headers = {
        name: text for name, text in {**signed.headers, **changed}.items() if text is not None
    }
    status, _ = send(replace(signed, headers=headers), body)
    assert 400 <= status < 500
    assert store.size(ObjectKey("logs/1")) is None
    assert send(signed, b"log\n")[0] == 200


def test_s3_signature_is_for_a_single_method_and_15_minutes_at_most(s3: SeaweedFs) -> None:
    store = S3ObjectStore(s3.bucket(), lambda: NOW_MS)
    store.put(ObjectKey("logs/1"), b"line")
    signed = store.signed_url("GET", ObjectKey("logs/1"), expires_ms=NOW_MS + 3_600_000)
    assert parse_qs(urlsplit(signed.url).query)["X-Amz-Expires"] == ["900"]
    assert signed.expires_ms == NOW_MS + 900_000
    status, _ = send(SignedUrl("PUT", signed.url, {}, signed.expires_ms), b"other")
    assert status == 403
    with pytest.raises(ValueError, match="at least one second"):
        store.signed_url("GET", ObjectKey("logs/1"), expires_ms=NOW_MS + 999)
    with pytest.raises(ValueError, match="needs the size"):
        store.signed_url("PUT", ObjectKey("logs/1"), expires_ms=NOW_MS + 60_000)


def test_objects_with_invalid_keys_are_not_listed(s3: SeaweedFs) -> None:
    bucket = s3.bucket()
    for key in ("logs/1/good", "logs/1/half%", "logs/1/a;b", "logs/1/"):
        bucket.write(key, [b"x"])
    store = S3ObjectStore(bucket, lambda: NOW_MS)
    assert [listed.key.text for listed in store.list_objects(ObjectKey("logs/1"))] == [
        "logs/1/good"
    ]
