"""Forks in the API: submission, families, the filter `forked-from`, and the measured pace."""

from typing import Any

import pytest

from control_plane.access.principals import Role
from control_plane.actors import addresses
from control_plane.actors.experiment.state import ExperimentState, forks_partition
from control_plane.actors.messages.experiment import CollectionEnded, TrialMetered
from control_plane.queries import family
from tests.unit.api.agent_side import CONFIG, Agent, metrics
from tests.unit.api.cluster import TOKENS, V1, Cluster
from tests.unit.api.exchange import call


def create(cluster: Cluster, forked_from: int | None = None, **fields: Any) -> int:
    fields = {"paused": True, "forked_from": forked_from, **fields}
    answer = cluster.create(CONFIG, **fields)
    assert answer.status == 201, answer.body
    return int(answer.json["id"])


def members(cluster: Cluster, number: int) -> dict[int, dict[str, Any]]:
    answer = cluster.get(f"/experiments/{number}/family")
    assert answer.status == 200, answer.body
    return {member["id"]: member for member in answer.json["members"]}


def list_ids(cluster: Cluster, text: str) -> list[int]:
    return [item["id"] for item in cluster.get(f"/experiments?filter={text}").json["items"]]


@pytest.fixture
def tree_cluster(cluster: Cluster) -> Cluster:
    """Return a cluster with the tree 1 → (2 → 4, 3) and the unrelated experiment 5."""
    create(cluster)
    create(cluster, 1, overrides=["hyperparameters.x=0.5", "searcher.max_trials=3"])
    create(cluster, 1)
    create(cluster, 2, overrides=["name=other"])
    create(cluster)
    return cluster


def test_fork_names_its_original(tree_cluster: Cluster) -> None:
    assert tree_cluster.get("/experiments/2").json["forked_from"] == 1
    assert tree_cluster.get("/experiments/1").json["forked_from"] is None
    items = tree_cluster.get("/experiments").json["items"]
    assert [item["forked_from"] for item in items] == [None, 2, 1, 1, None]


def test_family_is_a_tree_around_the_experiment(tree_cluster: Cluster) -> None:
    assert list(members(tree_cluster, 2)) == [1, 2, 4, 3]
    # The forks of siblings and of originals are left out, except those on the way.
    assert list(members(tree_cluster, 3)) == [1, 2, 3]
    assert list(members(tree_cluster, 4)) == [1, 2, 4]
    assert list(members(tree_cluster, 5)) == [5]
    assert tree_cluster.get("/experiments/2/family").json["is_cut"] is False


def test_members_have_their_differences_from_the_original(tree_cluster: Cluster) -> None:
    found = members(tree_cluster, 2)
    assert found[1]["differences"] is None
    assert found[1]["has_other_code"] is None
    assert found[2]["differences"] == [
        {
            "path": "hyperparameters.x",
            "before": {"type": "double", "minval": 0.0, "maxval": 1.0},
            "after": 0.5,
        },
        {"path": "searcher.max_trials", "before": 2, "after": 3},
    ]
    assert (found[3]["differences"], found[3]["has_other_code"]) == ([], False)
    assert (found[2]["name"], found[2]["condition"], found[2]["metric"]) == (
        "digits",
        "paused",
        "loss",
    )


def test_long_values_and_many_differences_are_cut(cluster: Cluster) -> None:
    create(cluster)
    many = [f"hyperparameters.y{number}={number}" for number in range(25)]
    create(cluster, 1, overrides=[f"hyperparameters.x={'a' * 300}", *many])
    fork = members(cluster, 1)[2]
    assert len(fork["differences"]) == family.DIFFERENCES_MAX == 20
    # x and 25 further parameters differ.
    assert fork["differences_left_out"] == 26 - 20
    assert fork["differences"][0]["after"] == '"' + "a" * 199 + "…"


def test_newest_forks_are_shown_of_many(cluster: Cluster) -> None:
    create(cluster)
    for _ in range(family.FORKS_MAX + 1):
        create(cluster, 1)
    answer = cluster.get("/experiments/1/family").json
    assert [member["id"] for member in answer["members"]] == [1, *range(3, 23)]
    assert answer["is_cut"] is True
    # The experiment itself stays although its original has newer forks.
    assert list(members(cluster, 2))[:2] == [1, 2]


def delete(cluster: Cluster, number: int) -> None:
    """Delete an experiment, with the collector's answer that everything is deleted."""
    assert cluster.post(f"/experiments/{number}/kill", {}).status == 200
    path = f"{V1}/experiments/{number}"
    assert call(cluster.app, "DELETE", path, token=TOKENS[Role.USER]).status == 200
    address = addresses.experiment(number)
    state = cluster.services.engine.read_state(address)
    assert isinstance(state, ExperimentState)
    cluster.services.engine.execute_command(address, CollectionEnded(state.collection_number))
    assert cluster.get(f"/experiments/{number}").status == 404


