"""Snapshots over HTTP: the start with another run's files, who may read them, and their rows."""

from typing import Any

import pytest

from control_plane.access.principals import Principal, Role
from control_plane.access.tokens import token_digest, token_put
from control_plane.actors import addresses
from control_plane.state.table import Key
from control_plane.usecases import restored_files
from tests.unit.api.agent_side import Agent, checkpoint_line
from tests.unit.api.cluster import TOKENS, V1, Cluster
from tests.unit.api.exchange import Answer, call
from tests.unit.api.test_api_collection import collect

SHELL = "resources: {slots: 0}\n"
OTHER = "dct_another-users-token"


@pytest.fixture
def other_token(cluster: Cluster) -> str:
    """Store the token of another user, and return the token."""
    principal = Principal("user-2", Role.USER, "")
    cluster.services.table.commit([token_put(token_digest(OTHER), principal)])
    return OTHER


def snapshot_line(number: int, trial_id: int = 1) -> dict[str, Any]:
    line = checkpoint_line(trial_id, 1, number, trial_id)
    return {**line, "metadata": {"kind": "folder", "steps_completed": number}, "size_bytes": 2048}


def start_shell(cluster: Cluster, **fields: Any) -> dict[str, Any]:
    answer = cluster.create(SHELL, kind="shell", **fields)
    assert answer.status == 201, answer.body
    shell: dict[str, Any] = answer.json
    return shell


@pytest.fixture
def agent(cluster: Cluster) -> Agent:
    """Create shell 1 with a snapshot, running on this agent."""
    start_shell(cluster)
    agent = Agent(cluster)
    [allocation] = agent.take_work()
    agent.report(allocation, snapshot_line(1))
    return agent


def restore(cluster: Cluster, token: str = TOKENS[Role.USER], **fields: Any) -> Answer:
    body = {"config": SHELL, "kind": "shell", "restored_from": 1, **fields}
    return call(cluster.app, "POST", f"{V1}/experiments", token=token, content=body)


def refusal(answer: Answer) -> tuple[int, str]:
    error = answer.json["error"]
    details = error.get("details") or [error]
    return answer.status, details[0]["message"]


def test_shell_starts_with_the_files_of_another_shell(cluster: Cluster, agent: Agent) -> None:
    source = cluster.get("/experiments/1").json
    assert source["run"]["snapshot"] == {
        "uuid": snapshot_line(1)["uuid"],
        "size_bytes": 2048,
        "saved_ms": cluster.clock.ms,
    }
    answer = restore(cluster)
    assert answer.status == 201, answer.body
    assert (answer.json["id"], answer.json["restored_from"]) == (2, 1)
    # The hook of the uploaded files runs again.
    assert answer.json["code_sha256"] == source["code_sha256"]
    entries = agent.sync().json["desired"]
    [spec] = [entry["spec"] for entry in entries if "spec" in entry]
    assert spec["latest_checkpoint"]["uuid"] == snapshot_line(1)["uuid"]
    assert spec["snapshots"] == {"period_ms": 300_000, "bytes_max": 1024**3}


def test_files_are_restored_without_new_snapshots(cluster: Cluster, agent: Agent) -> None:
    assert restore(cluster, overrides=["snapshots.enabled=false"]).status == 201
    entries = agent.sync().json["desired"]
    assert [entry["spec"]["snapshots"] for entry in entries if "spec" in entry] == [{}]
    assert cluster.get("/experiments/2").json["config"]["snapshots"] == {"enabled": False}


def test_shell_without_a_snapshot_of_its_own_has_the_one_it_started_with(
    cluster: Cluster, agent: Agent
) -> None:
    assert restore(cluster).status == 201
    assert restore(cluster, restored_from=2).status == 201
    pins = cluster.get(f"/checkpoints/{snapshot_line(1)['uuid']}").json["pinned_by"]
    assert pins["experiments"] == [2, 3]


def test_snapshot_in_use_stays_until_the_other_run_is_deleted(
    cluster: Cluster, agent: Agent
) -> None:
    assert restore(cluster).status == 201
    agent.report(agent.known[0], snapshot_line(2))
    collect(cluster)
    first = cluster.get(f"/checkpoints/{snapshot_line(1)['uuid']}")
    assert (first.status, first.json["state"]) == (200, "COMPLETED")


def test_snapshot_that_is_saved_during_the_submission_is_restored(
    cluster: Cluster, agent: Agent, monkeypatch: pytest.MonkeyPatch
) -> None:
    newer = [snapshot_line(2)]

    def save_meanwhile(*_: object) -> None:
        if newer:
            agent.report(agent.known[0], newer.pop())

    monkeypatch.setattr(restored_files, "check_store", save_meanwhile)
    answer = restore(cluster)
    assert answer.status == 201, answer.body
    second = cluster.get(f"/checkpoints/{snapshot_line(2)['uuid']}").json
    assert second["pinned_by"]["experiments"] == [answer.json["id"]]


