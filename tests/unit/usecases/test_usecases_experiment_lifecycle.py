"""Changes, archiving, continuation and deletion of experiments; killed trials; warm starts."""

import json
from collections.abc import Sequence
from typing import Any

import pytest

from control_plane.access.principals import Role
from control_plane.actors.messages.experiment import CollectionEnded
from control_plane.actors.messages.trial import TrialDeleted
from control_plane.engine.head import HEAD
from control_plane.state.table import Conflict, Key, Write
from simulator.faults.table_faults import TableDecorator
from tests.unit.api.agent_side import CONFIG, Agent
from tests.unit.api.cluster import TOKENS, V1, Cluster
from tests.unit.api.exchange import Answer, call

SINGLE = CONFIG.replace("name: random,", "name: single,").replace(", max_trials: 2", "")
STEPS = """
entrypoint: model:Trial
searcher: {name: single, metric: loss, max_steps: 2}
hyperparameters: {global_batch_size: 8}
"""
UUID = "{trial:08x}-0000-4000-8000-{steps:012x}"


def send(cluster: Cluster, method: str, path: str, content: object = None) -> Answer:
    return call(cluster.app, method, V1 + path, token=TOKENS[Role.USER], content=content)


def problem(answer: Answer) -> tuple[int, str, str]:
    return answer.status, answer.code, answer.json["error"]["message"]


def ids(answer: Answer) -> list[int]:
    return [item["id"] for item in answer.json["items"]]


def save_checkpoint(agent: Agent, allocation: str, steps: int) -> str:
    """Report a checkpoint of the allocation; return the UUID."""
    trial, epoch = allocation.split(".")
    experiment = agent.cluster.get(f"/trials/{trial}").json["experiment_id"]
    uuid = UUID.format(trial=int(trial), steps=steps)
    line = {
        "kind": "checkpoint",
        "uuid": uuid,
        "steps_completed": steps,
        "path": f"{experiment}/{trial}/{epoch}/{uuid}",
        "manifest_sha256": "0" * 64,
        "size_bytes": 8,
        "files": 1,
        "metadata": {},
    }
    agent.report(allocation, line)
    return uuid


def run_failing_experiment(cluster: Cluster, config: str = SINGLE) -> Agent:
    """Run experiment 1: the only trial saves a checkpoint at batch 4 of 10 and ends in ERROR."""
    cluster.create(config, overrides=["max_restarts=0"])
    agent = Agent(cluster)
    [allocation] = agent.take_work()
    save_checkpoint(agent, allocation, 4)
    exited = {"kind": "exited", "reason": "errored", "code": 1, "message": "out of luck"}
    agent.report(allocation, exited, writer="agent")
    assert cluster.get("/experiments/1").json["state"] == "ERROR"
    return agent


def run_complete_experiment(cluster: Cluster) -> Agent:
    """Run experiment 1: the only trial completes with a checkpoint at batch 10."""
    cluster.create(SINGLE)
    agent = Agent(cluster)
    [allocation] = agent.take_work()
    save_checkpoint(agent, allocation, 4)
    save_checkpoint(agent, allocation, 10)
    agent.finish(allocation)
    assert cluster.get("/experiments/1").json["state"] == "COMPLETED"
    return agent


def test_patch_changes_only_given_fields(cluster: Cluster) -> None:
    cluster.create(CONFIG)
    changes: dict[str, Any] = {
        "name": "letters",
        "labels": ["b", "a", "b"],
        "max_slots": 3,
        "save_trial_best": 0,
    }
    answer = send(cluster, "PATCH", "/experiments/1", changes)
    assert answer.status == 200, answer.body
    shown = cluster.get("/experiments/1").json
    assert (shown["name"], shown["description"], shown["labels"]) == ("letters", "", ["b", "a"])
    kept = ("save_experiment_best", "save_trial_best", "save_trial_latest", "max_slots")
    assert [shown[name] for name in kept] == [0, 0, 1, 3]
    lifted = send(cluster, "PATCH", "/experiments/1", {"max_slots": None}).json
    assert (lifted["max_slots"], lifted["name"]) == (None, "letters")


