"""Replacements of runs in the API: of a trial, and summed up for a pool."""

from typing import Any

import pytest

from control_plane.actors import addresses
from control_plane.actors.messages.trial import PreemptionRequested
from control_plane.actors.replacement import encode_replacement, experiment_sort_key
from control_plane.state.table import Expect, Key, Put
from tests.unit.api.agent_side import CONFIG, Agent, metrics
from tests.unit.api.cluster import V1, Cluster
from tests.unit.api.exchange import call
from tests.unit.queries.test_queries_replacements import record
from tests.unit.queries.test_queries_trials import checkpoint

UUID = "0123abcd-0000-4000-8000-00000000000a"
NOTICE = {"notice": "taken away", "notice_age_ms": 2_000, "notice_outcome": "saved"}


@pytest.fixture
def agent(cluster: Cluster) -> Agent:
    """An agent whose trial 1 has a checkpoint at batch 4."""
    cluster.create(CONFIG)
    agent = Agent(cluster)
    agent.take_work()
    checkpoint(cluster, agent, 1, UUID, 4)
    cluster.clock.ms += 60_000
    return agent


def restart_after_notice(agent: Agent) -> dict[str, Any]:
    """End the first run of trial 1 after a notice, and return the spec of the second run."""
    exited = {"kind": "exited", "reason": "preempted", "code": 0, **NOTICE}
    agent.report("1.1", exited, writer="agent")
    agent.known = ["2.1"]
    entries = agent.sync().json["desired"]
    (spec,) = [entry["spec"] for entry in entries if "spec" in entry]
    agent.known.append("1.2")
    return dict(spec)


def describe(cluster: Cluster, trial: int = 1) -> list[dict[str, Any]]:
    replacements: list[dict[str, Any]] = cluster.get(f"/trials/{trial}").json["replacements"]
    return replacements


def test_first_runs_report_no_first_step(cluster: Cluster) -> None:
    cluster.create(CONFIG)
    entries = Agent(cluster).sync().json["desired"]
    assert [entry["spec"]["replaces_run"] for entry in entries] == [False, False]
    assert describe(cluster) == []


def test_replacement_of_a_run_is_shown_until_and_after_its_first_step(
    cluster: Cluster, agent: Agent
) -> None:
    spec = restart_after_notice(agent)
    assert spec["replaces_run"] is True
    cluster.clock.ms += 1_000
    (shown,) = describe(cluster)
    assert (shown["cause"], shown["reason"], shown["ended_ms"]) == ("notice", "taken away", None)
    assert (shown["from_epoch"], shown["epoch"], shown["duration_ms"]) == (1, 2, 3_000)
    # The slots were assigned at once, and the run has taken 1 s so far.
    assert shown["phases"] == [
        {"phase": "checkpoint", "duration_ms": 2_000},
        {"phase": "queue", "duration_ms": 0},
        {"phase": "start", "duration_ms": 1_000},
    ]
    running = {"kind": "container", "state": "RUNNING", "durations_ms": {"code": 300, "image": -1}}
    running["early_pull_failure"] = "x" * 300
    agent.report("1.2", running, writer="agent")
    cluster.clock.ms += 4_000
    step = {"kind": "first_step", "steps_completed": 5}
    agent.report("1.2", step | {"durations_ms": {"restore": 500, "first_step": 200}})
    (shown,) = describe(cluster)
    assert shown["phases"] == [
        {"phase": "checkpoint", "duration_ms": 2_000},
        {"phase": "queue", "duration_ms": 0},
        {"phase": "code", "duration_ms": 300},
        {"phase": "start", "duration_ms": 5_000 - 300 - 500 - 200},
        {"phase": "restore", "duration_ms": 500},
        {"phase": "first_step", "duration_ms": 200},
    ]
    assert (shown["duration_ms"], shown["agent_ids"]) == (7_000, ["node"])
    assert shown["early_pull_failure"] == "x" * 200
    assert shown["ended_ms"] == shown["begun_ms"] + 7_000
    history = cluster.get("/experiments/1/history").json["items"]
    assert "it trains again 7.0 s after the notice" in [
        reason for item in history for reason in item["reasons"]
    ]
    # A list of trials has no replacements.
    assert "replacements" not in cluster.get("/experiments/1/trials").json["items"][0]


