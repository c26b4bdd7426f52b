"""Permissions to delete experiments and checkpoints."""

import pytest

from control_plane.access.principals import Principal, Role
from control_plane.access.tokens import token_digest, token_put
from tests.unit.api.agent_side import CONFIG, Agent
from tests.unit.api.cluster import TOKENS, V1, Cluster
from tests.unit.api.exchange import Answer, call

UUID = "00000011-0000-4000-8000-000000000000"
OTHER = "dct_another-users-token"


def delete(cluster: Cluster, path: str, token: str) -> Answer:
    return call(cluster.app, "DELETE", V1 + path, token=token)


@pytest.fixture
def ended_cluster(cluster: Cluster) -> Cluster:
    """A cluster with an ended experiment of user-1 with a checkpoint, and with a second user."""
    cluster.create(CONFIG)
    agent = Agent(cluster)
    agent.take_work()
    line = {"kind": "checkpoint", "uuid": UUID, "steps_completed": 1, "path": f"1/1/1/{UUID}"}
    more = {"manifest_sha256": "0" * 64, "size_bytes": 8, "files": 1, "metadata": {}}
    agent.report("1.1", line | more)
    cluster.post("/experiments/1/kill", {})
    for trial in (1, 2):
        agent.report(f"{trial}.1", {"kind": "exited", "reason": "killed"}, writer="agent")
    principal = Principal("user-2", Role.USER)
    cluster.services.table.commit([token_put(token_digest(OTHER), principal)])
    return cluster


PATHS = ["/experiments/1", f"/checkpoints/{UUID}", "/experiments/1/tensorboard"]


@pytest.mark.parametrize("path", PATHS)
def test_rejects_deletion_by_other_users(ended_cluster: Cluster, path: str) -> None:
    answer = delete(ended_cluster, path, OTHER)
    assert (answer.status, answer.code) == (403, "forbidden")
    assert "belongs to user-1: ask user-1 or an admin to delete it" in answer.body.decode()
    assert ended_cluster.get("/experiments/1").json["state"] == "CANCELED"
    assert ended_cluster.get(f"/checkpoints/{UUID}").json["state"] == "COMPLETED"


@pytest.mark.parametrize("path", PATHS)
@pytest.mark.parametrize("role", [Role.USER, Role.ADMIN])
def test_owner_and_admin_can_delete(ended_cluster: Cluster, path: str, role: Role) -> None:
    assert delete(ended_cluster, path, TOKENS[role]).status == 200