@pytest.mark.parametrize(
    ("changes", "word"),
    [
        ({"name": ""}, "name"),
        ({"save_trial_best": -1}, "save_trial_best"),
        ({"labels": [""]}, "labels"),
        ({"max_slots": 0}, "max_slots: must be at least slots_per_trial (1), not 0"),
        ({"weight": 0}, "weight must be greater than 0"),
        ({"priority": 100}, "priority must be between 1 and 99"),
        ({"speed": 2}, "speed"),
    ],
)
def test_rejects_invalid_change(cluster: Cluster, changes: dict[str, Any], word: str) -> None:
    cluster.create(CONFIG)
    status, code, text = problem(send(cluster, "PATCH", "/experiments/1", changes))
    assert (status, code) == (422, "invalid")
    assert word in text


def test_archived_experiments_are_listed_on_request_only(cluster: Cluster) -> None:
    for _ in range(3):
        cluster.create(CONFIG)
    assert problem(cluster.post("/experiments/2/archive", {}))[:2] == (409, "conflict")
    cluster.post("/experiments/2/cancel", {})
    assert cluster.post("/experiments/2/archive", {}).json["archived"] is True
    assert ids(cluster.get("/experiments")) == [3, 1]
    assert ids(cluster.get("/experiments?archived=true")) == [2]
    assert ids(cluster.get("/experiments?archived=all")) == [3, 2, 1]
    assert cluster.get("/experiments?archived=some").status == 422
    assert cluster.post("/experiments/2/unarchive", {}).json["archived"] is False
    assert ids(cluster.get("/experiments")) == [3, 2, 1]


def test_list_filters_by_label_and_part_of_name(cluster: Cluster) -> None:
    cluster.create(CONFIG, overrides=["labels=[a]"])
    cluster.create(CONFIG, overrides=["name=Letters"])
    assert ids(cluster.get("/experiments?label=a")) == [1]
    assert ids(cluster.get("/experiments?name=etter")) == [2]
    assert ids(cluster.get("/experiments?name=LETTER")) == [2]
    send(cluster, "PATCH", "/experiments/2", {"labels": ["a"], "name": "digits too"})
    assert ids(cluster.get("/experiments?label=a&name=digits")) == [2, 1]


def test_seed_is_stored_and_shown(cluster: Cluster) -> None:
    assert cluster.create(CONFIG).json["seed"] == 7
    drawn = cluster.create(CONFIG.replace("{experiment_seed: 7}", "{}")).json["seed"]
    assert 0 <= drawn < 2**31


@pytest.mark.parametrize("seed", ["-1", "2147483648", "1.5"])
def test_rejects_invalid_seed(cluster: Cluster, seed: str) -> None:
    answer = cluster.create(CONFIG, overrides=[f"reproducibility.experiment_seed={seed}"])
    assert answer.status == 422
    [detail] = answer.json["error"]["details"]
    assert detail["path"] == "reproducibility.experiment_seed"


def test_killed_trial_does_not_end_the_experiment(cluster: Cluster) -> None:
    cluster.create(CONFIG)
    agent = Agent(cluster)
    agent.take_work()
    answer = cluster.post("/trials/1/kill", {})
    assert (answer.status, answer.json["state"]) == (200, "STOPPING_KILLED")
    [first, second] = agent.sync().json["desired"]
    assert (first["state"], second["state"]) == ("kill", "run")
    agent.report("1.1", {"kind": "exited", "reason": "killed"}, writer="agent")
    assert cluster.get("/trials/1").json["state"] == "CANCELED"
    assert cluster.post("/trials/1/kill", {}).json["state"] == "CANCELED"
    agent.finish("2.1")
    shown = cluster.get("/experiments/1").json
    assert (shown["state"], shown["trials"]["completed"]) == ("COMPLETED", 1)
    assert cluster.post("/trials/9/kill", {}).status == 404


def test_killed_step_era_experiment_is_canceled_and_kills_containers(
    cluster: Cluster,
) -> None:
    cluster.create(STEPS)
    agent = Agent(cluster)
    agent.take_work()
    assert cluster.post("/experiments/1/kill", {}).json["state"] == "STOPPING_CANCELED"
    [entry] = agent.sync().json["desired"]
    assert entry["state"] == "kill"
    assert cluster.get("/trials/1").json["state"] == "STOPPING_CANCELED"
    agent.report("1.1", {"kind": "exited", "reason": "killed"}, writer="agent")
    ended = cluster.get("/experiments/1").json
    assert (ended["state"], ended["progress"]) == ("CANCELED", None)
    assert problem(cluster.post("/experiments/1/kill", {}))[:2] == (404, "not_found")


