"""The suite of object stores, for each store."""

import time
from collections.abc import Iterator
from itertools import repeat
from pathlib import Path

import pytest

from control_plane.aws.object_store import S3ObjectStore
from control_plane.gcp.object_store import GcsObjectStore
from control_plane.objects.directory import DirectoryObjectStore
from control_plane.objects.store import ObjectStore, SignedUrl
from detcloud.shared.gcs import GcsBucket
from detcloud.shared.gcs_limits import GcsLimits
from lambdas.clock import now_ms
from tests.conformance.object_store import LOG, VALIDITY_MS, ObjectStoreContract, Send, Wait
from tests.emulators.fake_gcs import FakeGcs
from tests.emulators.gcs_signatures import MachineCredentials, SigningService
from tests.emulators.seaweedfs import SeaweedFs
from tests.emulators.strangers import send
from tests.unit.api.cluster import NOW_MS, Cluster, build_cluster
from tests.unit.api.exchange import call

# The smallest parts that Google accepts.
SMALL = GcsLimits(part_bytes=256 * 1024)


class TestDirectoryStore(ObjectStoreContract):
    """A folder, with signed requests to the API's own object routes."""

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
    """A bucket of S3, with signed requests over a real connection."""

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


class TestGcsStore(ObjectStoreContract):
    """A bucket of Google, with signed requests through checks that the emulator lacks."""

    @pytest.fixture
    def service(self) -> SigningService:
        return SigningService()

    @pytest.fixture
    def store(self, gcs: FakeGcs, service: SigningService) -> GcsObjectStore:
        credentials = MachineCredentials()
        return GcsObjectStore(
            GcsBucket(gcs.new_bucket(), "of/a cluster", credentials, service, limits=SMALL), now_ms
        )

    @pytest.fixture
    def now_ms(self) -> int:
        return now_ms()

    @pytest.fixture
    def wait(self) -> Wait:
        return lambda duration_ms: time.sleep(duration_ms / 1000)

    @pytest.fixture
    def send(self, service: SigningService) -> Send:
        return service.send

    def test_long_object_is_stored_in_parts_completely_or_not_at_all(
        self, store: ObjectStore
    ) -> None:
        part = SMALL.part_bytes

        def failing_blocks() -> Iterator[bytes]:
            yield from repeat(b"x" * part, 3)
            raise ConnectionError("gone")

        with pytest.raises(ConnectionError):
            store.put(LOG, failing_blocks())
        assert store.size(LOG) is None
        # 3.5 parts.
        content = bytes(range(256)) * (7 * part // 512)
        assert store.put(LOG, content, if_absent=True) is True
        assert b"".join(store.get(LOG)) == content
        with pytest.raises(ConnectionError):
            store.put(LOG, failing_blocks())
        assert b"".join(store.get(LOG, start=part - 1, length=2)) == content[part - 1 : part + 1]

    def test_urls_are_signed_by_the_service_for_at_most_15_minutes(
        self, store: ObjectStore, service: SigningService, now_ms: int
    ) -> None:
        before = service.signed
        signed = store.signed_url("GET", LOG, expires_ms=now_ms + 10 * VALIDITY_MS)
        assert service.signed == before + 1
        # 15 minutes at most.
        assert signed.expires_ms <= now_ms + 15 * 60_000 + 60_000
        assert "X-Goog-Expires=900&" in signed.url
