from pathlib import Path

import pytest

from control_plane.access.principals import Role
from control_plane.checkpoint_gc.collector import Collector
from control_plane.checkpoint_gc.stores import Stores
from tests.unit.api.agent_side import CONFIG, Agent, metrics
from tests.unit.api.cluster import TOKENS, V1, Cluster
from tests.unit.api.exchange import Answer, call
from tests.unit.queries.test_queries_trials import checkpoint

UUIDS = [f"{n:08d}-0000-4000-8000-000000000000" for n in (11, 12, 13, 21)]


@pytest.fixture
def agent(cluster: Cluster) -> Agent:
    """An agent with checkpoints of trial 1 at 2, 4 and 6 (losses 0.1, 0.3, 0.2) and of trial 2 at
    2.
    """
    cluster.create(CONFIG)
    agent = Agent(cluster)
    agent.take_work()
    for uuid, steps, loss in zip(UUIDS[:3], (2, 4, 6), (0.1, 0.3, 0.2), strict=True):
        checkpoint(cluster, agent, 1, uuid, steps)
        agent.report("1.1", metrics(steps, "validation", loss=loss))
    checkpoint(cluster, agent, 2, UUIDS[3], 2)
    return agent


def delete(cluster: Cluster, path: str, key: str | None = None) -> Answer:
    headers = [] if key is None else [("idempotency-key", key)]
    return call(cluster.app, "DELETE", V1 + path, token=TOKENS[Role.USER], headers=headers)


def set_limit(cluster: Cluster, limit: str) -> Answer:
    """Apply a cluster configuration with this limit of checkpoint deletions per second."""
    content = {"config": f"checkpoint_deletions_per_second: {limit}", "dry_run": False}
    path = f"{V1}/cluster/configuration"
    return call(cluster.app, "PUT", path, token=TOKENS[Role.ADMIN], content=content)


def collect(cluster: Cluster) -> None:
    """Run passes until no collection is pending, and advance time by the rate limiter's pauses."""
    services = cluster.services
    stores = Stores(services.engine, services.objects, services.checkpoints)
    seconds = 0.0
    collector = Collector(stores, lambda: seconds)
    for _ in range(500):
        seconds += collector.pause_seconds
        if not collector.collect(budget_seconds=60):
            return
    raise AssertionError("the collection does not end")


def states(cluster: Cluster) -> list[tuple[int, str]]:
    items = cluster.get("/experiments/1/checkpoints").json["items"]
    return [(item["steps_completed"], item["state"]) for item in items]


def kill(cluster: Cluster, agent: Agent) -> None:
    cluster.post("/experiments/1/kill", {})
    agent.sync()
    for allocation in ("1.1", "2.1"):
        exited = {"kind": "exited", "reason": "killed", "code": None}
        agent.report(allocation, exited, writer="agent")
    assert cluster.get("/experiments/1").json["state"] == "CANCELED"


def test_collection_preview_lists_deletions_without_changes(cluster: Cluster, agent: Agent) -> None:
    # As configured, 0 best overall, 1 best and 1 latest per trial: trial 1 keeps 2 and 6, 2 keeps
    # 2.
    preview = cluster.get("/experiments/1/checkpoint-gc").json
    assert [item["steps_completed"] for item in preview["delete"]] == [4]
    # "weights of 4" has 12 bytes, like the files of the other checkpoints.
    counts = {"delete_count": 1, "delete_bytes": 12, "keep_count": 3, "keep_bytes": 36}
    # A file and a manifest, at 100 a second.
    assert {**counts, "delete_files": 2, "delete_seconds": 1}.items() <= preview.items()
    query = "save_experiment_best=3&save_trial_best=0&save_trial_latest=0"
    preview = cluster.get(f"/experiments/1/checkpoint-gc?{query}").json
    assert preview["delete_count"] == 0
    query = "save_experiment_best=1&save_trial_best=0&save_trial_latest=0"
    preview = cluster.get(f"/experiments/1/checkpoint-gc?{query}").json
    # The best overall is at 2; trial 1 needs 6 to continue, and trial 2 needs the only checkpoint.
    assert [item["uuid"] for item in preview["delete"]] == [UUIDS[1]]
    assert [state for _, state in states(cluster)] == ["COMPLETED"] * 4


