"""The written address of a bucket."""

import pytest

from detcloud.shared.bucket_address import bucket_address, parse_bucket_address
from detcloud.shared.bucket_place import BucketPlace


@pytest.mark.parametrize(
    ("text", "place"),
    [
        ("s3://lab", BucketPlace("lab")),
        ("s3://lab/", BucketPlace("lab")),
        ("s3://lab/of/a team/", BucketPlace("lab", "of/a team")),
        ("s3://lab?region=eu-west-1", BucketPlace("lab", region="eu-west-1")),
        (
            "s3://lab/team?endpoint_url=https://minio.lab:9000&region=lab",
            BucketPlace("lab", "team", "https://minio.lab:9000", "lab"),
        ),
        (
            "s3://lab?endpoint_url=http%3A%2F%2F%5B::1%5D:9000%2Fs3",
            BucketPlace("lab", "", "http://[::1]:9000/s3"),
        ),
    ],
)
def test_address_is_read_and_written(text: str, place: BucketPlace) -> None:
    assert parse_bucket_address(text) == place
    assert parse_bucket_address(bucket_address(place)) == place


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("gs://lab/team", "is not s3://BUCKET"),
        ("s3:///team", "names no bucket"),
        ("s3://lab/a//b", "empty part"),
        ("s3://lab/../b", "empty part"),
        ("s3://lab#x", "is not s3://BUCKET"),
        ("s3://lab?endpoint=http://minio", "the parameter 'endpoint'; expected endpoint_url"),
        ("s3://lab?endpoint_url=", "empty or repeated"),
        ("s3://lab?region=a&region=b", "empty or repeated"),
        ("s3://lab?endpoint_url=minio:9000", "expected http://HOST"),
        ("s3://lab?endpoint_url=http://minio:99999", "expected http://HOST"),
    ],
)
def test_invalid_address_is_refused_with_the_reason(text: str, reason: str) -> None:
    with pytest.raises(ValueError, match=reason):
        parse_bucket_address(text)


@pytest.mark.parametrize(
    "text", ["s3://me:hidden@lab/team", "s3://lab?endpoint_url=http://me:hidden@minio:9000"]
)
def test_login_is_refused_and_not_shown(text: str) -> None:
    with pytest.raises(ValueError, match=r"credentials are not part|without a login") as refusal:
        parse_bucket_address(text)
    assert "hidden" not in str(refusal.value)
