"""The deletion of expired logs and metrics, on the table and the object store of each host."""

import uuid
from pathlib import Path

import pytest

from control_plane.aws.object_store import S3ObjectStore
from control_plane.aws.state_table import DynamoDbTable, table_definition
from control_plane.gcp.object_store import GcsObjectStore
from control_plane.gcp.state_table import FirestoreTable
from control_plane.objects.directory import DirectoryObjectStore
from control_plane.objects.signing import HmacUrlSigner
from control_plane.objects.store import ObjectKey, ObjectStore
from control_plane.state.sqlite import SqliteTable
from control_plane.state.table import StateTable
from detcloud.shared.gcs import GcsBucket
from lambdas.clock import now_ms
from tests.conformance.test_object_store_conformance import SMALL
from tests.emulators.fake_gcs import FakeGcs
from tests.emulators.firestore import Firestore
from tests.emulators.gcs_signatures import MachineCredentials, SigningService
from tests.emulators.ministack import Ministack
from tests.emulators.seaweedfs import SeaweedFs
from tests.unit.checkpoint_gc.collection_cluster import CollectionCluster
from tests.unit.checkpoint_gc.expired_data import (
    BEST,
    LAST,
    WORST,
    keep_for,
    log_text,
    pass_days,
    set_epoch,
    steps_of,
    trial,
    write_data,
)


class DataExpiryContract:
    """Expired data is deleted, and the kept values remain."""

    @pytest.fixture
    def cluster(self, tmp_path: Path, table: StateTable, store: ObjectStore) -> CollectionCluster:
        cluster = CollectionCluster(tmp_path, table, objects=store)
        cluster.run_search()
        set_epoch(cluster, 1, 1)
        write_data(cluster, 1, 1)
        return cluster

    def test_expired_data_is_deleted_once_the_days_are_over(
        self, cluster: CollectionCluster
    ) -> None:
        keep_for(cluster, 1, 2)
        pass_days(cluster, 1)
        assert log_text(cluster, 1) == ""
        assert [*cluster.objects.list_objects(ObjectKey("logs/1"))] == []
        assert steps_of(cluster, 1, "training") == list(range(1, LAST + 1))
        pass_days(cluster, 1)
        assert steps_of(cluster, 1, "training") == [BEST, WORST, LAST]
        assert steps_of(cluster, 1, "validation") == list(range(1, 50))
        assert [*cluster.objects.list_objects(ObjectKey("metrics/1"))] == []
        assert trial(cluster, 1).expired_data.metrics_epoch == 1
        assert cluster.rows("retention-ends") == []


class TestLaptop(DataExpiryContract):
    """SQLite and a folder."""

    @pytest.fixture
    def table(self) -> StateTable:
        return SqliteTable(":memory:")

    @pytest.fixture
    def store(self, tmp_path: Path) -> ObjectStore:
        return DirectoryObjectStore(tmp_path / "objects", HmacUrlSigner(b"s" * 32))


class TestAws(DataExpiryContract):
    """DynamoDB and S3."""

    @pytest.fixture
    def table(self, aws: Ministack) -> StateTable:
        name = f"table-{uuid.uuid4().hex}"
        aws.client("dynamodb").create_table(**table_definition(name))
        return DynamoDbTable(aws.client("dynamodb"), name)

    @pytest.fixture
    def store(self, s3: SeaweedFs) -> ObjectStore:
        return S3ObjectStore(s3.bucket("of/a cluster"), now_ms)


class TestGoogle(DataExpiryContract):
    """Firestore and Google Cloud Storage."""

    @pytest.fixture
    def table(self, firestore: Firestore) -> StateTable:
        return FirestoreTable(firestore.client(firestore.new_database()))

    @pytest.fixture
    def store(self, gcs: FakeGcs) -> ObjectStore:
        bucket = GcsBucket(
            gcs.new_bucket(), "of/a cluster", MachineCredentials(), SigningService(), limits=SMALL
        )
        return GcsObjectStore(bucket, now_ms)
