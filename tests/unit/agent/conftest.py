from __future__ import annotations

from pathlib import Path

import pytest

from detcloud.agent.allocation.directory import AllocationDirectory


@pytest.fixture
def directory(tmp_path: Path) -> AllocationDirectory:
    """The directory of an allocation, made."""
    allocation = AllocationDirectory(tmp_path / "allocations", "4.1")
    allocation.create()
    return allocation
