from typing import Any

import pytest

from control_plane.checkpoint_stores.trial_storage import (
    display_storage,
    storage_fields,
    storage_location,
)
from control_plane.checkpoint_stores.types.directory import Directory
from control_plane.checkpoint_stores.types.s3 import S3
from control_plane.config.check import check_config
from control_plane.config.storage import CheckpointStorage

FOLDER = Directory(type="directory", container_path="/var/checkpoints")
KEYS = {"access_key": "AKIA", "secret_key": "canary"}
BUCKET: dict[str, Any] = {
    "type": "s3",
    "bucket": "ours",
    "prefix": "team/",
    "endpoint_url": "http://minio:9000",
    **KEYS,
}


def parse_storage(**storage: Any) -> CheckpointStorage:
    config = {
        "entrypoint": "train.py",
        "searcher": {"name": "single", "metric": "loss", "max_length": 10},
        "checkpoint_storage": storage,
    }
    return check_config(str(config)).checkpoint_storage


def default() -> S3:
    storage = parse_storage(type="s3", bucket="the-cluster")
    assert isinstance(storage, S3)
    return storage


@pytest.mark.parametrize(
    ("storage", "checkpoints", "expected"),
    [
        ({}, FOLDER, {"type": "directory", "path": "/var/checkpoints"}),
        ({"save_trial_best": 2}, default(), {"type": "s3", "bucket": "the-cluster"}),
        ({"type": "s3", "bucket": "ours"}, FOLDER, {"type": "s3", "bucket": "ours"}),
        (BUCKET, default(), BUCKET),
        (
            {"type": "shared_fs", "host_path": "/mnt", "storage_path": "a"},
            default(),
            {"type": "shared_fs", "path": "/mnt/a"},
        ),
        ({"type": "gcs", "bucket": "ours"}, FOLDER, {"type": "gcs", "bucket": "ours"}),
        (
            {"type": "gcs", "bucket": "ours", "prefix": "a"},
            FOLDER,
            {"type": "gcs", "bucket": "ours", "prefix": "a"},
        ),
        (
            {"type": "hdfs", "hdfs_url": "http://a;http://b", "hdfs_path": "/c", "user": "d"},
            FOLDER,
            {"type": "hdfs", "hdfs_url": "http://a;http://b", "hdfs_path": "/c", "user": "d"},
        ),
        (
            {"type": "azure", "container": "c", "connection_string": "canary"},
            FOLDER,
            {"type": "azure", "container": "c", "connection_string": "canary"},
        ),
        (
            {"type": "azure", "container": "c", "account_url": "https://a.blob.core.windows.net"},
            FOLDER,
            {"type": "azure", "container": "c", "account_url": "https://a.blob.core.windows.net"},
        ),
    ],
)
def test_trial_storage_comes_from_the_configuration_or_the_cluster(
    storage: dict[str, Any], checkpoints: CheckpointStorage, expected: dict[str, str]
) -> None:
    assert storage_fields(parse_storage(**storage), checkpoints) == expected


def test_display_name_of_a_store_has_no_secret() -> None:
    fields = storage_fields(parse_storage(**BUCKET), FOLDER)
    assert display_storage(fields) == "s3://ours/team at http://minio:9000"
    assert display_storage({"type": "directory", "path": "/a"}) == "/a"
    hdfs = {"type": "hdfs", "hdfs_url": "http://me:canary@a; http://b", "hdfs_path": "/c/"}
    assert display_storage(hdfs) == "hdfs://c at http://a;http://b"
    azure = {"type": "azure", "container": "c", "connection_string": "AccountName=a;AccountKey=k"}
    assert display_storage(azure) == "https://a.blob.core.windows.net/c"
    assert display_storage({"type": "gcs", "bucket": "ours"}) == "gs://ours"
    assert display_storage({"type": "gcs", "bucket": "ours", "prefix": "a/b/"}) == "gs://ours/a/b"


@pytest.mark.parametrize(
    ("fields", "expected"),
    [
        ({"type": "directory", "path": "/c"}, {"path": "/c"}),
        (BUCKET, {"bucket": "ours", "prefix": "team/", "endpoint_url": "http://minio:9000"}),
        ({"type": "gcs", "bucket": "ours", "prefix": "p"}, {"bucket": "ours", "prefix": "p"}),
        (
            {
                "type": "azure",
                "container": "c",
                "connection_string": "AccountName=a;AccountKey=canary",
            },
            {"container": "c", "account_url": "https://a.blob.core.windows.net"},
        ),
        (
            {"type": "hdfs", "hdfs_url": "http://u:canary@n:1;http://m:2", "hdfs_path": "/p"},
            {"hdfs_url": "http://n:1;http://m:2", "hdfs_path": "/p"},
        ),
    ],
)
def test_location_of_a_store_has_no_secret(
    fields: dict[str, str], expected: dict[str, str]
) -> None:
    assert storage_location(fields) == {"type": fields["type"], **expected}
