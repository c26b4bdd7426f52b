"""The suite of the server's side of checkpoint stores, for each store."""

from pathlib import Path

import pytest

from tests.conformance.checkpoint_files import CheckpointFilesContract, hdfs_storage
from tests.emulators.azurite import Azurite
from tests.emulators.fake_gcs import FakeGcs
from tests.emulators.hadoop import Hadoop
from tests.emulators.seaweedfs import SeaweedFs
from tests.emulators.webhdfs import OWNER, WebHdfs
from tests.unit.checkpoint_stores.conftest import shelves

__all__ = ["shelves"]


class TestFolderFiles(CheckpointFilesContract):
    @pytest.fixture(params=["directory", "shared_fs"])
    def storage(self, request: pytest.FixtureRequest, tmp_path: Path) -> dict[str, str]:
        return {"type": request.param, "path": str(tmp_path / "store")}


class TestBucketFiles(CheckpointFilesContract):
    @pytest.fixture
    def storage(self, s3: SeaweedFs) -> dict[str, str]:
        place = s3.place()
        fields = {
            "type": "s3",
            "bucket": place.name,
            "prefix": "of/a team/",
            "endpoint_url": place.endpoint_url,
            "access_key": place.access_key,
            "secret_key": place.secret_key,
        }
        return {name: str(value) for name, value in fields.items()}


class TestGcsFiles(CheckpointFilesContract):
    @pytest.fixture
    def storage(self, resumable_gcs: FakeGcs) -> dict[str, str]:
        return {"type": "gcs", "bucket": resumable_gcs.new_bucket(), "prefix": "of/a team/"}


class TestAzureFiles(CheckpointFilesContract):
    @pytest.fixture
    def storage(self, azure: Azurite) -> dict[str, str]:
        return azure.storage()


class TestHdfsFiles(CheckpointFilesContract):
    @pytest.fixture
    def storage(self, model_hdfs: WebHdfs) -> dict[str, str]:
        return hdfs_storage(model_hdfs.url, OWNER)


@pytest.mark.nightly
class TestHadoopFiles(CheckpointFilesContract):
    @pytest.fixture
    def storage(self, real_hdfs: Hadoop) -> dict[str, str]:
        return hdfs_storage(real_hdfs.url, real_hdfs.user)


class TestMemoryFiles(CheckpointFilesContract):
    @pytest.fixture
    def storage(self, shelves: dict[str, dict[str, bytes]]) -> dict[str, str]:
        return {"type": "memory", "shelf": "a"}
