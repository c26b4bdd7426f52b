import hashlib
import json
from pathlib import Path
from typing import Any

import pytest

from control_plane.agents.sessions import ENVIRONMENT
from control_plane.state.table import Expect, Key, Put
from tests.unit.api.agent_side import CONFIG, Agent, metrics
from tests.unit.api.cluster import V1, Cluster
from tests.unit.api.exchange import call

UUIDS = [f"{n:08d}-0000-4000-8000-000000000000" for n in (11, 12, 21)]


@pytest.fixture
def agent(cluster: Cluster) -> Agent:
    """An agent that runs trials 1 and 2 of experiment 1."""
    cluster.create(CONFIG)
    agent = Agent(cluster)
    agent.take_work()
    return agent


def checkpoint(
    cluster: Cluster,
    agent: Agent,
    trial: int,
    uuid: str,
    steps: int,
    names: tuple[str, ...] = ("weights.bin",),
) -> Path:
    """Store and report a checkpoint as a trial does. All files have the same content."""
    path = f"1/{trial}/1/{uuid}"
    folder = cluster.checkpoints / path
    content = b"weights of %d" % steps
    for name in names:
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_bytes(content)
    described = {"size": len(content), "sha256": hashlib.sha256(content).hexdigest()}
    files = dict.fromkeys(names, described)
    manifest = json.dumps({"version": 1, "files": files, "metadata": {}}).encode()
    (folder / "manifest.json").write_bytes(manifest)
    line = {
        "kind": "checkpoint",
        "uuid": uuid,
        "steps_completed": steps,
        "path": path,
        "manifest_sha256": hashlib.sha256(manifest).hexdigest(),
        "size_bytes": len(content) * len(names),
        "files": len(names),
        "metadata": {"note": "n"},
    }
    agent.report(f"{trial}.1", line)
    return folder


def uuids(cluster: Cluster, path: str) -> list[str]:
    return [item["uuid"] for item in cluster.get(path).json["items"]]


def test_trial_shows_the_allocation(cluster: Cluster, agent: Agent) -> None:
    agent.report("1.1", {"kind": "container", "state": "RUNNING"}, writer="agent")
    agent.report("1.1", {"kind": "environment", "time_ms": 5, "python": "3.12", "threads": 2})
    trial = cluster.get("/trials/1").json
    assert (trial["experiment_id"], trial["number"], trial["state"]) == (1, 0, "ACTIVE")
    places = [{"agent_id": "node", "slots": [0]}]
    assert trial["allocation"] == {
        "id": "1.1",
        "state": "RUNNING",
        "places": places,
        "hang": None,
        "low_use": None,
    }
    assert trial["environment"] == {"python": "3.12", "threads": 2}
    assert 0 <= trial["hparams"]["x"] <= 1
    assert cluster.get("/trials/9").status == 404


def test_trial_shows_a_present_hang(cluster: Cluster, agent: Agent) -> None:
    def hang() -> Any:
        return cluster.get("/trials/1").json["allocation"]["hang"]

    line = {"kind": "hang", "silent_ms": 1_800_000, "timeout_ms": 1_800_000}
    agent.report("1.1", {"kind": "container", "state": "RUNNING"}, line, writer="agent")
    places = [[0, "train.py:3 wait"], ["x", 5]]
    # A malformed line changes nothing.
    agent.report("1.1", {"kind": "stacks", "places": places}, writer="agent")
    agent.report("1.1", {"kind": "stacks", "places": places[:1]}, writer="agent")
    silence = "it has neither reported nor printed anything for 30 min"
    assert hang()["text"] == f"{silence}: the process is in train.py:3 wait"
    agent.report("1.1", {"kind": "hang", "silent_ms": 0}, writer="agent")
    assert hang() is None


def test_environment_joins_reports_of_trial_and_agent(cluster: Cluster, agent: Agent) -> None:
    image = {"image": "org/image:1", "image_digest": "sha256:ab"}
    agent.report("1.1", {"kind": "environment", "time_ms": 4, **image}, writer="agent")
    assert cluster.get("/trials/1").json["environment"] == image
    for rank in ("0", "1"):
        line = {"kind": "environment", "time_ms": 5, "hostname": f"host-{rank}"}
        agent.report("1.1", line, writer=rank)
    assert cluster.get("/trials/1").json["environment"] == {**image, "hostname": "host-1"}


@pytest.mark.parametrize("depth", [150, 199, 200, 230, 254])
def test_too_deep_environment_does_not_hide_the_trial(cluster: Cluster, depth: int) -> None:
    cluster.create(CONFIG)
    key = Key("trial#1", f"{ENVIRONMENT}{1:08d}#0")
    body = b'{"a":' * depth + b'"NaN"' + b"}" * depth
    cluster.services.table.commit((Put(key, 1, body, Expect.ANYTHING),))
    answer = cluster.get("/trials/1")
    assert answer.status == 200
    assert answer.json["id"] == 1


def test_running_trial_of_a_paused_experiment_shows_paused(cluster: Cluster, agent: Agent) -> None:
    cluster.post("/experiments/1/pause", {})
    trial = cluster.get("/trials/1").json
    assert (trial["state"], trial["allocation"]["state"]) == ("PAUSED", "TERMINATING")


