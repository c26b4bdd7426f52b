from pathlib import Path

import pytest

from tests.unit.api.cluster import Cluster, build_cluster


@pytest.fixture
def cluster(tmp_path: Path) -> Cluster:
    return build_cluster(tmp_path / "objects", frozenset({"local"}))
