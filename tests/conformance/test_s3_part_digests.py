"""The digests of parts for S3, by the digests that the store verifies."""

from typing import Any

import pytest
from botocore.awsrequest import AWSResponse

from detcloud.shared.s3 import Bucket
from detcloud.shared.s3_client import new_client
from detcloud.shared.s3_limits import S3Limits
from tests.conformance.test_s3_bucket import LONG, PART, content, error_response, exchange, faults
from tests.emulators.seaweedfs import SeaweedFs


@pytest.fixture(scope="module")
def client(s3: SeaweedFs) -> Any:
    """Return a client for this test alone, into which tests inject faults."""
    return new_client(s3.place())


# A part is sent after another, so that each part depends on earlier answers.
ONE_AT_ONCE = S3Limits(written_at_once=1)


def part_digests(requests: list[Any]) -> list[set[str]]:
    """Return the digests of each request."""
    names = {"Content-MD5": "md5", "x-amz-checksum-crc32": "crc"}
    return [
        {short for name, short in names.items() if name in request.headers} for request in requests
    ]


def test_store_that_verifies_crcs_gets_no_more_md5s(s3: SeaweedFs, client: Any) -> None:
    bucket = Bucket(s3.place(), client, limits=ONE_AT_ONCE)
    with faults(client, "UploadPart") as made:
        bucket.write("k", [LONG], part_bytes=PART)
        bucket.write("k", [LONG], part_bytes=PART)
    first, *others = part_digests(made)
    assert (first, others) == ({"crc", "md5"}, [{"crc"}] * 5)


def test_one_of_several_concurrent_parts_has_an_md5(s3: SeaweedFs, client: Any) -> None:
    bucket = Bucket(s3.place(), client, limits=S3Limits(written_at_once=3))
    with faults(client, "UploadPart") as made:
        bucket.write("k", [LONG], part_bytes=PART)
    assert sorted(map(len, part_digests(made))) == [1, 1, 2]
    assert content(bucket, "k") == LONG


def test_store_that_verifies_only_md5s_gets_md5s(s3: SeaweedFs, client: Any) -> None:
    """Stores without CRCs either omit the CRC from the answer, or refuse the request."""

    def drop_crc(request: Any, **_: Any) -> None:
        for name in ("algorithm", "crc32"):
            del request.headers[f"x-amz-checksum-{name}"]

    ignoring, refusing = (Bucket(s3.place(), client, limits=ONE_AT_ONCE) for _ in range(2))
    client.meta.events.register("before-sign.s3", drop_crc)
    try:
        with faults(client, "UploadPart") as made:
            assert ignoring.write("k", [LONG], part_bytes=PART)
        assert part_digests(made) == [{"md5"}] * 3
    finally:
        client.meta.events.unregister("before-sign.s3", drop_crc)
    with faults(client, "UploadPart", error_response(400, "InvalidRequest")) as made:
        assert refusing.write("k", [LONG], part_bytes=PART)
    assert part_digests(made) == [{"crc", "md5"}, *[{"md5"}] * 3]
    assert content(ignoring, "k") == content(refusing, "k") == LONG


def test_part_with_an_unverified_crc_is_sent_again(s3: SeaweedFs, client: Any) -> None:
    """Some servers of a store may be older than others."""

    def unproved_answer(request: Any) -> AWSResponse:
        real = exchange(request)
        return AWSResponse(real.url, 200, {"ETag": real.headers["ETag"]}, real.raw)

    bucket = Bucket(s3.place(), client, limits=ONE_AT_ONCE)
    bucket.write("k", [LONG], part_bytes=PART)
    with faults(client, "UploadPart", unproved_answer) as made:
        bucket.write("k", [LONG[::-1]], part_bytes=PART)
    assert part_digests(made) == [{"crc"}, *[{"md5"}] * 3]
    assert content(bucket, "k") == LONG[::-1]
