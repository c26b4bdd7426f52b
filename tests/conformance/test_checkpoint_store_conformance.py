"""The suite of checkpoint stores over each of them."""

import os
from pathlib import Path
from typing import Any

import pytest

from detcloud.storage import CheckpointStore, StorageError, build_store
from detcloud.storage.types.directory import DirectoryStore
from detcloud.storage.types.s3 import S3Store
from tests.conformance.checkpoint_store import CheckpointStoreContract
from tests.emulators.fake_gcs import FakeGcs
from tests.emulators.seaweedfs import SeaweedFs


class TestDirectoryStore(CheckpointStoreContract):
    @pytest.fixture(params=["directory", "shared_fs"])
    def store(self, request: pytest.FixtureRequest, tmp_path: Path) -> CheckpointStore:
        return build_store({"type": request.param, "path": str(tmp_path / "store")})


class TestDirectoryStoreWithoutHardLinks(CheckpointStoreContract):
    @pytest.fixture
    def store(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> CheckpointStore:
        def refuse(*_paths: Any) -> None:
            raise PermissionError("no hard links here")

        monkeypatch.setattr(os, "link", refuse)
        return DirectoryStore(tmp_path / "store")


class TestS3Store(CheckpointStoreContract):
    @pytest.fixture
    def store(self, s3: SeaweedFs) -> CheckpointStore:
        return S3Store(s3.bucket("of/a team/"))


class TestGcsStore(CheckpointStoreContract):
    @pytest.fixture
    def store(self, gcs: FakeGcs) -> CheckpointStore:
        return build_store({"type": "gcs", "bucket": gcs.new_bucket(), "prefix": "/of/a team/"})


def test_an_upload_to_gcs_whose_answer_was_lost_still_wins(
    gcs: FakeGcs, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from google.cloud.storage import Blob

    store = build_store({"type": "gcs", "bucket": gcs.new_bucket()})
    (tmp_path / "source").write_bytes(b"abc")
    upload = Blob.upload_from_filename

    def upload_twice(blob: Any, *arguments: Any, **options: Any) -> None:
        upload(blob, *arguments, **options)
        upload(blob, *arguments, **options)

    monkeypatch.setattr(Blob, "upload_from_filename", upload_twice)
    store.put("k", tmp_path / "source")
    assert store.list("k") == {"k": 3}


def test_a_missing_bucket_of_gcs_is_said(gcs: FakeGcs, tmp_path: Path) -> None:
    store = build_store({"type": "gcs", "bucket": "no-such-bucket"})
    (tmp_path / "source").write_bytes(b"abc")
    with pytest.raises(StorageError, match="gs://no-such-bucket: storing 'k' failed: 404"):
        store.put("k", tmp_path / "source")
