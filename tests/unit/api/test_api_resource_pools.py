"""Resource pools over HTTP: made, changed, drained and removed while the cluster runs."""

from typing import Any

import pytest

from control_plane.actors import addresses
from control_plane.actors.pool_messages import PoolSettings
from control_plane.api.auth import Role
from control_plane.scheduling.model import SchedulerRules
from tests.unit.api.agent_side import CONFIG, Agent
from tests.unit.api.cluster import TOKENS, V1, Cluster
from tests.unit.api.exchange import Answer, call

PRIORITY = "scheduler: {type: priority, preemption: true}"


def ask(served: Cluster, method: str, path: str, content: Any = None, key: str = "") -> Answer:
    headers = [("idempotency-key", key)] if key else []
    given = {} if content is None else {"content": content}
    return call(served.app, method, V1 + path, token=TOKENS[Role.ADMIN], headers=headers, **given)


def put(served: Cluster, name: str, config: str | None = None, **fields: Any) -> Answer:
    return ask(served, "PUT", f"/resource-pools/{name}", {"config": config, **fields})


def apply(served: Cluster, config: str, key: str = "", **fields: Any) -> Answer:
    return ask(served, "PUT", "/cluster/configuration", {"config": config, **fields}, key)


def settings(served: Cluster, name: str) -> PoolSettings:
    found = served.services.engine.part(addresses.pool(name), "settings")
    assert isinstance(found, PoolSettings)
    return found


def actions(answer: Answer) -> dict[str, str]:
    assert answer.status == 200, answer.body
    return {change["resource_pool"]: change["action"] for change in answer.json["changes"]}


def names(served: Cluster) -> list[str]:
    return [pool["name"] for pool in served.get("/resource-pools").json["items"]]


def test_a_pool_is_made_and_changed_while_the_cluster_runs(served: Cluster) -> None:
    made = put(served, "gpus", PRIORITY).json
    assert (made["name"], made["scheduler"]["type"], made["state"]) == ("gpus", "priority", "OPEN")
    assert settings(served, "gpus").scheduler == SchedulerRules("priority", preemption=True)
    changed = put(served, "gpus", None, overrides=["description=mine"]).json
    assert (changed["description"], changed["scheduler"]["preemption"]) == ("mine", True)
    # A whole configuration leaves nothing of the former one.
    assert put(served, "gpus", "{}").json["scheduler"]["type"] == "fair_share"
    assert names(served) == ["default", "gpus"]


def test_a_pool_that_makes_no_sense_is_refused_with_its_line(served: Cluster) -> None:
    answer = put(served, "gpus", "description: x\nscheduler: {type: priorty}")
    assert (answer.status, answer.code) == (422, "invalid")
    (detail,) = answer.json["error"]["details"]
    assert (detail["path"], detail["line"]) == ("scheduler.type", 2)
    assert names(served) == ["default"]


def test_a_provider_that_the_cluster_lacks_is_refused(served: Cluster) -> None:
    answer = put(served, "gpus", "provider: {type: local}")
    assert (answer.status, answer.code) == (422, "invalid")
    assert "local is not available on this cluster" in answer.json["error"]["message"]


@pytest.mark.parametrize("name", ["..", "a%20b", "-a", "x" * 64])
def test_a_name_that_is_none_is_refused(served: Cluster, name: str) -> None:
    assert put(served, name, "{}").status in (404, 422)


def test_a_draining_pool_takes_no_new_work_and_starts_none(served: Cluster) -> None:
    agent = Agent(served)
    assert ask(served, "POST", "/resource-pools/default/drain").json["state"] == "DRAINING"
    refused = served.create(CONFIG)
    assert refused.status == 422
    assert "pool default is draining" in refused.json["error"]["message"]
    assert ask(served, "POST", "/resource-pools/default/undrain").json["state"] == "OPEN"
    assert served.create(CONFIG).status == 201
    assert sorted(agent.take_work()) == ["1.1", "2.1"]


def test_changes_of_the_configuration_leave_a_pool_draining(served: Cluster) -> None:
    ask(served, "POST", "/resource-pools/default/drain")
    assert put(served, "default", PRIORITY).json["state"] == "DRAINING"


def test_a_pool_in_use_is_not_removed(served: Cluster) -> None:
    put(served, "gpus", "{}")
    served.create(CONFIG, overrides=["resources.resource_pool=gpus"])
    answer = ask(served, "DELETE", "/resource-pools/gpus")
    assert (answer.status, answer.code) == (409, "conflict")
    assert "pool gpus has 1 job" in answer.json["error"]["message"]
    assert served.post("/experiments/1/kill", {}).status == 200
    assert ask(served, "DELETE", "/resource-pools/gpus").json == {"name": "gpus"}
    assert ask(served, "GET", "/resource-pools/gpus").status == 404
    assert names(served) == ["default"]


