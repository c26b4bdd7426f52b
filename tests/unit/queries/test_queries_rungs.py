"""The rungs of a search over HTTP: trial ids, counts and refusals."""

import pytest

from control_plane.queries import rungs
from tests.unit.api.agent_side import CONFIG, Agent, metrics
from tests.unit.api.cluster import Cluster, limit_queries

RANDOM = "{name: random, metric: loss, max_length: {batches: 10}, max_trials: 2}"
HALVING = CONFIG.replace(
    RANDOM,
    "{name: async_halving, metric: loss, max_length: {batches: 8}, num_rungs: 2, divisor: 2,"
    " max_trials: 2, max_concurrent_trials: 2}",
)
ZERO = dict.fromkeys(("training", "waiting", "promoted", "stopped", "finished", "exited"), 0)


def report(agent: Agent, allocation: str, length: int, loss: float) -> None:
    agent.report(allocation, metrics(length, "validation", loss=loss))
    agent.report(allocation, {"kind": "completed", "length": length, "metric": loss})


def test_rungs_show_promotions(cluster: Cluster) -> None:
    cluster.create(HALVING)
    agent = Agent(cluster)
    first, second = agent.take_work()
    report(agent, first, 4, 0.5)
    report(agent, second, 4, 0.25)
    answer = cluster.get("/experiments/1/rungs")
    assert answer.status == 200, answer.body
    # The better of two results is promoted; the worse trial stopped because the rung is full.
    assert answer.json == {
        "unit": "batches",
        "metric": "loss",
        "smaller_is_better": True,
        "brackets": [
            {
                "rungs": [
                    {
                        "number": 0,
                        "length": 4,
                        "reached": 2,
                        "outcomes": {**ZERO, "promoted": 1, "stopped": 1},
                        "best_metric": 0.25,
                        "trials": [
                            {"id": 2, "number": 1, "metric": 0.25, "outcome": "promoted"},
                            {"id": 1, "number": 0, "metric": 0.5, "outcome": "stopped"},
                        ],
                    },
                    {
                        "number": 1,
                        "length": 8,
                        "reached": 1,
                        "outcomes": {**ZERO, "training": 1},
                        "best_metric": None,
                        "trials": [{"id": 2, "number": 1, "metric": None, "outcome": "training"}],
                    },
                ]
            }
        ],
    }
    [rung, _] = cluster.get("/experiments/1/rungs?trials=1").json["brackets"][0]["rungs"]
    assert [trial["id"] for trial in rung["trials"]] == [2]
    assert rung["reached"] == 2
    # The last rung compares no trials and has the trial's best metric.
    report(agent, second, 8, 0.125)
    top = cluster.get("/experiments/1/rungs").json["brackets"][0]["rungs"][1]
    assert (top["best_metric"], top["outcomes"]["finished"]) == (0.125, 1)


def test_rungs_are_read_again_after_a_change(
    cluster: Cluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    cluster.create(HALVING)
    agent = Agent(cluster)
    first, _ = agent.take_work()
    before = cluster.get("/experiments/1/rungs").json
    with monkeypatch.context() as patch:
        patch.setattr(rungs, "list_rungs", None)
        assert cluster.get("/experiments/1/rungs").json == before
    report(agent, first, 4, 0.5)
    [rung, _] = cluster.get("/experiments/1/rungs").json["brackets"][0]["rungs"]
    assert rung["outcomes"] == {**ZERO, "waiting": 1, "training": 1}


def test_search_without_rungs_has_no_brackets(cluster: Cluster) -> None:
    cluster.create(CONFIG)
    assert cluster.get("/experiments/1/rungs").json["brackets"] == []
    assert cluster.get("/experiments/2/rungs").status == 404
    assert cluster.get("/experiments/1/rungs?trials=201").status == 422


def test_rejects_search_with_too_many_trials(cluster: Cluster) -> None:
    cluster.create(HALVING)
    answer = limit_queries(cluster, rung_trials_max=1).get("/experiments/1/rungs")
    assert answer.status == 422
    assert "has 2 trials; rungs are listed for at most 1" in answer.json["error"]["message"]
