"""Log policies: the specification of a run, reports of agents, and answers about trials."""

from __future__ import annotations

import json
from typing import Any

from tests.unit.api.agent_side import CONFIG, Agent
from tests.unit.api.cluster import Cluster

POLICY = {"name": "OOM", "pattern": "out of memory", "action": "cancel_retries"}
MATCH = {
    "kind": "log_policy",
    "name": "OOM",
    "pattern": "out of memory",
    "actions": ["cancel_retries", "exclude_node"],
    "signal": "OOM",
    "line": "CUDA out of memory",
    "rank": 0,
}


def with_policies(*policies: dict[str, Any]) -> str:
    return f"{CONFIG}log_policies: {json.dumps(policies)}\n"


def begin_runs(cluster: Cluster, *policies: dict[str, Any]) -> tuple[Agent, list[dict[str, Any]]]:
    """Submit an experiment with policies. Return an agent with the work, and its specifications."""
    cluster.create(with_policies(*policies))
    agent = Agent(cluster)
    entries = agent.sync().json["desired"]
    specs = [entry["spec"] for entry in entries if "spec" in entry]
    agent.known += [spec["allocation_id"] for spec in specs]
    return agent, specs


def test_specification_has_policies_and_defaults(cluster: Cluster) -> None:
    _, specs = begin_runs(cluster, POLICY, {"name": "ECC Error"})
    assert specs[0]["log_policies"] == [
        {
            "pattern": "out of memory",
            "name": "OOM",
            "actions": ["cancel_retries"],
            "signal": "OOM",
        },
        {"pattern": ".*CUDA out of memory.*", "name": "CUDA OOM", "signal": "CUDA OOM"},
    ]


def test_invalid_pattern_is_refused(cluster: Cluster) -> None:
    answer = cluster.create(with_policies({"name": "a", "pattern": "(a"}))
    assert answer.status == 422
    [problem] = answer.json["error"]["details"]
    assert problem["path"] == "log_policies[0].pattern"


def test_match_ends_the_trial_at_its_failure(cluster: Cluster) -> None:
    agent, _ = begin_runs(cluster, POLICY)
    assert agent.report("1.1", MATCH, writer="agent").status == 200
    trial = cluster.get("/trials/1").json
    reason = "log policy OOM matched: CUDA out of memory"
    assert (trial["signal"], trial["retries_canceled"]) == ("OOM", reason)
    [match] = trial["log_matches"]
    assert match["agent_id"] in trial["excluded_agents"]
    assert {**match, "time_ms": 0, "agent_id": ""} == {
        "time_ms": 0,
        "epoch": 1,
        "policy": "OOM",
        "line": "CUDA out of memory",
        "actions": ["cancel_retries", "exclude_node"],
        "signal": "OOM",
        "agent_id": "",
        "rank": 0,
    }
    assert cluster.get("/experiments/1").json["signal"] == "OOM"
    exited = {"kind": "exited", "reason": "errored", "code": 1, "message": "out"}
    agent.report("1.1", exited, writer="agent")
    trial = cluster.get("/trials/1").json
    assert (trial["state"], trial["message"]) == ("ERROR", f"no restart: {reason}\nout")
    texts = [item["text"] for item in cluster.get("/experiments/1/history").json["items"]]
    assert "the log of allocation 1.1 matched log policy OOM: CUDA out of memory" in texts
    assert "the log of trial 1 shows OOM" in texts


def test_match_by_the_trial_itself_is_ignored(cluster: Cluster) -> None:
    agent, _ = begin_runs(cluster, POLICY)
    agent.report("1.1", MATCH)
    assert cluster.get("/trials/1").json["log_matches"] == []


def test_repeated_report_is_counted_once(cluster: Cluster) -> None:
    agent, _ = begin_runs(cluster, POLICY)
    for _ in range(2):
        agent.report("1.1", MATCH, writer="agent")
    assert len(cluster.get("/trials/1").json["log_matches"]) == 1