def test_the_pool_where_unnamed_work_goes_is_not_removed(served: Cluster) -> None:
    answer = ask(served, "DELETE", "/resource-pools/default")
    assert answer.status == 409
    assert "experiments go that name no pool" in answer.json["error"]["message"]


def test_a_removed_pool_can_be_made_again(served: Cluster) -> None:
    put(served, "gpus", PRIORITY)
    ask(served, "DELETE", "/resource-pools/gpus", key="once")
    put(served, "gpus", "{}")
    assert settings(served, "gpus").scheduler == SchedulerRules()
    # The repeated request is answered as before, and removes nothing.
    assert ask(served, "DELETE", "/resource-pools/gpus", key="once").json == {"name": "gpus"}
    assert names(served) == ["default", "gpus"]


def test_a_configuration_is_applied_pool_by_pool(served: Cluster) -> None:
    put(served, "old", "{}")
    text = """
resource_manager: {scheduler: {type: priority}, default_compute_resource_pool: gpus}
resource_pools:
  - pool_name: gpus
  - pool_name: default
    scheduler: {type: fair_share}
"""
    dry = apply(served, text, dry_run=True)
    expected = {"gpus": "create", "default": "keep", "old": "remove"}
    assert (actions(dry), names(served)) == (expected, ["default", "old"])
    assert dry.json["shared"] == [
        "resource_manager.default_compute_resource_pool",
        "resource_manager.scheduler.type",
    ]
    assert actions(apply(served, text)) == expected
    assert names(served) == ["default", "gpus"]
    assert settings(served, "gpus").scheduler.kind == "priority"
    assert actions(apply(served, text)) == {"gpus": "keep", "default": "keep"}
    config = served.get("/cluster/configuration").json["config"]
    assert config["resource_manager"]["default_compute_resource_pool"] == "gpus"
    assert served.create(CONFIG).json["resource_pool"] == "gpus"


def test_a_repeated_application_is_answered_as_the_first(served: Cluster) -> None:
    text = "resource_pools: [{pool_name: default}, {pool_name: gpus}]"
    first = apply(served, text, key="k")
    assert apply(served, text, key="k").body == first.body


def test_a_changed_scheduler_of_the_cluster_changes_pools_without_one(served: Cluster) -> None:
    answer = apply(served, "resource_manager: {scheduler: {type: round_robin}}")
    (change,) = answer.json["changes"]
    assert (change["action"], change["fields"]) == ("change", ["scheduler.type"])
    assert settings(served, "default").scheduler.kind == "round_robin"


def test_nothing_changes_where_one_pool_cannot_go(served: Cluster) -> None:
    put(served, "gpus", "{}")
    served.create(CONFIG, overrides=["resources.resource_pool=gpus"])
    answer = apply(served, "resource_pools: [{pool_name: default}, {pool_name: more}]")
    assert (answer.status, answer.code) == (409, "conflict")
    assert "pool gpus has 1 job: keep what is used" in answer.json["error"]["message"]
    assert names(served) == ["default", "gpus"]


def test_defaults_of_tasks_reach_the_configuration_of_the_experiment(served: Cluster) -> None:
    put(served, "default", "task_container_defaults: {preemption_timeout: 60, shm_size_bytes: 9}")
    served.create(CONFIG)
    config = served.get("/experiments/1").json["config"]
    assert (config["preemption_timeout"], config["resources"]["shm_size"]) == (60, 9)
    served.create(CONFIG + "preemption_timeout: 5\n")
    assert served.get("/experiments/2").json["config"]["preemption_timeout"] == 5


def test_a_join_token_lets_agents_into_its_pool_alone(served: Cluster) -> None:
    put(served, "gpus", "{}")
    asked = {"role": "join", "resource_pool": "gpus"}
    made = ask(served, "POST", "/tokens", asked)
    assert (made.status, made.json["resource_pool"]) == (201, "gpus")
    body = {"name": "n", "slots": [{"id": 0, "type": "cpu", "uuid": "u", "name": "CPU"}]}
    for pool, status in (("default", 403), ("gpus", 200)):
        token = made.json["token"]
        content = {**body, "resource_pool": pool}
        assert (
            call(served.app, "POST", f"{V1}/agents", token=token, content=content).status == status
        )
    assert call(served.app, "GET", f"{V1}/cluster", token=made.json["token"]).status == 403


@pytest.mark.parametrize(
    ("content", "status"),
    [
        ({"role": "join"}, 422),
        ({"role": "admin", "resource_pool": "default"}, 422),
        ({"role": "join", "resource_pool": "nowhere"}, 404),
    ],
)
def test_a_join_token_needs_a_pool(served: Cluster, content: dict[str, str], status: int) -> None:
    assert ask(served, "POST", "/tokens", content).status == status


def test_users_make_no_join_tokens(served: Cluster) -> None:
    answer = served.post("/tokens", {"role": "join", "resource_pool": "default"})
    assert (answer.status, answer.code) == (403, "forbidden")