def test_spec_names_the_era(cluster: Cluster) -> None:
    agent = Agent(cluster)
    cluster.create(STEPS)
    cluster.create(SINGLE)
    eras = {entry["spec"]["era"] for entry in agent.sync().json["desired"]}
    assert eras == {"steps", "length"}
    assert [entry["spec"]["era"] for entry in agent.sync().json["desired"]] == ["steps", "length"]


def test_continued_experiment_starts_from_checkpoints(cluster: Cluster) -> None:
    agent = run_failing_experiment(cluster)
    answer = cluster.post("/experiments/1/continue", {"overrides": ["max_restarts=3"]})
    assert (answer.status, answer.json["state"]) == (200, "ACTIVE"), answer.body
    assert answer.json["trials"] == {"requested": 1, "running": 1, "completed": 0, "errored": 0}
    assert answer.json["ended_ms"] is None
    trial = cluster.get("/trials/1").json
    assert (trial["state"], trial["restarts"], trial["steps_completed"]) == ("ACTIVE", 0, 4)
    agent.known = []
    entries = agent.sync().json["desired"]
    [entry] = [entry for entry in entries if entry["allocation"] == "1.2"]
    assert entry["spec"]["latest_checkpoint"]["steps_completed"] == 4
    assert entry["spec"]["config"]["max_restarts"] == 3
    assert cluster.get("/experiments/1").json["config"]["max_restarts"] == 3
    again = cluster.post("/experiments/1/continue", {"overrides": []})
    assert problem(again)[:2] == (409, "conflict")


def test_completed_single_search_continues_with_larger_length(cluster: Cluster) -> None:
    agent = run_complete_experiment(cluster)
    nothing = cluster.post("/experiments/1/continue", {})
    assert problem(nothing)[:2] == (409, "conflict")
    assert "increase searcher.max_length" in problem(nothing)[2]
    overrides = ["searcher.max_length={batches: 25}"]
    answer = cluster.post("/experiments/1/continue", {"overrides": overrides})
    assert answer.json["state"] == "ACTIVE", answer.body
    assert answer.json["progress"] == 0.0
    agent.known = []
    [entry] = [e for e in agent.sync().json["desired"] if e["allocation"] == "1.2"]
    assert entry["directives"]["length"] == 25
    assert cluster.get("/trials/1").json["target_steps"] == 25
    config = cluster.get("/experiments/1").json["config"]
    assert config["searcher"]["max_length"] == {"batches": 25}


def test_step_era_search_is_lengthened_in_steps(cluster: Cluster) -> None:
    run_failing_experiment(cluster, STEPS)
    answer = cluster.post("/experiments/1/continue", {"overrides": ["searcher.max_steps=5"]})
    assert answer.json["state"] == "ACTIVE", answer.body
    # 5 steps of 100 batches.
    assert cluster.get("/trials/1").json["target_steps"] == 500


@pytest.mark.parametrize(
    ("override", "path", "word"),
    [
        ("max_restarts=-1", "max_restarts", "at least 0"),
        ("searcher.max_length={batches: 9}", "searcher.max_length", "must be at least 10"),
        ("searcher.max_length={records: 900}", "searcher.max_length", "in batches as before"),
        ("searcher.metric=accuracy", "overrides", "cannot be changed when an experiment is"),
        ("hyperparameters.x=1", "overrides", "these can"),
        ("searcher.max_lengths=1", "overrides", "cannot be changed"),
    ],
)
def test_rejects_override_of_other_fields(
    cluster: Cluster, override: str, path: str, word: str
) -> None:
    run_failing_experiment(cluster, SINGLE.replace("  x:", "  global_batch_size: 8\n  x:"))
    for validate_only in (True, False):
        body = {"overrides": [override], "validate_only": validate_only}
        answer = cluster.post("/experiments/1/continue", body)
        assert answer.status == 422, answer.body
        [detail] = answer.json["error"]["details"]
        assert detail["path"] == path
        assert word in f"{detail['message']} {detail.get('hint')}"
    assert cluster.get("/experiments/1").json["state"] == "ERROR"


