"""A damaged checkpoint: the trial's report, the display, the next run and collections."""

import shutil
from typing import Any

import pytest

from control_plane.access.principals import Principal, Role
from control_plane.access.tokens import token_digest, token_put
from tests.unit.api.agent_side import CONFIG, Agent, metrics
from tests.unit.api.cluster import TOKENS, V1, Cluster
from tests.unit.api.exchange import Answer, call
from tests.unit.api.test_api_collection import UUIDS, collect, delete, states
from tests.unit.queries.test_queries_trials import checkpoint

FIRST, SECOND, THIRD, OTHERS = UUIDS
CAUSE = "weights.bin is not the file that was stored"


@pytest.fixture
def agent(cluster: Cluster) -> Agent:
    """An agent with checkpoints of trial 1 at 2, 4 and 6 and of trial 2 at 2.

    The losses of trial 1 are 0.1, 0.3 and 0.05. The second run begins from the checkpoint at 6.
    """
    cluster.create(CONFIG)
    agent = Agent(cluster)
    agent.take_work()
    for uuid, steps, loss in zip(UUIDS[:3], (2, 4, 6), (0.1, 0.3, 0.05), strict=True):
        checkpoint(cluster, agent, 1, uuid, steps)
        agent.report("1.1", metrics(steps, "validation", loss=loss))
    checkpoint(cluster, agent, 2, OTHERS, 2)
    end(agent, "1.1", "preempted")
    return agent


def end(agent: Agent, allocation: str, reason: str) -> dict[str, Any]:
    """End an allocation; return the specification of the next allocation."""
    agent.report(allocation, {"kind": "exited", "reason": reason, "code": 1}, writer="agent")
    agent.known = [known for known in agent.known if known != allocation]
    entries = agent.sync().json["desired"]
    [spec] = [entry["spec"] for entry in entries if "spec" in entry]
    agent.known.append(spec["allocation_id"])
    return dict(spec)


def report_damage(agent: Agent, allocation: str, uuid: str) -> None:
    line = {"kind": "checkpoint_damage", "uuid": uuid, "message": CAUSE}
    assert agent.report(allocation, line).status == 200


def test_next_run_begins_from_the_checkpoint_before_the_damaged(
    cluster: Cluster, agent: Agent
) -> None:
    report_damage(agent, "1.2", THIRD)
    spec = end(agent, "1.2", "errored")
    assert (spec["allocation_id"], spec["latest_checkpoint"]["uuid"]) == ("1.3", SECOND)
    # The validation after batch 6 is void, because the run begins again from batch 4.
    assert (spec["steps_completed"], spec["validated_steps"]) == (4, 4)
    damaged = {"uuid": THIRD, "steps_completed": 6, "cause": CAUSE}
    assert spec["damaged_checkpoint"] == damaged
    trial = cluster.get("/trials/1").json
    assert (trial["restarts"], trial["latest_checkpoint"], trial["message"]) == (0, SECOND, "")
    [damage] = trial["recent_damages"]
    assert {**damage, "time_ms": 0} == {
        **damaged,
        "time_ms": 0,
        "instead": SECOND,
        "instead_steps": 4,
    }
    shown = cluster.get(f"/checkpoints/{THIRD}").json
    assert (shown["state"], shown["damage"]) == ("DAMAGED", CAUSE)
    assert cluster.get(f"/checkpoints/{SECOND}").json["damage"] == ""
    history = cluster.get("/experiments/1/history").json["items"]
    [entry] = [item for item in history if "is damaged" in item["text"]]
    assert entry["text"] == (
        f"checkpoint {THIRD[:8]}, which allocation 1.2 began from, is damaged: {CAUSE}"
    )
    # After a new checkpoint of the trial, the next specification no longer mentions the damage.
    path = f"1/1/3/{FIRST[:-1]}9"
    line = {"kind": "checkpoint", "uuid": f"{FIRST[:-1]}9", "path": path, "steps_completed": 6}
    line |= {"manifest_sha256": "0" * 64, "size_bytes": 1, "files": 1}
    agent.report("1.3", line)
    assert end(agent, "1.3", "preempted")["damaged_checkpoint"] is None


def test_damaged_checkpoint_is_neither_counted_nor_collected(
    cluster: Cluster, agent: Agent
) -> None:
    report_damage(agent, "1.2", THIRD)
    end(agent, "1.2", "errored")
    # Of the undamaged checkpoints, 2 has the best loss and 4 is the latest; 6 would have been both.
    preview = cluster.get("/experiments/1/checkpoint-gc").json
    assert (preview["delete_count"], preview["keep_count"]) == (0, 3)
    limits = {"save_trial_best": 0, "save_trial_latest": 0}
    call(cluster.app, "PATCH", f"{V1}/experiments/1", token=TOKENS[Role.USER], content=limits)
    collect(cluster)
    # The latest undamaged checkpoints stay, and damage alone is no reason for a deletion.
    assert states(cluster) == [(2, "DELETED"), (4, "COMPLETED"), (6, "DAMAGED"), (2, "COMPLETED")]
    # The checkpoint at 2 was deleted, so that no earlier checkpoint is left.
    report_damage(agent, "1.3", SECOND)
    spec = end(agent, "1.3", "errored")
    assert (spec["latest_checkpoint"], spec["steps_completed"]) == (None, 0)


