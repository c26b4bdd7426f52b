from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.end_to_end.laptop import Laptop
from tests.hostile.live_server import Live
from tests.unit.api.agent_side import CONFIG
from tests.unit.api.cluster import Cluster, build_cluster


@pytest.fixture
def cluster(tmp_path: Path) -> Cluster:
    return build_cluster(tmp_path / "cluster")


@pytest.fixture
def laptop(tmp_path: Path) -> Iterator[Laptop]:
    """Yield the home of a cluster that does not exist yet; check that no process remains."""
    one = Laptop(tmp_path / "home")
    yield one
    assert one.end() == [], "something outlived `detcloud down`"


@pytest.fixture(scope="module")
def live(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Live]:
    folder: Path = tmp_path_factory.mktemp("live")
    cluster = build_cluster(folder)
    assert cluster.create(CONFIG).status == 201
    one = Live(cluster)
    one.start()
    yield one
    one.stop()