def test_pool_sums_up_the_last_days(cluster: Cluster, agent: Agent) -> None:
    restart_after_notice(agent)
    agent.report("1.2", {"kind": "first_step", "steps_completed": 5})
    path = "/resource-pools/default/replacements"
    sums = cluster.get(path).json
    assert sums["resource_pool"] == "default"
    assert not sums["is_cut"]
    assert [(each["cause"], each["count"]) for each in sums["causes"]] == [("notice", 1)]
    assert sums["causes"][0]["phases"][0] == {
        "phase": "total",
        "count": 1,
        "median_ms": 2_000,
        "p90_ms": 2_000,
    }
    assert [each["trial_id"] for each in sums["latest"]] == [1]
    cluster.clock.ms += 86_400_001
    assert cluster.get(f"{path}?days=1").json["causes"] == []


def test_experiment_sums_up_the_replacements_of_its_trials(cluster: Cluster, agent: Agent) -> None:
    path = "/experiments/1/replacements"
    created_ms = cluster.get("/experiments/1").json["created_ms"]
    empty = {"experiment_id": 1, "since_ms": created_ms, "is_cut": False}
    assert cluster.get(path).json == empty | {"causes": [], "latest": []}
    restart_after_notice(agent)
    agent.report("1.2", {"kind": "first_step", "steps_completed": 5})
    # The rows of the pool expire, those of the experiment do not.
    cluster.clock.ms += 400 * 86_400_000
    sums = cluster.get(path).json
    assert {name: sums[name] for name in empty} == empty
    (cause,) = sums["causes"]
    assert (cause["cause"], cause["count"], cause["unmeasured"]) == ("notice", 1, 0)
    total = {"phase": "total", "count": 1, "median_ms": 2_000, "p90_ms": 2_000}
    assert cause["phases"][0] == total
    assert sums["latest"] == describe(cluster)


def test_sums_of_an_experiment_read_a_bounded_number_of_rows(
    cluster: Cluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    cluster.create(CONFIG)
    for number in range(5):
        ended = record(60_000 + number)
        key = Key(addresses.experiment(1), experiment_sort_key(ended))
        put = Put(key, 1, encode_replacement(ended), Expect.ABSENT)
        cluster.services.table.commit((put,))
    monkeypatch.setattr("control_plane.queries.replacements.SUMMED_MAX", 3)
    sums = cluster.get("/experiments/1/replacements").json
    assert [each["count"] for each in sums["causes"]] == [3]
    # The latest three are summed: the earliest of them ended at 1,000 + 60,002 ms.
    assert (sums["is_cut"], sums["since_ms"]) == (True, 61_002)


@pytest.mark.parametrize("path", ["/experiments/9/replacements", "/experiments/0/replacements"])
def test_unknown_experiment_has_no_sums(cluster: Cluster, path: str) -> None:
    assert cluster.get(path).status in (404, 422)


@pytest.mark.parametrize(
    ("pool", "days", "status"), [("default", 0, 422), ("default", 91, 422), ("none", 30, 404)]
)
def test_wrong_pool_and_days_are_refused(
    cluster: Cluster, pool: str, days: int, status: int
) -> None:
    assert cluster.get(f"/resource-pools/{pool}/replacements?days={days}").status == status


def test_sums_need_a_token(cluster: Cluster) -> None:
    path = f"{V1}/resource-pools/default/replacements"
    assert call(cluster.app, "GET", path).status == 401


def test_agents_without_the_new_fields(cluster: Cluster, agent: Agent) -> None:
    exited = {"kind": "exited", "reason": "preempted", "code": 0, "notice": "taken away"}
    agent.report("1.1", exited, writer="agent")
    agent.known = ["2.1"]
    agent.take_work()
    agent.report("1.2", {"kind": "container", "state": "RUNNING"}, writer="agent")
    cluster.clock.ms += 9_000
    agent.report("1.2", metrics(5, "validation", loss=0.1))
    (shown,) = describe(cluster)
    assert not shown["has_first_step"]
    assert shown["phases"] == [
        {"phase": "queue", "duration_ms": 0},
        {"phase": "start", "duration_ms": 9_000},
    ]
    sums = cluster.get("/resource-pools/default/replacements").json
    assert [(each["count"], each["unmeasured"]) for each in sums["causes"]] == [(0, 1)]


def test_run_that_must_leave_is_shown_before_its_exit(cluster: Cluster, agent: Agent) -> None:
    message = PreemptionRequested(1, "a job of higher priority")
    cluster.services.engine.execute_command(addresses.trial(1), message)
    cluster.clock.ms += 2_000
    (shown,) = describe(cluster)
    assert (shown["cause"], shown["epoch"], shown["agent_ids"]) == ("preemption", 1, [])
    assert shown["phases"] == [{"phase": "checkpoint", "duration_ms": 2_000}]
