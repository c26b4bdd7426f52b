"""The suite of checkpoint stores over each of them."""

import os
from pathlib import Path
from typing import Any

import pytest

from detcloud.storage import CheckpointStore, build_store
from detcloud.storage.types.directory import DirectoryStore
from detcloud.storage.types.s3 import S3Store
from tests.conformance.checkpoint_store import CheckpointStoreContract
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
