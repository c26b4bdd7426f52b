"""Resource pools over HTTP: creation, changes, draining and removal."""

import json
from pathlib import Path
from typing import Any

import pytest

from control_plane.access.principals import Role
from control_plane.actors import addresses
from control_plane.actors.messages.pool import PoolSettings
from control_plane.queries.cluster_configuration import POOL_CONFIGS
from control_plane.scheduling.model import SchedulerRules
from control_plane.state.table import Key, Put
from simulator.faults.table_faults import InterleavingTable
from tests.unit.api.agent_side import CONFIG, Agent
from tests.unit.api.cluster import TOKENS, V1, Cluster, build_cluster
from tests.unit.api.exchange import Answer, call
from tests.unit.api.table_decorators import writes_to

PRIORITY = "scheduler: {type: priority, preemption: true}"


def ask(cluster: Cluster, method: str, path: str, content: Any = None, key: str = "") -> Answer:
    headers = [("idempotency-key", key)] if key else []
    given = {} if content is None else {"content": content}
    return call(cluster.app, method, V1 + path, token=TOKENS[Role.ADMIN], headers=headers, **given)


def put(cluster: Cluster, name: str, config: str | None = None, **fields: Any) -> Answer:
    return ask(cluster, "PUT", f"/resource-pools/{name}", {"config": config, **fields})


def apply(cluster: Cluster, config: str, key: str = "", **fields: Any) -> Answer:
    return ask(cluster, "PUT", "/cluster/configuration", {"config": config, **fields}, key)


def settings(cluster: Cluster, name: str) -> PoolSettings:
    found = cluster.services.engine.read_part(addresses.pool(name), "settings")
    assert isinstance(found, PoolSettings)
    return found


def actions(answer: Answer) -> dict[str, str]:
    assert answer.status == 200, answer.body
    return {change["resource_pool"]: change["action"] for change in answer.json["changes"]}


def names(cluster: Cluster) -> list[str]:
    return [pool["name"] for pool in cluster.get("/resource-pools").json["items"]]


def test_pool_is_created_and_changed(cluster: Cluster) -> None:
    made = put(cluster, "gpus", PRIORITY).json
    assert (made["name"], made["scheduler"]["type"], made["state"]) == ("gpus", "priority", "OPEN")
    assert settings(cluster, "gpus").scheduler == SchedulerRules("priority", preemption=True)
    changed = put(cluster, "gpus", None, overrides=["description=mine"]).json
    assert (changed["description"], changed["scheduler"]["preemption"]) == ("mine", True)
    # A new configuration replaces the former configuration completely.
    assert put(cluster, "gpus", "{}").json["scheduler"]["type"] == "fair_share"
    assert names(cluster) == ["default", "gpus"]


def test_pool_keeps_machine_types_from_deployment(tmp_path: Path) -> None:
    cluster = build_cluster(tmp_path, providers=frozenset({"gcp"}))
    new = "{type: gcp, offerings: [{instance_type: a9-highgpu-2g}]}"
    pools = f"resource_pools: [{{pool_name: default, provider: {new}}}]"
    described = {"vcpus": 64, "memory_gb": 512.0, "gpus": 2, "accelerator": "nvidia-b900"}
    types = f"machine_types: {json.dumps({'a9-highgpu-2g': described})}, "
    assert "not a known machine type" in apply(cluster, pools).body.decode()
    assert actions(apply(cluster, pools.replace("type: gcp", f"{types} type: gcp"), "1")) == {
        "default": "change"
    }
    # A file without machine types removes none; a pool that is set again keeps the types.
    assert actions(apply(cluster, pools, "2", dry_run=True)) == {"default": "keep"}
    assert put(cluster, "default", f"provider: {new}").status == 200
    kept = cluster.get("/cluster/configuration").json["config"]["resource_pools"][0]["provider"]
    assert kept["machine_types"] == {"a9-highgpu-2g": described}
    # Machine types in the file take precedence; a pool of a different type has no machine types.
    own = f"provider: {{machine_types: {{}}, {new[1:]}"
    assert "not a known machine type" in put(cluster, "default", own).body.decode()
    assert put(cluster, "default", "provider: {type: local}").status == 422


def test_answer_names_the_type_of_a_pool_that_names_none(tmp_path: Path) -> None:
    cluster = build_cluster(tmp_path, providers=frozenset({"aws"}))
    (warning,) = put(cluster, "gpus", "provider: {type: aws}").json["warnings"]
    assert warning.startswith(
        "pool gpus: provider.instance_type is not set: instances are g4dn.xlarge with 1 T4"
    )
    # A change of another field keeps the stored type.
    changed = put(cluster, "gpus", None, overrides=["provider.max_instances=2"])
    assert changed.json["warnings"] == []
    assert changed.json["config"]["provider"]["instance_type"] == "g4dn.xlarge"
    (applied,) = apply(
        cluster, "resource_pools: [{pool_name: default, provider: {type: aws}}]", dry_run=True
    ).json["warnings"]
    assert applied.startswith("pool default: provider.instance_type is not set")