def test_removed_snapshots_leave_no_rows(cluster: Cluster, agent: Agent) -> None:
    (cluster.checkpoints / snapshot_line(1)["path"]).mkdir(parents=True)
    for number in (2, 3, 4):
        line = snapshot_line(number)
        (cluster.checkpoints / line["path"]).mkdir()
        intent = {**line, "kind": "checkpoint_intent"}
        agent.report(agent.known[0], intent, line)
        collect(cluster)
    # A report that comes again, after the files were removed.
    agent.report(agent.known[0], snapshot_line(2))
    collect(cluster)
    folder = (cluster.checkpoints / snapshot_line(1)["path"]).parent
    assert [path.name for path in folder.iterdir()] == [snapshot_line(4)["uuid"]]
    rows = cluster.services.table.query(addresses.trial(1), " ", "~").rows
    checkpoints = [row.key.sort for row in rows if "checkpoint/" in row.key.sort]
    assert checkpoints == [f"P#checkpoint/{snapshot_line(4)['uuid']}"]
    announced = [row.body for row in rows if row.key.sort.startswith("I#")]
    assert len(announced) <= 1
    table = cluster.services.table
    assert table.get(Key("checkpoints", snapshot_line(3)["uuid"])) is None


def test_runs_without_usable_files_are_refused(cluster: Cluster, agent: Agent) -> None:
    assert cluster.create("entrypoint: [ls]", kind="command").status == 201
    start_shell(cluster)
    start_shell(cluster, overrides=["snapshots.enabled=false"])
    command = {"kind": "command", "config": "entrypoint: [ls]"}
    refused: list[tuple[dict[str, Any], str]] = [
        (command, "is for notebooks and shells, and this is a command"),
        ({"restored_from": 9}, "is 9, and there is no such notebook or shell here"),
        ({"restored_from": 2}, "is command 2; only notebooks and shells keep their files"),
        ({"restored_from": 3}, "shell 3 has no snapshot: no files were saved yet"),
        (
            {"restored_from": 4},
            "shell 4 has no snapshot: they are switched off in its configuration",
        ),
    ]
    for fields, message in refused:
        assert refusal(restore(cluster, **fields)) == (422, message)


def test_deleted_snapshot_is_refused(cluster: Cluster, agent: Agent) -> None:
    uuid = snapshot_line(1)["uuid"]
    assert cluster.post("/experiments/1/kill", {}).status == 200
    exited = {"kind": "exited", "reason": "killed", "code": None}
    agent.report(agent.known[0], exited, writer="agent")
    path = f"{V1}/checkpoints/{uuid}"
    assert call(cluster.app, "DELETE", path, token=TOKENS[Role.USER]).status == 200
    assert cluster.get("/experiments/1").json["run"]["snapshot"] is None
    assert refusal(restore(cluster)) == (422, "the snapshot of shell 1 was deleted")
    collect(cluster)
    assert refusal(restore(cluster)) == (422, "the snapshot of shell 1 was deleted")


def test_only_the_owner_and_admins_start_with_the_files(
    cluster: Cluster, agent: Agent, other_token: str
) -> None:
    text = "shell 1 belongs to user-1: only user-1 and admins may start with its files"
    assert refusal(restore(cluster, other_token)) == (403, text)
    assert restore(cluster, TOKENS[Role.ADMIN]).status == 201


def test_only_the_owner_and_admins_read_the_files(
    cluster: Cluster, agent: Agent, other_token: str
) -> None:
    text = "the folder of shell 1 belongs to user-1: ask user-1 or an admin to read it"
    for part in ("files", "storage"):
        path = f"{V1}/checkpoints/{snapshot_line(1)['uuid']}/{part}"
        assert refusal(call(cluster.app, "GET", path, token=other_token)) == (403, text)
        for token in (TOKENS[Role.USER], TOKENS[Role.ADMIN]):
            assert call(cluster.app, "GET", path, token=token).status != 403


def test_experiments_do_not_start_from_a_snapshot(cluster: Cluster, agent: Agent) -> None:
    config = (
        "entrypoint: python train.py\nhyperparameters: {}\n"
        "searcher: {name: single, metric: loss, max_length: {batches: 1}, "
    )
    for source, message in (
        (f"source_checkpoint_uuid: {snapshot_line(1)['uuid']}", "has the files of a notebook"),
        ("source_trial_id: 1", "trial 1 has no complete checkpoint to start from"),
    ):
        answer = cluster.create(f"{config}{source}}}")
        assert answer.status == 422
        assert message in refusal(answer)[1]


def test_lost_machine_names_the_command_that_restores_the_files(
    cluster: Cluster, agent: Agent
) -> None:
    exited = {"kind": "exited", "reason": "lost", "code": None}
    agent.report(agent.known[0], exited, writer="agent")
    shell = cluster.get("/experiments/1").json
    assert shell["state"] == "ERROR"
    text = "start it again with its files: detcloud shell start --from 1"
    assert shell["message"].endswith(text)
    assert restore(cluster).status == 201
