"""Enrolments under the name of a connected agent."""

from pathlib import Path

import pytest

from control_plane.access.principals import Role
from tests.unit.api.cluster import TOKENS, V1, Cluster, build_cluster
from tests.unit.api.exchange import Answer, call


@pytest.fixture
def cluster(tmp_path: Path) -> Cluster:
    return build_cluster(tmp_path / "objects")


def enrol_installation(cluster: Cluster, installation: str) -> Answer:
    body = {"name": "node", "resource_pool": "default", "slots": [], "installation": installation}
    return call(cluster.app, "POST", f"{V1}/agents", token=TOKENS[Role.JOIN], content=body)


def test_second_agent_under_a_name_is_refused(cluster: Cluster) -> None:
    first = enrol_installation(cluster, "a" * 32)
    assert first.status == 200
    refused = enrol_installation(cluster, "b" * 32)
    assert (refused.status, refused.code) == (409, "conflict")
    assert "choose another --name" in refused.json["error"]["message"]
    # The first token still works.
    body = {"epoch": 1, "call": 1, "known": [], "reports": [], "logs": []}
    token = first.json["token"]
    assert (
        call(cluster.app, "POST", f"{V1}/agents/node/sync", token=token, content=body).status == 200
    )
    assert enrol_installation(cluster, "a" * 32).json["epoch"] == 2


@pytest.mark.parametrize("installation", ["A", "g", "a" * 33, "a/b", "a\n"])
def test_malformed_installation_is_refused(cluster: Cluster, installation: str) -> None:
    assert enrol_installation(cluster, installation).status == 422
