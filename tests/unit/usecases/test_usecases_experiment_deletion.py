"""The right to delete an experiment, and what belongs to one."""

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
    """An experiment of user-1 that has ended and has a checkpoint, and a second user."""
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
def test_what_is_anothers_is_not_deleted(ended_cluster: Cluster, path: str) -> None:
    answer = delete(ended_cluster, path, OTHER)
    assert (answer.status, answer.code) == (403, "forbidden")
    text = "experiment 1 is user-1's: only they or an admin delete of it"
    assert answer.json["error"]["message"] == text
    assert ended_cluster.get("/experiments/1").json["state"] == "CANCELED"
    assert ended_cluster.get(f"/checkpoints/{UUID}").json["state"] == "COMPLETED"


@pytest.mark.parametrize("path", PATHS)
@pytest.mark.parametrize("role", [Role.USER, Role.ADMIN])
def test_the_owner_and_an_admin_delete(ended_cluster: Cluster, path: str, role: Role) -> None:
    assert delete(ended_cluster, path, TOKENS[role]).status == 200
