from pathlib import Path

import pytest

from tests.unit.api.cluster import Cluster, build_cluster


@pytest.fixture
def cluster(tmp_path: Path) -> Cluster:
    return build_cluster(tmp_path / "objects")


@pytest.fixture
def cluster_with_local(tmp_path: Path) -> Cluster:
    """A cluster with pools that may launch instances on this machine."""
    return build_cluster(tmp_path / "objects", frozenset({"local"}))


@pytest.fixture
def cluster_with_aws(tmp_path: Path) -> Cluster:
    """A cluster with pools that may launch instances of EC2."""
    return build_cluster(tmp_path / "objects", frozenset({"aws"}))