def test_deletion_preview_has_counts_duration_and_problem(cluster: Cluster, agent: Agent) -> None:
    path = f"/checkpoints/{UUIDS[1]}/deletion"
    counts = {"uuid": UUIDS[1], "delete_files": 2, "delete_bytes": 12, "problem": ""}
    assert cluster.get(path).json == {**counts, "delete_seconds": 1}
    assert set_limit(cluster, "1").status == 200
    assert cluster.get(path).json["delete_seconds"] == 2
    latest = cluster.get(f"/checkpoints/{UUIDS[2]}/deletion").json
    assert latest["problem"] == "its trial has not ended and needs it"
    assert cluster.post(f"/checkpoints/{UUIDS[0]}/pin", {}).status == 200
    assert "pinned it" in cluster.get(f"/checkpoints/{UUIDS[0]}/deletion").json["problem"]
    assert delete(cluster, f"/checkpoints/{UUIDS[1]}").status == 200
    gone = {"delete_files": 0, "delete_bytes": 0, "delete_seconds": 0}
    assert gone.items() <= cluster.get(path).json.items()


def test_deletion_preview_of_an_experiment_counts_all_checkpoints(
    cluster: Cluster, agent: Agent
) -> None:
    kill(cluster, agent)
    collect(cluster)
    path = "/experiments/1/checkpoint-gc?delete_experiment=true"
    # Trial 1 keeps 2 and 6, trial 2 the only checkpoint: two objects per checkpoint, with manifest.
    counts = {"delete_count": 3, "delete_files": 6, "keep_count": 0}
    assert counts.items() <= cluster.get(path).json.items()
    assert cluster.post(f"/checkpoints/{UUIDS[0]}/pin", {}).status == 200
    counts = {"delete_count": 2, "delete_files": 4, "keep_count": 1}
    assert counts.items() <= cluster.get(path).json.items()


def test_rejects_invalid_deletion_limits(cluster: Cluster) -> None:
    for limit in ("0", "-1", "10001", "1.5", "many"):
        answer = set_limit(cluster, limit)
        assert answer.status == 422, limit
        assert "checkpoint_deletions_per_second" in answer.body.decode()


def test_collection_preview_rejects_negative_counts(cluster: Cluster, agent: Agent) -> None:
    assert cluster.get("/experiments/1/checkpoint-gc?save_trial_best=-1").status == 422
    assert cluster.get("/experiments/9/checkpoint-gc").status == 404


def test_changed_retention_collects_while_trials_run(cluster: Cluster, agent: Agent) -> None:
    body = {"save_experiment_best": 0, "save_trial_best": 0, "save_trial_latest": 0}
    patched = call(
        cluster.app, "PATCH", f"{V1}/experiments/1", token=TOKENS[Role.USER], content=body
    )
    assert patched.status == 200
    collect(cluster)
    assert states(cluster) == [
        (2, "DELETED"),
        (4, "DELETED"),
        (6, "COMPLETED"),
        (2, "COMPLETED"),
    ]
    assert cluster.get("/trials/1").json["latest_checkpoint"] == UUIDS[2]


def test_end_of_an_experiment_starts_a_collection(cluster: Cluster, agent: Agent) -> None:
    kill(cluster, agent)
    collect(cluster)
    assert states(cluster)[1] == (4, "DELETED")
    assert [state for _, state in states(cluster)].count("COMPLETED") == 3


