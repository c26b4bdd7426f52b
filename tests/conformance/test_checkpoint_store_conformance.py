"""The suite of checkpoint stores, for each store."""

from pathlib import Path

import pytest

from detcloud.storage import CheckpointStore, StorageError, build_store
from detcloud.storage.bucket_store import BucketStore
from detcloud.storage.types.directory import DirectoryStore
from tests.conformance.checkpoint_files import hdfs_storage
from tests.conformance.checkpoint_store import CheckpointStoreContract
from tests.emulators.azurite import Azurite
from tests.emulators.fake_gcs import FakeGcs
from tests.emulators.hadoop import Hadoop
from tests.emulators.seaweedfs import SeaweedFs
from tests.emulators.webhdfs import OWNER, WebHdfs
from tests.unit.storage.conftest import _no_hard_links

__all__ = ["_no_hard_links"]


class TestDirectoryStore(CheckpointStoreContract):
    @pytest.fixture(params=["directory", "shared_fs"])
    def store(self, request: pytest.FixtureRequest, tmp_path: Path) -> CheckpointStore:
        return build_store({"type": request.param, "path": str(tmp_path / "store")})


@pytest.mark.usefixtures("_no_hard_links")
class TestDirectoryStoreWithoutHardLinks(CheckpointStoreContract):
    @pytest.fixture
    def store(self, tmp_path: Path) -> CheckpointStore:
        return DirectoryStore(tmp_path / "store")


class TestBucketStore(CheckpointStoreContract):
    @pytest.fixture
    def store(self, s3: SeaweedFs) -> CheckpointStore:
        return BucketStore(s3.bucket("of/a team/"))


class TestGcsStore(CheckpointStoreContract):
    @pytest.fixture
    def store(self, gcs: FakeGcs) -> CheckpointStore:
        return build_store({"type": "gcs", "bucket": gcs.new_bucket(), "prefix": "/of/a team/"})


class TestAzureStore(CheckpointStoreContract):
    @pytest.fixture
    def store(self, azure: Azurite) -> CheckpointStore:
        return build_store(azure.storage())


class TestHdfsStore(CheckpointStoreContract):
    @pytest.fixture
    def store(self, model_hdfs: WebHdfs) -> CheckpointStore:
        return build_store(hdfs_storage(model_hdfs.url, OWNER))


@pytest.mark.nightly
class TestHadoopStore(CheckpointStoreContract):
    @pytest.fixture
    def store(self, real_hdfs: Hadoop) -> CheckpointStore:
        return build_store(hdfs_storage(real_hdfs.url, real_hdfs.user))


def test_error_names_a_missing_gcs_bucket(gcs: FakeGcs, tmp_path: Path) -> None:
    store = build_store({"type": "gcs", "bucket": "no-such-bucket"})
    (tmp_path / "source").write_bytes(b"abc")
    with pytest.raises(
        StorageError, match="storing 'k' in gs://no-such-bucket failed: there is no bucket"
    ):
        store.put("k", tmp_path / "source")