def test_pool_of_an_older_version_keeps_its_gpus(tmp_path: Path) -> None:
    cluster = build_cluster(tmp_path, providers=frozenset({"gcp"}))
    put(cluster, "gpus", "provider: {type: gcp, instance_type: {machine_type: n1-standard-32}}")
    key, table = Key(POOL_CONFIGS, "gpus"), cluster.services.table
    row = table.get(key)
    assert row is not None
    stored = json.loads(row.body)
    # Version 0.1 left out the number of accelerators, which was 4.
    assert stored["provider"]["instance_type"].pop("gpu_num") == 1
    body = json.dumps(stored).encode()
    table.commit((Put(key, row.revision + 1, body, row.revision),))
    pool = cluster.get("/resource-pools/gpus").json
    assert pool["config"]["provider"]["instance_type"]["gpu_num"] == 4


def test_rejects_invalid_pool_with_the_line(cluster: Cluster) -> None:
    answer = put(cluster, "gpus", "description: x\nscheduler: {type: priorty}")
    assert (answer.status, answer.code) == (422, "invalid")
    (detail,) = answer.json["error"]["details"]
    assert (detail["path"], detail["line"]) == ("scheduler.type", 2)
    assert names(cluster) == ["default"]


def test_rejects_unavailable_provider(cluster: Cluster) -> None:
    answer = put(cluster, "gpus", "provider: {type: local}")
    assert (answer.status, answer.code) == (422, "invalid")
    assert "local is not available on this cluster" in answer.json["error"]["message"]


@pytest.mark.parametrize("name", ["..", "a%20b", "-a", "x" * 64])
def test_rejects_invalid_name(cluster: Cluster, name: str) -> None:
    assert put(cluster, name, "{}").status in (404, 422)


def test_draining_pool_accepts_and_starts_no_work(cluster: Cluster) -> None:
    agent = Agent(cluster)
    assert ask(cluster, "POST", "/resource-pools/default/drain").json["state"] == "DRAINING"
    refused = cluster.create(CONFIG)
    assert refused.status == 422
    assert "pool default is draining" in refused.json["error"]["message"]
    assert ask(cluster, "POST", "/resource-pools/default/undrain").json["state"] == "OPEN"
    assert cluster.create(CONFIG).status == 201
    assert sorted(agent.take_work()) == ["1.1", "2.1"]


def test_configuration_changes_keep_a_pool_draining(cluster: Cluster) -> None:
    ask(cluster, "POST", "/resource-pools/default/drain")
    assert put(cluster, "default", PRIORITY).json["state"] == "DRAINING"


def test_rejects_removal_of_pool_in_use(cluster: Cluster) -> None:
    put(cluster, "gpus", "{}")
    cluster.create(CONFIG, overrides=["resources.resource_pool=gpus"])
    answer = ask(cluster, "DELETE", "/resource-pools/gpus")
    assert (answer.status, answer.code) == (409, "conflict")
    assert "pool gpus has 1 job" in answer.json["error"]["message"]
    assert cluster.post("/experiments/1/kill", {}).status == 200
    assert ask(cluster, "DELETE", "/resource-pools/gpus").json == {"name": "gpus"}
    assert ask(cluster, "GET", "/resource-pools/gpus").status == 404
    assert names(cluster) == ["default"]


def test_rejects_removal_of_default_pool(cluster: Cluster) -> None:
    answer = ask(cluster, "DELETE", "/resource-pools/default")
    assert answer.status == 409
    assert "is the default pool" in answer.json["error"]["message"]


def test_removed_pool_can_be_created_again(cluster: Cluster) -> None:
    put(cluster, "gpus", PRIORITY)
    ask(cluster, "DELETE", "/resource-pools/gpus", key="once")
    put(cluster, "gpus", "{}")
    assert settings(cluster, "gpus").scheduler == SchedulerRules()
    # The repeated request gets the stored answer and removes nothing.
    assert ask(cluster, "DELETE", "/resource-pools/gpus", key="once").json == {"name": "gpus"}
    assert names(cluster) == ["default", "gpus"]


def test_pool_removed_during_draining_is_not_created_again(cluster: Cluster) -> None:
    put(cluster, "gpus", "{}")

    def remove() -> None:
        assert ask(cluster, "DELETE", "/resource-pools/gpus").status == 200

    table = InterleavingTable(cluster.services.table, remove, writes_to("pool#gpus"))
    cluster.services.engine.table = table
    assert ask(cluster, "POST", "/resource-pools/gpus/drain").status == 404
    assert table.acted
    assert names(cluster) == ["default"]


