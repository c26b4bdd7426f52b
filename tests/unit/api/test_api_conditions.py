"""Conditions in the answers and filters of the API."""

import pytest

from tests.unit.api.agent_side import CONFIG, Agent
from tests.unit.api.cluster import Cluster
from tests.unit.api.table_decorators import recorded_table

HALVING = """
name: rungs
entrypoint: python train.py
searcher:
  name: async_halving
  metric: loss
  max_length: {batches: 16}
  num_rungs: 2
  divisor: 4
  max_trials: 4
hyperparameters:
  x: {type: double, minval: 0, maxval: 1}
"""


def conditions(cluster: Cluster, path: str) -> list[str]:
    return [item["condition"] for item in cluster.get(path).json["items"]]


def ids(cluster: Cluster, path: str) -> list[int]:
    return [item["id"] for item in cluster.get(path).json["items"]]


@pytest.fixture
def agent(cluster: Cluster) -> Agent:
    """An agent with one slot, on which a trial of experiment 1 of 3 runs. The last is paused."""
    agent = Agent(cluster, slots=1)
    cluster.create(CONFIG)
    cluster.create(CONFIG)
    cluster.create(CONFIG, paused=True)
    agent.take_work()
    return agent


def fail(agent: Agent, allocation: str) -> None:
    exited = {"kind": "exited", "reason": "errored", "code": 1, "lasting": True}
    agent.report(allocation, exited, writer="agent")


def test_experiments_have_the_condition_of_their_jobs(cluster: Cluster, agent: Agent) -> None:
    assert conditions(cluster, "/experiments") == ["paused", "queued", "running"]
    assert conditions(cluster, "/jobs") == ["running", "queued"]
    assert [cluster.get(f"/experiments/{n}").json["condition"] for n in (1, 2, 3)] == [
        "running",
        "queued",
        "paused",
    ]
    assert cluster.get("/jobs/3").json["condition"] == "paused"
    assert [item["state"] for item in cluster.get("/experiments").json["items"]] == [
        "PAUSED",
        "ACTIVE",
        "ACTIVE",
    ]


@pytest.mark.parametrize(
    ("states", "found"),
    [
        ("running", [1]),
        ("queued", [2]),
        ("Queued,paused", [3, 2]),
        ("ACTIVE", [2, 1]),
        ("waiting,finished,deletion-failed", []),
        ("running,PAUSED", [3, 1]),
    ],
)
def test_lists_are_filtered_by_condition_or_state(
    cluster: Cluster, agent: Agent, states: str, found: list[int]
) -> None:
    assert ids(cluster, f"/experiments?state={states}") == found
    assert ids(cluster, f"/experiments?state={states}&sort=name") == found


def test_unknown_state_is_refused_with_all_words(cluster: Cluster) -> None:
    answer = cluster.get("/experiments?state=runing")
    assert (answer.status, answer.code) == (422, "invalid")
    message = answer.json["error"]["message"]
    assert "'runing' is not a state; expected one of running, queued, waiting" in message
    assert "ACTIVE" in message


def test_trials_have_conditions_and_are_filtered(cluster: Cluster, agent: Agent) -> None:
    assert conditions(cluster, "/experiments/1/trials") == ["starting", "queued"]
    agent.report("1.1", {"kind": "container", "state": "RUNNING"}, writer="agent")
    assert cluster.get("/trials/1").json["condition"] == "running"
    assert ids(cluster, "/experiments/1/trials?state=queued") == [2]
    agent.finish("1.1")
    assert ids(cluster, "/experiments/1/trials?state=finished") == [1]
    assert ids(cluster, "/experiments/1/trials?state=COMPLETED") == [1]
    assert ids(cluster, "/experiments/1/trials?state=failed,canceled") == []
    assert cluster.get("/experiments/1/trials?state=deleting").status == 200
    assert cluster.get("/experiments/1/trials?state=waiting").status == 422


def test_experiments_with_failed_trials_are_found(cluster: Cluster, agent: Agent) -> None:
    assert ids(cluster, "/experiments?has_failed_trials=true") == []
    fail(agent, "1.1")
    assert ids(cluster, "/experiments/1/trials?state=failed") == [1]
    assert ids(cluster, "/experiments?has_failed_trials=true") == [1]
    assert ids(cluster, "/experiments?has_failed_trials=false") == [3, 2]
    assert ids(cluster, "/experiments?state=running,queued&has_failed_trials=true") == [1]


def test_condition_of_a_list_takes_constant_calls(cluster: Cluster) -> None:
    Agent(cluster, slots=1)
    for _ in range(30):
        cluster.create(CONFIG)
    calls = []
    for limit in (1, 30):
        assert cluster.get(f"/experiments?limit={limit}").status == 200
        with recorded_table(cluster) as table:
            assert len(cluster.get(f"/experiments?limit={limit}").json["items"]) == limit
        calls.append(table.calls)
    assert calls[0] == calls[1]


def test_trials_wait_at_a_rung_and_are_stopped_by_the_search(cluster: Cluster) -> None:
    cluster.create(HALVING)
    agent = Agent(cluster)
    found = set()
    path = "/experiments/1/trials"
    # The first rung is at 16 / 4 batches, and one of four trials is promoted.
    for _ in range(8):
        for allocation in agent.take_work():
            trial = cluster.get(f"/trials/{allocation.partition('.')[0]}").json
            metric = 0.1 * trial["id"]
            length = trial["target_steps"]
            agent.report(allocation, {"kind": "completed", "length": length, "metric": metric})
            found |= set(conditions(cluster, path))
            idle = {"kind": "exited", "reason": "idle", "code": 0}
            agent.report(allocation, idle, writer="agent")
            found |= set(conditions(cluster, path))
    assert "waiting at a rung" in found
    assert sorted(conditions(cluster, path)) == ["finished", *["stopped by the search"] * 3]
    assert ids(cluster, f"{path}?state=finished") == [1]
    assert ids(cluster, f"{path}?state=stopped-by-the-search") == [2, 3, 4]
    assert cluster.get("/experiments/1").json["condition"] == "finished"
