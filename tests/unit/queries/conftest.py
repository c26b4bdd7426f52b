from pathlib import Path

import pytest

from tests.unit.api.agent_side import CONFIG
from tests.unit.api.cluster import Cluster
from tests.unit.api.conftest import cluster, cluster_with_aws, cluster_with_local

__all__ = ["cluster", "cluster_with_aws", "cluster_with_local"]


@pytest.fixture
def place(cluster: Cluster) -> Path:
    """The folder of trial 1's event files in the store."""
    cluster.create(CONFIG)
    path = cluster.checkpoints / "tensorboard" / "1" / "1"
    path.mkdir(parents=True)
    return path
