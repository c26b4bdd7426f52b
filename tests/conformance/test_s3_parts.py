"""Uploads in parts by several clients at once; the first client completes the upload."""

from collections.abc import Callable
from hashlib import md5
from typing import Any
from urllib.request import Request, urlopen

import pytest
from botocore.awsrequest import AWSResponse

from detcloud.shared.bucket_errors import BucketError
from detcloud.shared.s3 import Bucket
from detcloud.shared.s3_client import new_client
from detcloud.shared.s3_parts import S3PartsUpload
from tests.conformance.test_s3_bucket import error_response
from tests.emulators.seaweedfs import SeaweedFs

CONTENT = b"of one part"


def refuse_completion(client: Any, status: int, code: str, act: Callable[[], Any]) -> None:
    """Refuse the next completion, and call `act` first."""
    refuse, done = error_response(status, code), list[bool]()

    def send(request: Any, **_: object) -> AWSResponse | None:
        if done:
            return None
        done.append(True)
        act()
        return refuse(request)

    client.meta.events.register("before-send.s3.CompleteMultipartUpload", send)


def begin(bucket: Bucket, key: str) -> S3PartsUpload:
    """Return an upload after the only part is stored."""
    opened = S3PartsUpload(bucket, key, len(CONTENT))
    url, headers = opened.sign_part(1, md5(CONTENT).hexdigest(), 60)
    with urlopen(Request(url, CONTENT, headers, method="PUT")):
        pass
    return opened


@pytest.mark.parametrize(("status", "code"), [(412, "PreconditionFailed"), (404, "NoSuchUpload")])
def test_second_completion_reports_the_existing_object(
    s3: SeaweedFs, status: int, code: str
) -> None:
    place = s3.place()
    client = new_client(place)
    bucket, other = Bucket(place, client), Bucket(place, s3.client)
    opened = begin(bucket, "k")
    refuse_completion(client, status, code, S3PartsUpload(other, "k", len(CONTENT)).join)
    assert not opened.join()
    assert b"".join(bucket.read("k")) == CONTENT


def test_conflict_without_a_winner_is_a_temporary_error(s3: SeaweedFs) -> None:
    place = s3.place()
    client = new_client(place)
    opened = begin(Bucket(place, client), "k")
    refuse_completion(client, 409, "ConditionalRequestConflict", lambda: None)
    with pytest.raises(BucketError, match="ConditionalRequestConflict"):
        opened.join()
    assert opened.join()
