"""Results of trials at one length, and the importance of hyperparameters, over HTTP."""

import math
from typing import Any

import pytest

from control_plane.importance.fanova import TRIALS_MIN
from control_plane.queries import importance, results
from tests.unit.api.agent_side import CONFIG, Agent, metrics
from tests.unit.api.cluster import Cluster, limit_queries

TWO_TRIALS = "{name: random, metric: loss, max_length: {batches: 10}, max_trials: 2}"
HALVING = CONFIG.replace(
    TWO_TRIALS,
    "{name: async_halving, metric: loss, max_length: {batches: 8}, num_rungs: 2, divisor: 2,"
    " max_trials: 4, max_concurrent_trials: 4}",
)
EPOCHS = HALVING.replace("{batches: 8}", "{epochs: 8}")
ENOUGH = CONFIG.replace("max_trials: 2", f"max_trials: {TRIALS_MIN}")


def complete(agent: Agent, allocation: str, length: int, loss: float, **more: float) -> None:
    """Report a validation at a length in batches, and the end of the training of this length."""
    agent.report(allocation, metrics(length, "validation", loss=loss, **more))
    agent.report(allocation, {"kind": "completed", "length": length, "metric": loss})


def pairs(answer: Any) -> dict[int, float]:
    return {item["trial_id"]: item["metric"] for item in answer["items"]}


def take_four(cluster: Cluster) -> list[tuple[Agent, str]]:
    """Start four trials on two new agents, and return the allocations in the order of trials."""
    agents = [Agent(cluster, name) for name in ("first", "second")]
    running = [(agent, allocation) for agent in agents for allocation in agent.take_work()]
    assert len(running) == 4
    return sorted(running, key=lambda pair: pair[1])


def run_halving(cluster: Cluster) -> None:
    """Train four trials of HALVING to 4 batches, and the first trial to 8 batches.

    The first trial has a better loss at 4 batches than at 8.
    """
    cluster.create(HALVING)
    running = take_four(cluster)
    for place, (agent, allocation) in enumerate(running):
        complete(agent, allocation, 4, 0.25 + place, accuracy=0.5)
    complete(*running[0], 8, 0.5, accuracy=0.75)


def test_repeated_training_keeps_the_compared_result(cluster: Cluster) -> None:
    cluster.create(HALVING)
    for place, (agent, allocation) in enumerate(take_four(cluster)):
        complete(agent, allocation, 4, 0.25 + place)
    # A new session of the agent loses the run of trial 1, which has no checkpoint to continue from.
    agent = Agent(cluster, "first")
    assert "1.2" in agent.take_work()
    agent.report("1.2", metrics(2, "validation", loss=0.75))
    assert cluster.get("/trials/1").json["best_metric"] == 0.75
    assert pairs(cluster.get("/experiments/1/results?at=4").json)[1] == 0.25


def test_results_of_different_lengths_are_never_mixed(cluster: Cluster) -> None:
    run_halving(cluster)
    short = cluster.get("/experiments/1/results?at=4").json
    assert pairs(short) == {1: 0.25, 2: 1.25, 3: 2.25, 4: 3.25}
    assert short["best"] == {"trial_id": 1, "metric": 0.25}
    long = cluster.get("/experiments/1/results?at=8").json
    # The best metric of trial 1, 0.25, is no result at 8 batches.
    assert pairs(long) == {1: 0.5}
    assert long["lengths"] == [{"length": 4, "trials": 4}, {"length": 8, "trials": 1}]
    assert (long["unit"], long["metric"], long["smaller_is_better"]) == ("batches", "loss", True)
    assert pairs(cluster.get("/experiments/1/results?at=5").json) == {}