def test_dry_run_validates_overrides_only(cluster: Cluster) -> None:
    run_failing_experiment(cluster)
    before = cluster.get("/experiments/1").json
    body = {"overrides": ["max_restarts=3"], "validate_only": True}
    answer = cluster.post("/experiments/1/continue", body)
    assert (answer.status, answer.json["state"]) == (200, "ERROR"), answer.body
    assert cluster.get("/experiments/1").json == before
    absent = cluster.post("/experiments/9/continue", {"validate_only": True})
    assert problem(absent)[:2] == (404, "not_found")


def test_rejects_larger_length_for_search_with_many_trials(cluster: Cluster) -> None:
    cluster.create(CONFIG)
    cluster.post("/experiments/1/cancel", {})
    longer = {"overrides": ["searcher.max_length={batches: 20}"]}
    _, code, text = problem(cluster.post("/experiments/1/continue", longer))
    assert code == "invalid"
    assert "a search by random cannot be lengthened" in text
    answer = cluster.post("/experiments/1/continue", {})
    assert (answer.json["state"], answer.json["trials"]["running"]) == ("ACTIVE", 2)


def test_repeated_continuation_takes_effect_once(cluster: Cluster) -> None:
    run_failing_experiment(cluster)
    for _ in range(2):
        answer = cluster.post("/experiments/1/continue", {"overrides": []}, key="k")
        assert (answer.status, answer.json["state"]) == (200, "ACTIVE")


class Repeating(TableDecorator):
    """Table that makes the next commit but raises a conflict, as after a repeated write."""

    repeats = 1

    def commit(self, writes: Sequence[Write]) -> None:
        self.table.commit(writes)
        if self.repeats:
            self.repeats -= 1
            raise Conflict(Key("experiment#1", HEAD))


def test_command_with_lost_commit_response_succeeds(
    cluster: Cluster,
) -> None:
    run_failing_experiment(cluster)
    engine = cluster.services.engine
    engine.table = Repeating(engine.table)
    answer = cluster.post("/experiments/1/continue", {"overrides": []}, key="k")
    assert (answer.status, answer.json["state"]) == (200, "ACTIVE")


def test_deleted_experiment_is_not_found_as_deleted(cluster: Cluster) -> None:
    run_complete_experiment(cluster)
    cluster.create(CONFIG)
    assert problem(send(cluster, "DELETE", "/experiments/2"))[:2] == (409, "conflict")
    answer = send(cluster, "DELETE", "/experiments/1")
    assert (answer.status, answer.json["state"]) == (200, "DELETING")
    assert ids(cluster.get("/experiments?state=deleting")) == [1]
    row = cluster.services.table.query("collections", "0", "1").rows[0]
    assert json.loads(row.body)["delete"] is True
    cluster.services.engine.post_message("trial#1", TrialDeleted(), sender="collector")
    ended = CollectionEnded(json.loads(row.body)["generation"])
    cluster.services.engine.post_message("experiment#1", ended, sender="collector")
    assert problem(cluster.get("/experiments/1")) == (404, "not_found", "experiment 1 was deleted")
    assert problem(cluster.get("/trials/1"))[2] == "trial 1 was deleted with experiment 1"
    assert ids(cluster.get("/experiments?archived=all")) == [2]
    for command in ("kill", "archive", "continue"):
        refused = cluster.post(f"/experiments/1/{command}", {})
        assert problem(refused) == (404, "not_found", "experiment 1 was deleted")
    assert problem(cluster.get("/experiments/9"))[2] == "there is no experiment 9"


def test_repeated_deletion_gets_the_stored_answer(
    cluster: Cluster,
) -> None:
    run_complete_experiment(cluster)
    headers = [("idempotency-key", "k")]
    path, token = f"{V1}/experiments/1", TOKENS[Role.USER]
    first = call(cluster.app, "DELETE", path, token=token, headers=headers)
    cluster.services.engine.post_message("experiment#1", CollectionEnded(2), sender="collector")
    assert cluster.get("/experiments/1").status == 404
    again = call(cluster.app, "DELETE", path, token=token, headers=headers)
    assert (again.status, again.body) == (200, first.body)


