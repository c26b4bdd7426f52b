"""The routes of agent users, and the agent user in the spec of a trial."""

import json
from typing import Any

import pytest

from control_plane.access.principals import Role
from control_plane.actors import addresses
from control_plane.actors.messages.agent import AgentEnrolled
from tests.unit.api.agent_side import CONFIG, Agent
from tests.unit.api.cluster import TOKENS, V1, Cluster
from tests.unit.api.exchange import Answer, call

ADA = {"kind": "user", "name": "user-1", "uid": 1001, "gid": 1002, "user": "ada", "group": "lab"}


def put(cluster: Cluster, fields: dict[str, Any], role: Role = Role.ADMIN) -> Answer:
    return call(cluster.app, "PUT", f"{V1}/agent-users", token=TOKENS[role], content=fields)


def delete(cluster: Cluster, kind: str, name: str, role: Role = Role.ADMIN) -> Answer:
    path = f"{V1}/agent-users?kind={kind}&name={name}"
    return call(cluster.app, "DELETE", path, token=TOKENS[role])


def allow_root(cluster: Cluster, *, allowed: bool = True) -> None:
    content = {"config": json.dumps({"allow_root_agent_users": allowed})}
    path = f"{V1}/cluster/configuration"
    answer = call(cluster.app, "PUT", path, token=TOKENS[Role.ADMIN], content=content)
    assert answer.status == 200, answer.body


def spec_of(cluster: Cluster, config: str = CONFIG) -> dict[str, Any]:
    """Submit an experiment, and return the spec that an agent gets."""
    assert cluster.create(config).status == 201
    entries = Agent(cluster).sync().json["desired"]
    spec: dict[str, Any] = entries[0]["spec"]
    return spec


def test_agent_users_are_listed(cluster: Cluster) -> None:
    assert put(cluster, ADA).status == 200
    assert put(cluster, {"kind": "workspace", "name": "a/b #", "gid": 7}).status == 200
    items = cluster.get("/agent-users").json["items"]
    assert [(x["kind"], x["name"], x["uid"], x["gid"]) for x in items] == [
        ("user", "user-1", 1001, 1002),
        ("workspace", "a/b #", None, 7),
    ]
    assert items[0]["changed_by"] == "admin-1"


def test_only_admins_change_agent_users(cluster: Cluster) -> None:
    assert put(cluster, ADA, Role.USER).status == 403
    assert put(cluster, ADA).status == 200
    assert delete(cluster, "user", "user-1", Role.USER).status == 403


def test_removed_agent_user_is_gone(cluster: Cluster) -> None:
    put(cluster, ADA)
    assert delete(cluster, "user", "user-1").json["uid"] == 1001
    assert cluster.get("/agent-users").json["items"] == []
    assert delete(cluster, "user", "user-1").status == 404


@pytest.mark.parametrize(
    "fields",
    [
        {"kind": "user", "name": "ada", "uid": 5},
        {"kind": "user", "name": "ada", "gid": 5},
        {"kind": "workspace", "name": "vision"},
        {"kind": "group", "name": "ada", "uid": 5, "gid": 5},
        {**ADA, "uid": -1},
        {**ADA, "uid": 2**32 - 1},
        {**ADA, "uid": True},
        {**ADA, "user": "a\nb"},
        {**ADA, "user": "root:x"},
        {**ADA, "name": ""},
    ],
)
def test_invalid_agent_users_are_refused(cluster: Cluster, fields: dict[str, Any]) -> None:
    assert put(cluster, fields).status == 422 or put(cluster, fields).code == "invalid"
    assert cluster.get("/agent-users").json["items"] == []


@pytest.mark.parametrize("ids", [{"uid": 0}, {"gid": 0}])
def test_root_needs_the_clusters_permission(cluster: Cluster, ids: dict[str, int]) -> None:
    assert put(cluster, ADA | ids).code == "invalid"
    allow_root(cluster)
    assert put(cluster, ADA | ids).status == 200


def test_spec_without_agent_user_is_unchanged(cluster: Cluster) -> None:
    spec = spec_of(cluster)
    assert spec["version"] == 1
    assert "agent_user" not in spec


def test_spec_has_the_owners_agent_user(cluster: Cluster) -> None:
    put(cluster, ADA)
    spec = spec_of(cluster)
    assert spec["version"] == 3
    assert spec["agent_user"] == {"uid": 1001, "gid": 1002, "user": "ada", "group": "lab"}


def test_workspace_replaces_each_id_by_itself(cluster: Cluster) -> None:
    put(cluster, ADA)
    put(cluster, {"kind": "workspace", "name": "vision", "gid": 2000, "group": "vision"})
    spec = spec_of(cluster, f"{CONFIG}\nworkspace: vision\nproject: digits\n")
    assert spec["agent_user"] == {"uid": 1001, "gid": 2000, "user": "ada", "group": "vision"}


def test_workspace_with_a_group_alone_needs_a_user(cluster: Cluster) -> None:
    put(cluster, {"kind": "workspace", "name": "vision", "gid": 2000})
    spec = spec_of(cluster, f"{CONFIG}\nworkspace: vision\nproject: digits\n")
    assert "agent_user" not in spec


def test_root_is_refused_after_the_permission_ends(cluster: Cluster) -> None:
    allow_root(cluster)
    put(cluster, ADA | {"uid": 0})
    allow_root(cluster, allowed=False)
    assert "allow_root_agent_users" in spec_of(cluster)["agent_user"]["refusal"]


def enrol(cluster: Cluster, name: str, only_user: str) -> None:
    message = AgentEnrolled(name, "default", ((0, "cpu", name, "CPU"),), only_user=only_user)
    cluster.services.engine.execute_command(addresses.agent(name), message)


def holder_of(cluster: Cluster, name: str) -> str | None:
    answer = call(cluster.app, "GET", f"{V1}/agents", token=TOKENS[Role.ADMIN])
    (agent,) = (item for item in answer.json["items"] if item["id"] == name)
    allocation: str | None = agent["slots"][0]["allocation"]
    return allocation


def test_trial_of_an_agent_user_starts_where_the_agent_can_be_this_user(cluster: Cluster) -> None:
    put(cluster, ADA)
    enrol(cluster, "a-other", "1005:1005")
    assert cluster.create(CONFIG).status == 201
    assert holder_of(cluster, "a-other") is None
    pool = call(cluster.app, "GET", f"{V1}/resource-pools/default", token=TOKENS[Role.ADMIN]).json
    assert "the right to run trials as user 1001:1002" in str(pool)
    enrol(cluster, "b-root", "")
    assert holder_of(cluster, "b-root") == "1.1"


def test_agent_runs_trials_of_its_own_user(cluster: Cluster) -> None:
    put(cluster, ADA)
    enrol(cluster, "a", "1001:1002")
    assert cluster.create(CONFIG).status == 201
    assert holder_of(cluster, "a") == "1.1"


def test_trial_without_agent_user_runs_on_each_agent(cluster: Cluster) -> None:
    enrol(cluster, "a", "1005:1005")
    assert cluster.create(CONFIG).status == 201
    assert holder_of(cluster, "a") == "1.1"