def test_damaged_checkpoint_is_listed_pinned_and_deleted(cluster: Cluster, agent: Agent) -> None:
    report_damage(agent, "1.2", THIRD)
    assert cluster.get(f"/checkpoints/{THIRD}/files").json["items"][0]["path"] == "weights.bin"
    cluster.post(f"/checkpoints/{THIRD}/pin", {})
    assert delete(cluster, f"/checkpoints/{THIRD}").status == 409
    delete(cluster, f"/checkpoints/{THIRD}/pin")
    assert delete(cluster, f"/checkpoints/{THIRD}").json["state"] == "DELETING"
    collect(cluster)
    assert states(cluster)[2] == (6, "DELETED")
    assert not (cluster.checkpoints / f"1/1/1/{THIRD}").exists()


def test_damaged_checkpoint_is_no_version_and_no_warm_start(cluster: Cluster, agent: Agent) -> None:
    report_damage(agent, "1.2", THIRD)
    cluster.post("/models", {"name": "digits"})
    refused = cluster.post("/models/digits/versions", {"checkpoint_uuid": THIRD})
    assert refused.status == 409
    assert f"is damaged, and cannot be a version: {CAUSE}" in refused.body.decode()
    named = f"source_checkpoint_uuid: {THIRD}"
    refused = cluster.create(CONFIG.replace("metric: loss", f"metric: loss, {named}"))
    assert refused.status == 422
    assert f"checkpoint {THIRD} is damaged: {CAUSE}" in refused.body.decode()
    # A trial as the source stands for the latest undamaged checkpoint.
    started = cluster.create(CONFIG.replace("metric: loss", "metric: loss, source_trial_id: 1"))
    assert started.status == 201
    number = started.json["id"]
    trials = cluster.get(f"/experiments/{number}/trials").json["items"]
    assert {trial["warm_start"] for trial in trials} == {SECOND}


def test_deletion_of_an_experiment_removes_damaged_files(cluster: Cluster, agent: Agent) -> None:
    report_damage(agent, "1.2", THIRD)
    shutil.rmtree(cluster.checkpoints / f"1/1/1/{THIRD}")
    (cluster.checkpoints / f"1/1/1/{THIRD}").mkdir()
    (cluster.checkpoints / f"1/1/1/{THIRD}" / "weights.bin").write_bytes(b"we")
    cluster.post("/experiments/1/kill", {})
    for allocation in ("1.2", "2.1"):
        agent.report(allocation, {"kind": "exited", "reason": "killed"}, writer="agent")
    assert delete(cluster, "/experiments/1").status in (200, 202)
    collect(cluster)
    assert cluster.get("/experiments/1").status == 404
    assert [path for path in cluster.checkpoints.rglob("*") if path.is_file()] == []


def test_damage_reports_mark_only_checkpoints_of_the_trial(cluster: Cluster, agent: Agent) -> None:
    report_damage(agent, "1.2", OTHERS)
    report_damage(agent, "2.1", THIRD)
    assert [state for _, state in states(cluster)] == ["COMPLETED"] * 4


def take_back(cluster: Cluster, uuid: str, role: Role = Role.USER) -> Answer:
    path = f"{V1}/checkpoints/{uuid}/damage"
    return call(cluster.app, "DELETE", path, token=TOKENS[role])


def test_damage_mark_is_removed_after_files_are_restored(cluster: Cluster, agent: Agent) -> None:
    report_damage(agent, "1.2", THIRD)
    agent.report("1.2", {"kind": "exited", "reason": "errored", "code": 1}, writer="agent")
    file = cluster.checkpoints / f"1/1/1/{THIRD}/weights.bin"
    content = file.read_bytes()
    file.write_bytes(content[:-1])
    refused = take_back(cluster, THIRD)
    assert refused.status == 409
    assert f"weights.bin has {len(content) - 1} bytes there" in refused.body.decode()
    file.unlink()
    assert "weights.bin is not there" in take_back(cluster, THIRD).body.decode()
    assert cluster.get(f"/checkpoints/{THIRD}").json["state"] == "DAMAGED"
    file.write_bytes(content)
    answer = take_back(cluster, THIRD[:8])
    assert (answer.status, answer.json["state"], answer.json["damage"]) == (200, "COMPLETED", "")
    assert take_back(cluster, THIRD).status == 200
    # The checkpoint at 6 has the best loss and is the latest again, so that 2 is deleted. The
    # running allocation began from 4.
    preview = cluster.get("/experiments/1/checkpoint-gc").json
    assert [item["steps_completed"] for item in preview["delete"]] == [2]
    assert cluster.get("/trials/1").json["latest_checkpoint"] == SECOND
    history = cluster.get("/experiments/1/history").json["items"]
    [entry] = [item for item in history if "is not damaged" in item["text"]]
    assert entry["text"].startswith(f"checkpoint {THIRD[:8]} is not damaged: all its files were")
    named = f"source_checkpoint_uuid: {THIRD}"
    assert cluster.create(CONFIG.replace("metric: loss", f"metric: loss, {named}")).status == 201


def test_only_owner_and_admin_remove_a_damage_mark(cluster: Cluster, agent: Agent) -> None:
    report_damage(agent, "1.2", THIRD)
    eve = token_put(token_digest("dct_eve"), Principal("eve", Role.USER))
    cluster.services.table.commit([eve])
    path = f"{V1}/checkpoints/{THIRD}/damage"
    refused = call(cluster.app, "DELETE", path, token="dct_eve")
    assert (refused.status, refused.code) == (403, "forbidden")
    assert "ask user-1 or an admin to change it" in refused.body.decode()
    assert cluster.get(f"/checkpoints/{THIRD}").json["state"] == "DAMAGED"
    assert take_back(cluster, THIRD, Role.ADMIN).json["state"] == "COMPLETED"
    assert delete(cluster, f"/checkpoints/{SECOND}").status == 409
    delete(cluster, f"/checkpoints/{THIRD}")
    gone = take_back(cluster, THIRD)
    assert (gone.status, gone.code) == (404, "not_found")