def test_metrics_are_listed_by_group_in_pages(cluster: Cluster, agent: Agent) -> None:
    agent.report("1.1", *(metrics(n, loss=n) for n in range(1, 6)))
    agent.report("1.1", metrics(5, "validation", loss=0.5), metrics(6, loss=6))
    first = cluster.get("/trials/1/metrics?limit=4").json
    second = cluster.get(f"/trials/1/metrics?limit=4&cursor={first['next_cursor']}").json
    listed = [(item["group"], item["steps_completed"]) for item in first["items"] + second["items"]]
    # The first page ends in the middle of the first call's row.
    assert listed == [("training", n) for n in range(1, 7)] + [("validation", 5)]
    assert second["next_cursor"] is None
    [only] = cluster.get("/trials/1/metrics?group=validation").json["items"]
    expected = {"group": "validation", "steps_completed": 5, "time_ms": 1005}
    assert only == {**expected, "metrics": {"loss": 0.5}}
    assert cluster.get("/trials/1/metrics?group=valid").json["items"] == []


def test_running_trial_shows_steps_of_the_last_report(cluster: Cluster, agent: Agent) -> None:
    agent.report("1.1", metrics(3, loss=1), metrics(4, loss=1), metrics(2, "other"))
    agent.report("2.1", metrics(99, loss=1), {**metrics(100), "steps_completed": "many"})
    assert cluster.get("/trials/1").json["steps_completed"] == 4
    # Progress is capped at the requested 10 batches.
    listed = cluster.get("/experiments/1/trials").json["items"]
    assert [item["steps_completed"] for item in listed] == [4, 10]
    agent.report("1.1", {"kind": "exited", "reason": "errored", "code": 1}, writer="agent")
    # The new run starts from batch 0, because the trial has no checkpoint.
    assert cluster.get("/trials/1").json["steps_completed"] == 0


def test_malformed_metrics_are_left_out(cluster: Cluster, agent: Agent) -> None:
    wrong: dict[str, Any] = {**metrics(1), "steps_completed": "many"}
    agent.report("1.1", wrong, metrics(2))
    [item] = cluster.get("/trials/1/metrics").json["items"]
    assert item["steps_completed"] == 2


def test_log_is_read_in_parts_up_to_the_end(cluster: Cluster, agent: Agent) -> None:
    agent.log("1.1", 0, "one\n")
    log = cluster.get("/trials/1/logs").json
    assert log == {"text": "one\n", "next": 4, "complete": False, "deleted_ms": None}
    agent.log("1.1", 4, "tvö\n")
    agent.finish("1.1")
    # "ö" has two bytes: 4 + 5 = 9.
    log = cluster.get("/trials/1/logs?after=4").json
    assert log == {"text": "tvö\n", "next": 9, "complete": True, "deleted_ms": None}
    assert cluster.get("/trials/1/logs?tail_bytes=3").json["text"] == "ö\n"
    # With a byte less, the range would start inside the character.
    assert cluster.get("/trials/1/logs?tail_bytes=2").json["text"] == "\n"
    assert cluster.get("/trials/1/logs?after=1&tail_bytes=2").status == 422


def test_checkpoints_are_listed_and_found_by_uuid_prefix(cluster: Cluster, agent: Agent) -> None:
    for trial, uuid, steps in ((1, UUIDS[0], 5), (1, UUIDS[1], 10), (2, UUIDS[2], 5)):
        checkpoint(cluster, agent, trial, uuid, steps)
    assert uuids(cluster, "/trials/1/checkpoints") == UUIDS[:2]
    assert uuids(cluster, "/experiments/1/checkpoints") == UUIDS
    first = cluster.get("/experiments/1/checkpoints?limit=1").json
    rest = cluster.get(f"/experiments/1/checkpoints?limit=2&cursor={first['next_cursor']}").json
    assert [item["uuid"] for item in rest["items"]] == UUIDS[1:]
    found = cluster.get("/checkpoints/0000002").json
    expected = {"uuid": UUIDS[2], "trial_id": 2, "experiment_id": 1, "steps_completed": 5}
    assert expected.items() <= found.items()
    assert (found["state"], found["metadata"], found["files"]) == ("COMPLETED", {"note": "n"}, 1)
    assert cluster.get("/checkpoints/0000001").status == 422
    assert cluster.get("/checkpoints/9").status == 404
    assert cluster.get("/checkpoints/x").status == 422
    assert cluster.get("/trials/1").json["latest_checkpoint"] == UUIDS[1]


def test_checkpoint_file_urls_need_no_token(cluster: Cluster, agent: Agent) -> None:
    checkpoint(cluster, agent, 1, UUIDS[0], 5)
    [file] = cluster.get(f"/checkpoints/{UUIDS[0][:8]}/files").json["items"]
    assert (file["path"], file["size"]) == ("weights.bin", len(b"weights of 5"))
    answer = call(cluster.app, "GET", file["url"])
    assert (answer.status, answer.body) == (200, b"weights of 5")
    assert hashlib.sha256(answer.body).hexdigest() == file["sha256"]
    altered = file["url"].replace("/0?", "/1?")
    assert call(cluster.app, "GET", altered).status == 403


