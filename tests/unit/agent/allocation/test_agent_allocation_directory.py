from __future__ import annotations

from pathlib import Path

import pytest

from detcloud.agent.allocation.directory import AllocationDirectory


@pytest.mark.parametrize("name", ["../x", "", ".hidden", "a/b", "a" * 200])
def test_rejects_malformed_allocation_ids(tmp_path: Path, name: str) -> None:
    with pytest.raises(ValueError, match="allocation id"):
        AllocationDirectory(tmp_path, name)
