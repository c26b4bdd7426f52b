"""Tests of the own agent of an embedded cluster and of changed configurations."""

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from control_plane.agents.service import AgentService
from control_plane.errors import RequestError
from control_plane.services import Services
from local_cluster.embedded_cluster import EmbeddedCluster, build_embedded_cluster, own_agent_name
from local_cluster.home import HomeFolder

GPUS = """
resource_manager: {default_compute_resource_pool: gpus, default_aux_resource_pool: gpus}
resource_pools: [{pool_name: gpus}]
"""
SLOTS = ((0, "cpu", "u0", "n"),)


@contextmanager
def running_cluster(home: Path, config: str | None = None) -> Iterator[EmbeddedCluster]:
    cluster = build_embedded_cluster(HomeFolder(home), "me", config)
    try:
        yield cluster
    finally:
        cluster.table.close()


def agents_of(cluster: EmbeddedCluster) -> AgentService:
    services = cluster.app.state.services
    assert isinstance(services, Services)
    return services.agents


def test_own_agent_of_a_stopped_cluster_does_not_prevent_pool_removal(tmp_path: Path) -> None:
    with running_cluster(tmp_path) as cluster:
        agents_of(cluster).enrol(own_agent_name("default"), "default", SLOTS, "1")
    with running_cluster(tmp_path, GPUS) as cluster:
        assert cluster.own_pool == "gpus"
        agents_of(cluster).enrol(own_agent_name("gpus"), "gpus", SLOTS, "1")
    # And back again.
    with running_cluster(tmp_path, "resource_pools: [{pool_name: default}]") as cluster:
        assert cluster.own_pool == "default"


def test_foreign_agent_prevents_removal_of_the_pool(tmp_path: Path) -> None:
    with running_cluster(tmp_path) as cluster:
        agents_of(cluster).enrol("desk", "default", SLOTS, "1")
    with (
        pytest.raises(RequestError, match="pool default has 1 agent"),
        running_cluster(tmp_path, GPUS),
    ):
        pass
