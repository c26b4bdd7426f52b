import pytest

from control_plane.checkpoint_stores import registry as server
from detcloud.storage import register_store
from detcloud.storage import registry as client
from tests.unit.api.conftest import cluster
from tests.unit.checkpoint_stores import memory_type
from tests.unit.storage import memory_store

__all__ = ["cluster"]


@pytest.fixture
def shelves(monkeypatch: pytest.MonkeyPatch) -> dict[str, dict[str, bytes]]:
    """Register the store `memory` in server and client for a test; return the store's shelves."""
    memory_store.shelves.clear()
    monkeypatch.setattr(server, "_registered", {})
    monkeypatch.setattr(client, "_registered", {})
    server.register(memory_type.SPEC)
    register_store("memory", "tests.unit.storage.memory_store:build_memory_store")
    return memory_store.shelves
