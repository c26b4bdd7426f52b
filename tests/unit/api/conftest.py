from pathlib import Path

import pytest

from tests.unit.api.cluster import Cluster, cluster


@pytest.fixture
def served(tmp_path: Path) -> Cluster:
    return cluster(tmp_path / "objects")