def test_configuration_is_applied_pool_by_pool(cluster: Cluster) -> None:
    put(cluster, "old", "{}")
    text = """
resource_manager: {scheduler: {type: priority}, default_compute_resource_pool: gpus}
resource_pools:
  - pool_name: gpus
  - pool_name: default
    scheduler: {type: fair_share}
"""
    dry = apply(cluster, text, dry_run=True)
    expected = {"gpus": "create", "default": "keep", "old": "remove"}
    assert (actions(dry), names(cluster)) == (expected, ["default", "old"])
    assert dry.json["shared"] == [
        "resource_manager.default_compute_resource_pool",
        "resource_manager.scheduler.type",
    ]
    assert dry.json["warnings"] == []
    assert actions(apply(cluster, text)) == expected
    assert names(cluster) == ["default", "gpus"]
    assert settings(cluster, "gpus").scheduler.kind == "priority"
    assert actions(apply(cluster, text)) == {"gpus": "keep", "default": "keep"}
    config = cluster.get("/cluster/configuration").json["config"]
    assert config["resource_manager"]["default_compute_resource_pool"] == "gpus"
    assert cluster.create(CONFIG).json["resource_pool"] == "gpus"


def test_application_warns_of_settings_without_effect(cluster: Cluster) -> None:
    text = "resource_pools: [{pool_name: default, agent_reattach_enabled: false}]"
    for dry_run in (True, False):
        answer = apply(cluster, text, dry_run=dry_run)
        assert answer.json["warnings"] == [
            "pool default: agent_reattach_enabled is not used: agents always continue their"
            " running trials"
        ]


def test_repeated_application_gets_the_stored_answer(cluster: Cluster) -> None:
    text = "resource_pools: [{pool_name: default}, {pool_name: gpus}]"
    first = apply(cluster, text, key="k")
    assert apply(cluster, text, key="k").body == first.body


def test_cluster_scheduler_applies_to_pools_without_scheduler(cluster: Cluster) -> None:
    answer = apply(cluster, "resource_manager: {scheduler: {type: round_robin}}")
    (change,) = answer.json["changes"]
    assert (change["action"], change["fields"]) == ("change", ["scheduler.type"])
    assert settings(cluster, "default").scheduler.kind == "round_robin"


def test_unremovable_pool_prevents_all_changes(cluster: Cluster) -> None:
    put(cluster, "gpus", "{}")
    cluster.create(CONFIG, overrides=["resources.resource_pool=gpus"])
    answer = apply(cluster, "resource_pools: [{pool_name: default}, {pool_name: more}]")
    assert (answer.status, answer.code) == (409, "conflict")
    assert "pool gpus has 1 job: keep the pools that are in use" in answer.json["error"]["message"]
    assert names(cluster) == ["default", "gpus"]


def test_task_defaults_apply_to_experiments(cluster: Cluster) -> None:
    put(cluster, "default", "task_container_defaults: {preemption_timeout: 60, shm_size_bytes: 9}")
    cluster.create(CONFIG)
    config = cluster.get("/experiments/1").json["config"]
    assert (config["preemption_timeout"], config["resources"]["shm_size"]) == (60, 9)
    cluster.create(CONFIG + "preemption_timeout: 5\n")
    assert cluster.get("/experiments/2").json["config"]["preemption_timeout"] == 5


def test_join_token_is_valid_for_a_single_pool(cluster: Cluster) -> None:
    put(cluster, "gpus", "{}")
    asked = {"role": "join", "resource_pool": "gpus"}
    made = ask(cluster, "POST", "/tokens", asked)
    assert (made.status, made.json["resource_pool"]) == (201, "gpus")
    body = {"name": "n", "slots": [{"id": 0, "type": "cpu", "uuid": "u", "name": "CPU"}]}
    for pool, status in (("default", 403), ("gpus", 200)):
        token = made.json["token"]
        content = {**body, "resource_pool": pool}
        assert (
            call(cluster.app, "POST", f"{V1}/agents", token=token, content=content).status == status
        )
    assert call(cluster.app, "GET", f"{V1}/cluster", token=made.json["token"]).status == 403


@pytest.mark.parametrize(
    ("content", "status"),
    [
        ({"role": "join"}, 422),
        ({"role": "admin", "resource_pool": "default"}, 422),
        ({"role": "join", "resource_pool": "nowhere"}, 404),
    ],
)
def test_join_token_requires_a_pool(cluster: Cluster, content: dict[str, str], status: int) -> None:
    assert ask(cluster, "POST", "/tokens", content).status == status


def test_rejects_join_token_of_a_user(cluster: Cluster) -> None:
    answer = cluster.post("/tokens", {"role": "join", "resource_pool": "default"})
    assert (answer.status, answer.code) == (403, "forbidden")