def test_warm_start_uses_latest_checkpoint_of_source_trial(cluster: Cluster) -> None:
    agent = run_complete_experiment(cluster)
    source = UUID.format(trial=1, steps=10)
    # With both settings, the source trial takes precedence.
    both = [
        "searcher.source_trial_id=1",
        f"searcher.source_checkpoint_uuid={UUID.format(trial=1, steps=4)}",
    ]
    assert cluster.create(SINGLE, overrides=both).status == 201
    [shown] = cluster.get("/experiments/2/trials").json["items"]
    assert cluster.get(f"/trials/{shown['id']}").json["warm_start"] == source
    assert (shown["warm_start"], shown["latest_checkpoint"]) == (source, None)
    agent.known = []
    entries = agent.sync().json["desired"]
    [entry] = [e for e in entries if e["allocation"] == f"{shown['id']}.1"]
    spec = entry["spec"]
    assert (spec["latest_checkpoint"]["uuid"], spec["latest_checkpoint"]["trial_id"]) == (source, 1)
    assert spec["steps_completed"] == 0


def test_own_checkpoint_replaces_warm_start(
    cluster: Cluster,
) -> None:
    agent = run_complete_experiment(cluster)
    prefix = UUID.format(trial=1, steps=4)
    cluster.create(SINGLE, overrides=[f"searcher.source_checkpoint_uuid={prefix}"])
    [shown] = cluster.get("/experiments/2/trials").json["items"]
    assert shown["warm_start"] == prefix
    allocation = f"{shown['id']}.1"
    agent.take_work()
    own = save_checkpoint(agent, allocation, 6)
    agent.report(allocation, {"kind": "exited", "reason": "errored"}, writer="agent")
    agent.known = []
    [entry] = [e for e in agent.sync().json["desired"] if e["allocation"] == f"{shown['id']}.2"]
    assert entry["spec"]["latest_checkpoint"]["uuid"] == own
    assert entry["spec"]["steps_completed"] == 6


@pytest.mark.parametrize(
    ("override", "path", "word"),
    [
        ("searcher.source_trial_id=9", "searcher.source_trial_id", "there is no trial 9"),
        ("searcher.source_trial_id=1", "searcher.source_trial_id", "no complete checkpoint"),
        (
            "searcher.source_checkpoint_uuid=abcd",
            "searcher.source_checkpoint_uuid",
            "there is no checkpoint abcd",
        ),
        (
            "searcher.source_checkpoint_uuid=xyz",
            "searcher.source_checkpoint_uuid",
            "must be a UUID",
        ),
    ],
)
def test_rejects_unknown_warm_start_source(
    cluster: Cluster, override: str, path: str, word: str
) -> None:
    cluster.create(CONFIG)
    for only in (False, True):
        answer = cluster.create(SINGLE, overrides=[override], validate_only=only)
        assert answer.status == 422
        [detail] = answer.json["error"]["details"]
        assert detail["path"] == path
        assert word in detail["message"]


def test_rejects_warm_start_from_a_different_store(cluster: Cluster) -> None:
    run_complete_experiment(cluster)
    elsewhere = "checkpoint_storage={type: directory, container_path: /elsewhere}"
    answer = cluster.create(SINGLE, overrides=["searcher.source_trial_id=1", elsewhere])
    [detail] = answer.json["error"]["details"]
    assert detail["path"] == "searcher.source_trial_id"
    assert "but this experiment's store is /elsewhere" in detail["message"]


def test_rejects_deletion_of_warm_start_source(
    cluster: Cluster,
) -> None:
    agent = run_complete_experiment(cluster)
    cluster.create(SINGLE, overrides=["searcher.source_trial_id=1"])
    [shown] = cluster.get("/experiments/2/trials").json["items"]
    status, code, text = problem(send(cluster, "DELETE", "/experiments/1"))
    assert (status, code) == (409, "conflict")
    assert text.startswith("experiment 2 started from its checkpoint 00000001-")
    cluster.post("/experiments/2/cancel", {})
    exited = {"kind": "exited", "reason": "preempted"}
    agent.report(f"{shown['id']}.1", exited, writer="agent")
    assert send(cluster, "DELETE", "/experiments/2").status == 200
    rows = cluster.services.table.query("collections", "000000000002", "1").rows
    ended = CollectionEnded(json.loads(rows[0].body)["generation"])
    cluster.services.engine.post_message("experiment#2", ended, sender="collector")
    assert send(cluster, "DELETE", "/experiments/1").json["state"] == "DELETING"


def test_deletion_of_unknown_experiment_is_not_found(cluster: Cluster) -> None:
    assert problem(send(cluster, "DELETE", "/experiments/7"))[:2] == (404, "not_found")