def test_default_length_is_the_largest_with_enough_trials(
    cluster: Cluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    run_halving(cluster)
    # No rung has TRIALS_MIN results: the rung with the most results is chosen.
    assert cluster.get("/experiments/1/results").json["at"] == 4
    monkeypatch.setattr(results, "TRIALS_MIN", 1)
    assert limit_queries(cluster).get("/experiments/1/results").json["at"] == 8


def test_other_metrics_are_read_from_reports(cluster: Cluster) -> None:
    run_halving(cluster)
    answer = cluster.get("/experiments/1/results?metric=accuracy&at=8").json
    assert pairs(answer) == {1: 0.75}
    # Only the direction of the searcher metric is known.
    assert (answer["smaller_is_better"], answer["best"]) == (None, None)
    few = limit_queries(cluster, result_series_max=1)
    answer = few.get("/experiments/1/results?metric=accuracy&at=4").json
    assert (pairs(answer), answer["trials_left_out"]) == ({1: 0.5}, 3)


def test_searches_without_rungs_offer_common_lengths(cluster: Cluster) -> None:
    cluster.create(CONFIG)
    agent = Agent(cluster)
    first, second = agent.take_work()
    for allocation in (first, second):
        agent.report(allocation, metrics(5, "validation", loss=0.5))
    complete(agent, first, 10, 0.25)
    answer = cluster.get("/experiments/1/results").json
    assert answer["lengths"] == [{"length": 5, "trials": 2}, {"length": 10, "trials": 1}]
    assert (answer["at"], pairs(answer)) == (5, {1: 0.5, 2: 0.5})


def test_epochs_that_only_trials_can_measure_are_compared_at_rungs(cluster: Cluster) -> None:
    cluster.create(EPOCHS)
    for place, (agent, allocation) in enumerate(take_four(cluster)):
        agent.report(allocation, metrics(100 * (place + 1), "validation", loss=float(place)))
        agent.report(
            allocation, {"kind": "completed", "length": 4, "epoch": 4, "metric": float(place)}
        )
    answer = cluster.get("/experiments/1/results").json
    assert (answer["unit"], answer["at"]) == ("epochs", 4)
    assert pairs(answer) == {1: 0.0, 2: 1.0, 3: 2.0, 4: 3.0}
    refused = cluster.get("/experiments/1/results?metric=accuracy")
    assert refused.status == 422
    assert "lengths of this experiment are in epochs" in refused.json["error"]["message"]


def test_pages_cover_all_results(cluster: Cluster) -> None:
    run_halving(cluster)
    first = cluster.get("/experiments/1/results?at=4&limit=3").json
    rest = cluster.get(f"/experiments/1/results?at=4&limit=3&cursor={first['next_cursor']}").json
    assert [item["number"] for item in (*first["items"], *rest["items"])] == [0, 1, 2, 3]
    assert rest["next_cursor"] is None
    assert set(first["items"][0]["hparams"]) == {"x"}


def test_large_searches_are_read_in_part(cluster: Cluster) -> None:
    run_halving(cluster)
    answer = limit_queries(cluster, result_trials_max=2).get("/experiments/1/results?at=4").json
    # Trials 0 and 2 are spread evenly over 4 trials, and trial 0 is the best.
    assert (pairs(answer), answer["trials_left_out"]) == ({1: 0.25, 3: 2.25}, 2)


def test_results_are_read_again_after_a_change(
    cluster: Cluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    cluster.create(CONFIG)
    agent = Agent(cluster)
    first, second = agent.take_work()
    complete(agent, first, 10, 0.25)
    assert pairs(cluster.get("/experiments/1/results").json) == {1: 0.25}
    with monkeypatch.context() as patch:
        patch.setattr(results, "read_results", None)
        assert pairs(cluster.get("/experiments/1/results").json) == {1: 0.25}
    complete(agent, second, 10, 0.5)
    assert pairs(cluster.get("/experiments/1/results").json) == {1: 0.25, 2: 0.5}


def test_experiment_without_results_has_no_length(cluster: Cluster) -> None:
    cluster.create(CONFIG)
    answer = cluster.get("/experiments/1/results").json
    assert (answer["at"], answer["lengths"], answer["items"]) == (None, [], [])
    assert cluster.get("/experiments/1/importance").json["note"] == (
        "No trial has a result of loss yet."
    )
    for route in ("results", "importance"):
        assert cluster.get(f"/experiments/2/{route}").status == 404
        assert cluster.get(f"/experiments/1/{route}?at=0").status == 422


def run_enough(cluster: Cluster) -> None:
    """Complete TRIALS_MIN trials with a V-shaped loss of the only hyperparameter, x."""
    cluster.create(ENOUGH)
    agent = Agent(cluster)
    while allocations := agent.take_work():
        for allocation in allocations:
            trial = cluster.get(f"/trials/{allocation.partition('.')[0]}").json
            complete(agent, allocation, 10, abs(trial["hparams"]["x"] - 0.5))
            agent.report(
                allocation, {"kind": "exited", "reason": "completed", "code": 0}, writer="agent"
            )


def test_only_hyperparameter_is_important(cluster: Cluster) -> None:
    run_enough(cluster)
    answer = cluster.get("/experiments/1/importance").json
    [item] = answer["items"]
    assert (item["name"], item["share"]) == ("x", pytest.approx(1))
    assert answer["interactions"] == pytest.approx(0)
    assert (answer["at"], answer["trials"]) == (10, TRIALS_MIN)
    assert "With fewer than 40 trials" in answer["note"]
    assert answer["explained"] > 0.5
    one = limit_queries(cluster, result_trials_max=TRIALS_MIN - 1)
    answer = one.get("/experiments/1/importance").json
    assert f"needs {TRIALS_MIN} trials with a result at one length" in answer["note"]
    assert (answer["items"], answer["explained"]) == ([], None)


def test_importance_is_computed_once_for_equal_results(
    cluster: Cluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    run_enough(cluster)
    before = cluster.get("/experiments/1/importance").json
    monkeypatch.setattr(importance, "assess_importance", None)
    assert cluster.get("/experiments/1/importance").json == before


def test_infinite_metrics_are_no_results(cluster: Cluster) -> None:
    cluster.create(CONFIG)
    agent = Agent(cluster)
    first, second = agent.take_work()
    complete(agent, first, 10, 0.25)
    complete(agent, second, 10, math.inf)
    assert pairs(cluster.get("/experiments/1/results").json) == {1: 0.25}
