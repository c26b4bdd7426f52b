import sys
from pathlib import Path
from typing import Any

import pytest

from detcloud import core
from detcloud.storage import StorageError, build_store
from tests.conftest import require
from tests.unit.checkpoint_stores.conftest import shelves
from tests.unit.core.trial_files import enter, kinds, make_trial

__all__ = ["shelves"]

# Names of importable modules, but of no storage types.
ELSEWHERE = ("..store", "s3.x", "__init__", "os", "", "Directory", "s3\n")
KEYS = {"type": "s3", "bucket": "b", "access_key": "a", "secret_key": "of ours"}


@pytest.mark.parametrize(
    ("config", "message"),
    [
        ({"type": "tape"}, "storage type 'tape' is unknown"),
        ({}, "storage type None is unknown"),
        *(({"type": name}, "is unknown; known: ") for name in ELSEWHERE),
        ({"type": "directory"}, "storage path is None: expected an absolute path"),
        ({"type": "shared_fs", "path": "here"}, "storage path is 'here'"),
        ({"type": "s3"}, "storage bucket is None: a name is needed"),
        ({"type": "azure"}, "storage container is None: a name is needed"),
        ({"type": "hdfs", "hdfs_path": "/a"}, "storage hdfs_url is None: a value is needed"),
    ],
)
def test_error_for_an_invalid_store_names_the_cause(config: dict[str, Any], message: str) -> None:
    with pytest.raises(StorageError, match=message):
        build_store(config)


def test_error_for_an_unknown_type_lists_the_known_types() -> None:
    with pytest.raises(StorageError, match="is unknown; known: ") as refused:
        build_store({"type": "tape"})
    known = str(refused.value).partition("known: ")[2].split(", ")
    assert known == sorted(known)
    # Other tests may have registered more types.
    assert {"azure", "directory", "gcs", "hdfs", "s3", "shared_fs"} <= set(known)


@pytest.mark.parametrize(
    ("config", "message"),
    [
        ({"type": "s3", "bucket": "b", "access_key": "a"}, "must be set together"),
        ({**KEYS, "endpoint_url": "nowhere"}, "Invalid endpoint: nowhere"),
    ],
)
def test_options_refused_by_boto3_are_named(config: dict[str, Any], message: str) -> None:
    require("boto3")
    with pytest.raises(StorageError, match=message):
        build_store(config)


def test_error_for_a_missing_package_names_the_extra(monkeypatch: pytest.MonkeyPatch) -> None:
    packages = ("boto3", "botocore", "google", "azure")
    for name in [*packages, *sys.modules]:
        if name.partition(".")[0] in packages:
            # Python then refuses the import.
            monkeypatch.setitem(sys.modules, name, None)
    named = {"bucket": "b", "container": "c", "connection_string": "AccountName=a;AccountKey=a2V5"}
    for storage_type, extra in (("s3", "aws"), ("gcs", "gcs"), ("azure", "azure")):
        with pytest.raises(StorageError, match=rf"pip install 'detcloud\[{extra}\]'"):
            build_store({"type": storage_type, **named})


def test_a_registered_store_keeps_checkpoints(
    tmp_path: Path, shelves: dict[str, dict[str, bytes]], monkeypatch: pytest.MonkeyPatch
) -> None:
    trial = make_trial(tmp_path, storage={"type": "memory", "shelf": "a"})
    enter(trial, monkeypatch)
    with core.init() as context:
        with context.checkpoint.store_path({"steps_completed": 1}) as (folder, uuid):
            (folder / "weights").write_text("w")
        with context.checkpoint.restore_path(uuid) as folder:
            assert (folder / "weights").read_text() == "w"
        assert {key.rpartition("/")[2] for key in shelves["a"]} == {
            "manifest.json",
            "metadata.json",
            "weights",
        }
        # A store without a folder keeps no event files either.
        assert context.train.get_tensorboard_path().is_relative_to(tmp_path)
    assert {"checkpoint_intent", "checkpoint", "exit"} <= set(kinds(trial))
    known = "azure, directory, gcs, hdfs, memory, s3, shared_fs"
    with pytest.raises(StorageError, match=f"known: {known}"):
        build_store({"type": "tape"})
