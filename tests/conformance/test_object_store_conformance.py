"""The suite of object stores over each of them."""

from pathlib import Path

import pytest

from control_plane.objects.directory import DirectoryStore
from control_plane.objects.store import SignedUrl
from tests.conformance.object_store import ObjectStoreContract, Send
from tests.unit.api.cluster import NOW_MS, Cluster, cluster
from tests.unit.api.exchange import call


class TestDirectoryStore(ObjectStoreContract):
    """Signed requests go to the API's own object routes."""

    @pytest.fixture
    def served(self, tmp_path: Path) -> Cluster:
        return cluster(tmp_path / "objects")

    @pytest.fixture
    def store(self, served: Cluster) -> DirectoryStore:
        return served.objects

    @pytest.fixture
    def now_ms(self) -> int:
        return NOW_MS

    @pytest.fixture
    def send(self, served: Cluster) -> Send:
        def send(signed: SignedUrl, body: bytes) -> tuple[int, bytes]:
            answer = call(
                served.app, signed.method, signed.url, headers=signed.headers.items(), body=body
            )
            return answer.status, answer.body

        return send