def test_deleted_experiments_leave_the_family(tree_cluster: Cluster) -> None:
    delete(tree_cluster, 3)
    assert list(members(tree_cluster, 1)) == [1, 2]
    rows = tree_cluster.services.table.query(forks_partition(1), " ", "\x7f").rows
    assert [row.key.sort for row in rows] == ["000000000002"]
    delete(tree_cluster, 1)
    found = members(tree_cluster, 2)
    assert list(found) == [2, 4]
    assert (found[2]["forked_from"], found[2]["differences"]) == (1, None)


def test_list_is_filtered_by_the_original(tree_cluster: Cluster) -> None:
    assert list_ids(tree_cluster, "forked-from:1") == [3, 2]
    assert list_ids(tree_cluster, "forked-from:2") == [4]
    assert list_ids(tree_cluster, "forked-from:1%20-x=0.2") == [2]
    assert list_ids(tree_cluster, "forked-from:3") == list_ids(tree_cluster, "forked-from:99") == []


@pytest.mark.parametrize(
    ("text", "column", "expected"),
    [
        ("forked-from:x", 13, "an experiment's id, as in forked-from:9"),
        ("forked-from:0", 13, "an experiment's id, as in forked-from:9"),
        ("-forked-from:1", 1, "forked-from:9, with a single id"),
        ("forked-from:1,2", 1, "forked-from:9, with a single id"),
        ("forked-from>1", 1, "forked-from:9, with a single id"),
    ],
)
def test_wrong_filters_name_their_place(
    cluster: Cluster, text: str, column: int, expected: str
) -> None:
    answer = cluster.get(f"/experiments?filter={text.replace('>', '%3E')}")
    assert answer.status == 422, answer.body
    (detail,) = answer.json["error"]["details"]
    assert (detail["column"], expected in detail["message"]) == (column, True)


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"forked_from": 9}, "forked_from: is 9, and there is no such experiment here"),
        ({"forked_from": 1}, "forked_from: is command 1; only experiments can be forked"),
        ({"kind": "command"}, "forked_from: is for experiments, and this is a command"),
        ({"forked_from": 0}, ""),
    ],
)
def test_wrong_originals_are_refused(
    cluster: Cluster, fields: dict[str, Any], message: str
) -> None:
    command = "entrypoint: [python, -c, pass]\n"
    assert cluster.create(command, kind="command").status == 201
    text = command if "kind" in fields else CONFIG
    answer = cluster.create(text, **{"forked_from": 1, **fields})
    assert answer.status == 422, answer.body
    assert message in answer.json["error"]["message"]


def test_answers_have_the_submitted_configuration(cluster: Cluster) -> None:
    create(cluster)
    shown = cluster.get("/experiments/1").json
    assert shown["config"]["max_restarts"] == 5
    assert shown["submitted_config"]["searcher"] == {
        "name": "random",
        "metric": "loss",
        "max_length": {"batches": 10},
        "max_trials": 2,
    }
    assert "max_restarts" not in shown["submitted_config"]
    checked = cluster.create(CONFIG, validate_only=True, overrides=["max_restarts=1"]).json
    assert checked["submitted_config"]["max_restarts"] == 1


def test_pace_is_measured_between_reports(cluster: Cluster) -> None:
    assert cluster.create(CONFIG).status == 201
    agent = Agent(cluster)
    first, second = agent.take_work()
    shown = cluster.get("/experiments/1/pace").json
    assert (shown["seconds_per_unit"], shown["units"]) == (None, 0)
    assert shown["missing"] == "no trial has reported any training"
    for allocation, pause_ms in ((first, 500), (second, 500)):
        for steps in (2, 6):
            report = metrics(steps, "validation", loss=0.5)
            report["time_ms"] = pause_ms * steps
            agent.report(allocation, report)
    shown = cluster.get("/experiments/1/pace").json
    # 4 batches in 4 * 500 ms, in both trials, which have trained 6 batches.
    assert (shown["unit"], shown["seconds_per_unit"], shown["missing"]) == ("batches", 0.5, "")
    assert (shown["trials"], shown["units"], shown["slots_per_trial"]) == (2, 12, 1)
    # The machine has no price.
    assert (shown["cost"], shown["cost_per_unit"]) == (None, None)


def test_pace_has_the_cost_of_released_and_held_slots(cluster: Cluster) -> None:
    assert cluster.create(CONFIG).status == 201
    agent = Agent(cluster)
    for allocation in agent.take_work():
        agent.report(allocation, metrics(6, "validation", loss=0.5))
    now_ms = cluster.clock.ms
    released = TrialMetered(0, 1, 3_000_000, 0, 0, holds_slots=False)
    # $2 per hour for half an hour.
    held = TrialMetered(1, 1, 0, 2_000_000, now_ms - 1_800_000, holds_slots=True)
    for message in (released, held):
        cluster.services.engine.execute_command(addresses.experiment(1), message)
    shown = cluster.get("/experiments/1/pace").json
    # Both trials have trained 6 batches.
    assert (shown["units"], shown["cost"]) == (12, 4.0)
    assert shown["cost_per_unit"] == pytest.approx(4 / 12)


@pytest.mark.parametrize("path", ["family", "pace"])
def test_unknown_experiments_are_not_found(cluster: Cluster, path: str) -> None:
    answer = cluster.get(f"/experiments/9/{path}")
    assert (answer.status, answer.code) == (404, "not_found")
