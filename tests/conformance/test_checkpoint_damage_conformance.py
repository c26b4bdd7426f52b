"""The suite of damaged checkpoints for each store, and stores that refuse missing files."""

from pathlib import Path
from typing import Any

import pytest
import requests
from botocore.awsrequest import AWSResponse

from detcloud.core import CheckpointDamaged
from detcloud.shared.bucket_place import BucketPlace
from detcloud.shared.gcs import GcsBucket
from detcloud.shared.s3 import Bucket
from detcloud.shared.s3_client import new_client
from detcloud.storage import StorageError
from detcloud.storage.bucket_store import BucketStore
from tests.conformance.checkpoint_damage import CheckpointDamageContract, StoredCheckpoint
from tests.conformance.checkpoint_files import hdfs_storage
from tests.conformance.test_gcs_bucket import Exchange, FaultySession
from tests.conformance.test_s3_bucket import error_response
from tests.emulators.azurite import Azurite
from tests.emulators.fake_gcs import FakeGcs
from tests.emulators.hadoop import Hadoop
from tests.emulators.seaweedfs import SeaweedFs
from tests.emulators.webhdfs import OWNER, WebHdfs


def s3_storage(s3: SeaweedFs) -> dict[str, str]:
    place = s3.place()
    return {
        "type": "s3",
        "bucket": place.name,
        "endpoint_url": str(place.endpoint_url),
        "access_key": str(place.access_key),
        "secret_key": str(place.secret_key),
    }


class TestFolderDamage(CheckpointDamageContract):
    @pytest.fixture
    def storage(self, tmp_path: Path) -> dict[str, str]:
        return {"type": "directory", "path": str(tmp_path / "store")}


class TestBucketDamage(CheckpointDamageContract):
    @pytest.fixture
    def storage(self, s3: SeaweedFs) -> dict[str, str]:
        return s3_storage(s3)


class TestGcsDamage(CheckpointDamageContract):
    @pytest.fixture
    def storage(self, gcs: FakeGcs) -> dict[str, str]:
        return {"type": "gcs", "bucket": gcs.new_bucket(), "prefix": "of/a team/"}


class TestAzureDamage(CheckpointDamageContract):
    @pytest.fixture
    def storage(self, azure: Azurite) -> dict[str, str]:
        return azure.storage()


class TestHdfsDamage(CheckpointDamageContract):
    @pytest.fixture
    def storage(self, model_hdfs: WebHdfs) -> dict[str, str]:
        return hdfs_storage(model_hdfs.url, OWNER)


@pytest.mark.nightly
class TestHadoopDamage(CheckpointDamageContract):
    @pytest.fixture
    def storage(self, real_hdfs: Hadoop) -> dict[str, str]:
        return hdfs_storage(real_hdfs.url, real_hdfs.user)


def test_s3_that_refuses_missing_files_shows_damage_by_the_listing(
    s3: SeaweedFs, tmp_path: Path
) -> None:
    storage = s3_storage(s3)
    stored = StoredCheckpoint(storage, tmp_path)
    stored.lose("weights.pth")
    client = new_client(BucketPlace.from_storage(storage))
    refuse = error_response(403, "AccessDenied")

    def refuse_missing(request: Any, **_: Any) -> AWSResponse | None:
        return refuse(request) if "weights.pth" in request.url else None

    # Amazon's answer to users without the right to list the bucket.
    client.meta.events.register("before-send.s3.GetObject", refuse_missing)
    bucket = Bucket(BucketPlace.from_storage(storage), client)
    with pytest.raises(CheckpointDamaged, match=r"the store has no weights\.pth"):
        stored.restore(BucketStore(bucket))
    assert stored.find_missing() == "weights.pth is not there, 102400 bytes are listed"
    # A refused file that exists is not damage.
    stored.replace("weights.pth", stored.contents["weights.pth"])
    stored.reports.clear()
    with pytest.raises(StorageError, match=r"weights\.pth cannot be read.*AccessDenied"):
        stored.restore(BucketStore(bucket))
    assert stored.reports == []


def test_gcs_that_refuses_missing_files_shows_damage_by_the_listing(
    gcs: FakeGcs, tmp_path: Path
) -> None:
    name = gcs.new_bucket()
    stored = StoredCheckpoint({"type": "gcs", "bucket": name}, tmp_path)
    stored.lose("weights.pth")
    session = FaultySession()

    def refuse_weights(method: str, url: str, exchange: Exchange) -> requests.Response:
        answer = exchange()
        if "weights.pth" in url:
            answer.status_code = 403
        return answer

    session.fault = refuse_weights
    bucket = GcsBucket(name, session=session)
    with pytest.raises(CheckpointDamaged, match=r"the store has no weights\.pth"):
        stored.restore(BucketStore(bucket))
    stored.replace("weights.pth", stored.contents["weights.pth"])
    stored.reports.clear()
    with pytest.raises(StorageError, match=r"weights\.pth cannot be read"):
        stored.restore(BucketStore(bucket))
    assert stored.reports == []


def test_missing_bucket_is_not_damage(s3: SeaweedFs, gcs: FakeGcs, tmp_path: Path) -> None:
    stored = StoredCheckpoint(s3_storage(s3), tmp_path)
    place = s3.place()
    gone = BucketStore(Bucket(place, s3.client))
    s3.client.delete_bucket(Bucket=place.name)
    for store in (gone, BucketStore(GcsBucket("no-such-bucket"))):
        with pytest.raises(StorageError, match=r"manifest\.json cannot be read"):
            stored.restore(store)
    assert stored.reports == []
