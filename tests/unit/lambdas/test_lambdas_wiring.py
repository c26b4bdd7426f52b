"""What an embedded cluster is made of, and what a configuration makes of an earlier one."""

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from control_plane.agents.service import AgentService
from control_plane.api.errors import ApiError
from control_plane.api.services import Services
from lambdas.home import HomeFolder
from lambdas.wiring import Embedded, embedded, own_agent

GPUS = """
resource_manager: {default_compute_resource_pool: gpus, default_aux_resource_pool: gpus}
resource_pools: [{pool_name: gpus}]
"""
SLOTS = ((0, "cpu", "u0", "n"),)


@contextmanager
def started(home: Path, config: str | None = None) -> Iterator[Embedded]:
    cluster = embedded(HomeFolder(home), "me", config)
    try:
        yield cluster
    finally:
        cluster.table.close()


def agents_of(cluster: Embedded) -> AgentService:
    services = cluster.app.state.services
    assert isinstance(services, Services)
    return services.agents


def test_the_own_agent_of_a_stopped_cluster_keeps_no_pool(tmp_path: Path) -> None:
    with started(tmp_path) as cluster:
        agents_of(cluster).enrol(own_agent("default"), "default", SLOTS, "1")
    with started(tmp_path, GPUS) as cluster:
        assert cluster.own_pool == "gpus"
        agents_of(cluster).enrol(own_agent("gpus"), "gpus", SLOTS, "1")
    # And back again.
    with started(tmp_path, "resource_pools: [{pool_name: default}]") as cluster:
        assert cluster.own_pool == "default"


def test_an_agent_of_somebody_elses_keeps_its_pool(tmp_path: Path) -> None:
    with started(tmp_path) as cluster:
        agents_of(cluster).enrol("desk", "default", SLOTS, "1")
    with pytest.raises(ApiError, match="pool default has 1 agent"), started(tmp_path, GPUS):
        pass
