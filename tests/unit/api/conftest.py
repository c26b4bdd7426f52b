from pathlib import Path

import pytest

from tests.unit.api.cluster import Cluster, cluster


@pytest.fixture
def served(tmp_path: Path) -> Cluster:
    return cluster(tmp_path / "objects")


@pytest.fixture
def served_with_local(tmp_path: Path) -> Cluster:
    """A cluster whose pools may launch instances on its machine."""
    return cluster(tmp_path / "objects", frozenset({"local"}))


@pytest.fixture
def served_with_aws(tmp_path: Path) -> Cluster:
    """A cluster whose pools may launch instances of EC2."""
    return cluster(tmp_path / "objects", frozenset({"aws"}))