def test_rejects_changed_manifest(cluster: Cluster, agent: Agent) -> None:
    folder = checkpoint(cluster, agent, 1, UUIDS[0], 5)
    (folder / "manifest.json").write_text('{"files": {}}')
    answer = cluster.get(f"/checkpoints/{UUIDS[0]}/files")
    assert (answer.status, answer.code) == (409, "conflict")


def test_checkpoint_location_names_store_and_path(cluster: Cluster, agent: Agent) -> None:
    checkpoint(cluster, agent, 1, UUIDS[0], 5)
    place = cluster.get(f"/checkpoints/{UUIDS[0][:8]}/storage").json
    storage = {"type": "directory", "path": str(cluster.checkpoints)}
    assert place == {"uuid": UUIDS[0], "path": f"1/1/1/{UUIDS[0]}", "storage": storage}
    assert cluster.get("/checkpoints/9/storage").status == 404
    path = f"{V1}/checkpoints/{UUIDS[0]}/storage"
    assert call(cluster.app, "GET", path, token=agent.token).status == 403


def test_symbolic_link_in_a_checkpoint_is_not_followed(
    cluster: Cluster, agent: Agent, tmp_path: Path
) -> None:
    folder = checkpoint(cluster, agent, 1, UUIDS[0], 5)
    (tmp_path / "secret").write_text("canary")
    [file] = cluster.get(f"/checkpoints/{UUIDS[0]}/files").json["items"]
    (folder / "weights.bin").unlink()
    (folder / "weights.bin").symlink_to(tmp_path / "secret")
    assert call(cluster.app, "GET", file["url"]).status == 404


def test_rejects_checkpoint_recorded_at_a_wrong_path(cluster: Cluster, agent: Agent) -> None:
    path = f"9/1/1/{UUIDS[0]}"
    line = {"kind": "checkpoint", "uuid": UUIDS[0], "steps_completed": 1, "path": path}
    more = {"manifest_sha256": "0" * 64, "size_bytes": 1, "files": 1, "metadata": {}}
    agent.report("1.1", line | more)
    assert cluster.get(f"/checkpoints/{UUIDS[0]}").status == 404
    assert cluster.get(f"/checkpoints/{UUIDS[0]}/files").status == 404


def test_repeated_steps_of_a_restarted_trial_are_listed_once(
    cluster: Cluster, agent: Agent
) -> None:
    agent.report("1.1", *(metrics(steps, loss=1.0) for steps in (10, 20, 30)))
    agent.report("1.1", {"kind": "exited", "reason": "errored", "code": 1}, writer="agent")
    assert "1.2" in agent.take_work()
    agent.report("1.2", *(metrics(steps, loss=2.0) for steps in (20, 30, 40)))
    items = cluster.get("/trials/1/metrics").json["items"]
    assert [(item["steps_completed"], item["metrics"]["loss"]) for item in items] == [
        (20, 2.0),
        (30, 2.0),
        (40, 2.0),
    ]


def test_message_reports_a_run_from_batch_0(cluster: Cluster, agent: Agent) -> None:
    agent.report("1.1", metrics(5, "validation", loss=1.0))
    agent.report("1.1", {"kind": "exited", "reason": "preempted", "code": 0}, writer="agent")
    assert cluster.get("/trials/1").json["message"] == (
        "run 2 started again from batch 0: no checkpoint has any of the batches trained before"
    )
    checkpoint(cluster, agent, 2, UUIDS[2], 5)
    agent.report("2.1", metrics(5, "validation", loss=1.0))
    agent.report("2.1", {"kind": "exited", "reason": "preempted", "code": 0}, writer="agent")
    assert cluster.get("/trials/2").json["message"] == ""


def test_trial_shows_its_use(cluster: Cluster, agent: Agent) -> None:
    assert cluster.get("/trials/1").json["use"] is None
    sums = {"measured_ms": 7_200_000, "busy_ms": 3_600_000, "low_ms": 0, "memory_ms": 720_000}
    agent.report("1.1", {"kind": "use", **sums}, writer="agent")
    use = cluster.get("/trials/1").json["use"]
    assert use == {"percent": 50.0, "memory_percent": 10.0, "measured_hours": 2.0}
    agent.report("1.1", {"kind": "exited", "reason": "preempted", "code": 0}, writer="agent")
    assert cluster.get("/trials/1").json["use"] == use
    assert cluster.get("/experiments/1").json["use"] == use


def test_trial_shows_present_low_use(cluster: Cluster, agent: Agent) -> None:
    line = {"kind": "low_use", "is_low": True, "percent": 2.5, "time_ms": 3_600_000}
    agent.report("1.1", line, writer="agent")
    low_use = cluster.get("/trials/1").json["allocation"]["low_use"]
    assert low_use["text"] == "its slots compute 2.5 % of the time"
    agent.report("1.1", {**line, "is_low": False, "percent": 40}, writer="agent")
    assert cluster.get("/trials/1").json["allocation"]["low_use"] is None
