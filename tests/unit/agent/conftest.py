from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from detcloud.agent.allocation.directory import AllocationDirectory
from detcloud.agent.storage_credentials import CredentialServer


@pytest.fixture
def server(tmp_path: Path, cluster: Any) -> Iterator[CredentialServer]:
    """Serve the keys and tokens that the test's `cluster` issues; close the server at the end."""
    running = CredentialServer(tmp_path, cluster.fetch, print)
    yield running
    running.close()


@pytest.fixture
def directory(tmp_path: Path) -> AllocationDirectory:
    """Create and return the directory of allocation 4.1."""
    allocation = AllocationDirectory(tmp_path / "allocations", "4.1")
    allocation.create()
    return allocation
