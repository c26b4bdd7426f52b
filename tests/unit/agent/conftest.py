from __future__ import annotations

import os
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


@pytest.fixture
def bytes_read(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """Patch os.pread; return the list to which each call appends the number of bytes read."""
    read: list[int] = []
    pread = os.pread

    def read_counted(descriptor: int, length: int, offset: int) -> bytes:
        content = pread(descriptor, length, offset)
        read.append(len(content))
        return content

    monkeypatch.setattr(os, "pread", read_counted)
    return read