def test_user_deletes_a_checkpoint(cluster: Cluster, agent: Agent) -> None:
    folder = cluster.checkpoints / f"1/1/1/{UUIDS[0]}"
    answer = delete(cluster, "/checkpoints/00000011", key="k")
    assert (answer.status, answer.json["uuid"]) == (200, UUIDS[0])
    assert answer.json["state"] == "DELETING"
    files = cluster.get(f"/checkpoints/{UUIDS[0]}/files")
    assert (files.status, files.code) == (404, "not_found")
    assert "was deleted" in files.json["error"]["message"]
    assert folder.exists()
    collect(cluster)
    assert not folder.exists()
    assert cluster.get(f"/checkpoints/{UUIDS[0]}").json["state"] == "DELETED"
    # A repeated key gets the first answer; without a key, the present state.
    assert delete(cluster, "/checkpoints/00000011", key="k").json["state"] == "DELETING"
    assert delete(cluster, f"/checkpoints/{UUIDS[0]}").json["state"] == "DELETED"
    assert cluster.get(f"/checkpoints/{UUIDS[0]}/files").status == 404


def test_file_url_is_not_found_after_the_deletion(cluster: Cluster, agent: Agent) -> None:
    [file] = cluster.get(f"/checkpoints/{UUIDS[0]}/files").json["items"]
    delete(cluster, f"/checkpoints/{UUIDS[0]}")
    assert call(cluster.app, "GET", file["url"]).status == 404


def test_latest_checkpoint_of_an_active_trial_is_not_deleted(
    cluster: Cluster, agent: Agent
) -> None:
    answer = delete(cluster, f"/checkpoints/{UUIDS[2]}", key="k")
    assert (answer.status, answer.code) == (409, "conflict")
    assert "its trial has not ended" in answer.json["error"]["message"]
    kill(cluster, agent)
    # A refused request does not use up the key.
    assert delete(cluster, f"/checkpoints/{UUIDS[2]}", key="k").status == 200
    collect(cluster)
    assert cluster.get("/trials/1").json["latest_checkpoint"] == UUIDS[1]


def test_warm_start_checkpoint_is_not_deleted(cluster: Cluster, agent: Agent) -> None:
    source = CONFIG.replace("max_trials: 2", f"max_trials: 2, source_checkpoint_uuid: {UUIDS[0]}")
    assert cluster.create(source).status == 201
    answer = delete(cluster, f"/checkpoints/{UUIDS[0]}")
    assert (answer.status, answer.code) == (409, "conflict")
    assert "experiment 2 started from it" in answer.json["error"]["message"]


@pytest.mark.parametrize("path", ["/checkpoints/9", "/checkpoints/x", "/checkpoints/..%2f1"])
def test_deletion_of_unknown_checkpoints_is_refused(
    cluster: Cluster, agent: Agent, path: str
) -> None:
    assert delete(cluster, path).status in (404, 422)
    assert [state for _, state in states(cluster)] == ["COMPLETED"] * 4


def test_tensorboard_files_of_an_ended_experiment_are_deleted(
    cluster: Cluster, agent: Agent
) -> None:
    folder: Path = cluster.checkpoints / "tensorboard"
    for experiment_id in (1, 2):
        (folder / str(experiment_id) / "1").mkdir(parents=True)
        (folder / str(experiment_id) / "1" / "events").touch()
    assert delete(cluster, "/experiments/1/tensorboard").code == "conflict"
    kill(cluster, agent)
    assert delete(cluster, "/experiments/1/tensorboard", key="k").json["id"] == 1
    assert [path.name for path in folder.iterdir()] == ["2"]
    assert delete(cluster, "/experiments/1/tensorboard", key="k").status == 200
    assert delete(cluster, "/experiments/1/tensorboard").status == 200
    assert delete(cluster, "/experiments/9/tensorboard").status == 404


def test_deleted_experiment_is_not_found(cluster: Cluster, agent: Agent) -> None:
    agent.log("1.1", 0, "text")
    kill(cluster, agent)
    assert delete(cluster, "/experiments/1").json["state"] == "DELETING"
    collect(cluster)
    for path in ("/experiments/1", "/trials/1", "/trials/1/metrics", f"/checkpoints/{UUIDS[0]}"):
        assert cluster.get(path).status == 404, path
    assert "was deleted" in cluster.get("/experiments/1").json["error"]["message"]
    assert cluster.get("/experiments").json["items"] == []
    assert list(cluster.checkpoints.rglob("*")) == []
