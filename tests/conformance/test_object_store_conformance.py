"""The suite of object stores over each of them."""

import time
from pathlib import Path

import pytest

from control_plane.aws.object_store import S3ObjectStore
from control_plane.objects.directory import DirectoryObjectStore
from control_plane.objects.store import SignedUrl
from lambdas.clock import now_ms
from tests.conformance.object_store import ObjectStoreContract, Send, Wait
from tests.emulators.seaweedfs import SeaweedFs
from tests.emulators.strangers import send
from tests.unit.api.cluster import NOW_MS, Cluster, build_cluster
from tests.unit.api.exchange import call


class TestDirectoryStore(ObjectStoreContract):
    """Signed requests go to the API's own object routes."""

    @pytest.fixture
    def cluster(self, tmp_path: Path) -> Cluster:
        return build_cluster(tmp_path / "objects")

    @pytest.fixture
    def store(self, cluster: Cluster) -> DirectoryObjectStore:
        return cluster.objects

    @pytest.fixture
    def now_ms(self) -> int:
        return NOW_MS

    @pytest.fixture
    def wait(self, cluster: Cluster) -> Wait:
        def wait(duration_ms: int) -> None:
            cluster.clock.ms += duration_ms

        return wait

    @pytest.fixture
    def send(self, cluster: Cluster) -> Send:
        def send(signed: SignedUrl, body: bytes) -> tuple[int, bytes]:
            answer = call(
                cluster.app, signed.method, signed.url, headers=signed.headers.items(), body=body
            )
            return answer.status, answer.body

        return send


class TestS3Store(ObjectStoreContract):
    """Signed requests go to the bucket, over a real connection."""

    @pytest.fixture
    def store(self, s3: SeaweedFs) -> S3ObjectStore:
        return S3ObjectStore(s3.bucket("of/a cluster"), now_ms)

    @pytest.fixture
    def now_ms(self) -> int:
        return now_ms()

    @pytest.fixture
    def wait(self) -> Wait:
        return lambda duration_ms: time.sleep(duration_ms / 1000)

    @pytest.fixture
    def send(self) -> Send:
        return send
